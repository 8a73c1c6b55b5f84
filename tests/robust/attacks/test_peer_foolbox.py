"""PGD beside foolbox's: the same iterates from the same start, float64."""

import warnings

import pytest
import torch
from torch import Tensor, nn

from sihg.robust.attacks import PGD

foolbox = pytest.importorskip("foolbox", reason="foolbox is not installed (`make env` does it)")
pytestmark = [pytest.mark.peer]


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.Softplus(), nn.Flatten(), nn.Linear(4 * 36, 5)]
    return nn.Sequential(*layers).double().eval()


def theirs(model: nn.Module, x: Tensor, y: Tensor, norm: str, eps: float, steps: int) -> Tensor:
    kind = {"linf": foolbox.attacks.LinfPGD, "l2": foolbox.attacks.L2PGD}[norm]
    attack = kind(abs_stepsize=2.5 * eps / steps, steps=steps, random_start=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = foolbox.PyTorchModel(model, bounds=(0, 1))
        _, clipped, _ = attack(wrapped, x, y, epsilons=eps)
    assert isinstance(clipped, Tensor)
    return clipped


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.1), ("l2", 0.7)])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_the_same_points_from_the_image_itself(model: nn.Module, norm: str, eps: float, steps: int) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(20, 1, 6, 6, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 5, (20,), generator=generator)
    ours = PGD(eps=eps, steps=steps, norm=norm, random_start=False, last_iterate=True)(model, x, y)
    assert float((ours - x).abs().max()) > 0.5 * eps / 6
    torch.testing.assert_close(ours, theirs(model, x, y, norm, eps, steps), rtol=0, atol=1e-12)
