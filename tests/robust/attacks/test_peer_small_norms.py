"""MI-FGSM beside torchattacks', DeepFool and C&W beside foolbox's."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sihg.robust.attacks import CW, MIFGSM, DeepFool
from tests.robust.attacks.trained_models import trained
from tests.robust.methods.nets import samples

foolbox = pytest.importorskip("foolbox", reason="foolbox is not installed (`make env` does it)")
torchattacks = pytest.importorskip("torchattacks", reason="torchattacks is not installed (`make env` does it)")
pytestmark = [pytest.mark.peer]


def by_foolbox(attack: Any, model: nn.Module, x: Tensor, y: Tensor, eps: float | None) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, clipped, _ = attack(foolbox.PyTorchModel(model, bounds=(0, 1)), x, y, epsilons=eps)
    assert isinstance(clipped, Tensor)
    return clipped


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_mi_fgsm_makes_the_iterates_of_torchattacks(steps: int) -> None:
    x, y = samples(20, dtype=torch.float32)
    model = trained("plain", torch.float32).eval()
    theirs = torchattacks.MIFGSM(model, eps=0.1, alpha=0.1 / steps, steps=steps, decay=1.0)(x, y)
    ours = MIFGSM(eps=0.1, steps=steps, last_iterate=True)(model, x, y)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_mi_fgsm_in_l2_makes_the_iterates_of_foolbox(steps: int) -> None:
    x, y = samples(20)
    model = trained("smooth").eval()
    attack = foolbox.attacks.L2MomentumIterativeFastGradientMethod(abs_stepsize=0.7 / steps, steps=steps)
    ours = MIFGSM(eps=0.7, steps=steps, norm="l2", last_iterate=True)(model, x, y)
    torch.testing.assert_close(ours, by_foolbox(attack, model, x, y, 0.7), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("norm", "order"), [("linf", torch.inf), ("l2", 2)])
@pytest.mark.parametrize("kind", ["smooth", "plain"])
def test_deepfool_goes_as_far_as_foolbox(kind: str, norm: str, order: float) -> None:
    """Which adds 0.0001 to every step, so that lengths differ a little."""
    x, _ = samples(60)
    model = trained(kind).eval()
    y = model(x).argmax(1)
    peer = {"linf": foolbox.attacks.LinfDeepFoolAttack, "l2": foolbox.attacks.L2DeepFoolAttack}[norm]
    theirs = by_foolbox(peer(steps=50), model, x, y, None)
    found = DeepFool(eps=1.0 if norm == "linf" else 8.0, norm=norm).run(model, x, y)
    lengths = [torch.linalg.vector_norm((points - x).flatten(1), ord=order, dim=1) for points in (found.x_adv, theirs)]
    assert float(found.broken.double().mean()) > 0.95
    ours, theirs = (length[found.broken & (model(theirs).argmax(1) != y)] for length in lengths)
    assert float(((ours - theirs).abs() / theirs).median()) < 0.01
    assert float(((ours - theirs).abs() / theirs).quantile(0.9)) < 0.1


def test_cw_goes_as_far_as_foolbox() -> None:
    """The same settings: of the samples that theirs breaks within a radius, ours breaks nearly all, and vice versa."""
    x, _ = samples(60)
    model = trained("smooth").eval()
    y = model(x).argmax(1)
    peer = foolbox.attacks.L2CarliniWagnerAttack(
        binary_search_steps=6, steps=100, stepsize=0.01, initial_const=0.1, abort_early=False
    )
    points = by_foolbox(peer, model, x, y, None)
    lengths = (points - x).flatten(1).norm(dim=1)
    for share in (0.25, 0.5, 0.75):
        eps = float(lengths.quantile(share))
        broken = CW(eps=eps, steps=100, searches=6, first_c=0.1).run(model, x, y).broken
        assert abs(int(broken.sum()) - int((lengths <= eps).sum())) <= 2
