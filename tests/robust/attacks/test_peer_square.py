"""Square beside pyautoattack's: other draws, and one window for all of its rows; about as many samples break."""

import pytest
import torch
from torch import Tensor, nn

from sihg.robust.attacks.square import Square
from sihg.robust.data.batches import batches
from sihg.robust.methods import FastAT
from sihg.robust.models import build
from tests.robust.attacks.test_pgd import mixed
from tests.robust.methods.nets import CLASSES, samples

peer = pytest.importorskip("pyautoattack.square", reason="pyautoattack is not installed (`make env` does it)")
pytestmark = [pytest.mark.peer]

SHAPE = (1, 10, 10)  # a multiple of five: the grid that its L2 search starts from needs one


@pytest.fixture(scope="module")
def model() -> nn.Module:
    model = build("small-cnn", SHAPE, CLASSES, width=0.25)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in batches(samples(200, SHAPE, dtype=torch.float32), size=20, epochs=5):
        FastAT(eps=0.05).step(model, batch, optimizer)
    return model.eval()


def theirs(model: nn.Module, x: Tensor, y: Tensor, norm: str, eps: float, queries: int, seed: int) -> Tensor:
    kind = {"linf": "Linf", "l2": "L2"}[norm]
    attack = peer.SquareAttack(model, norm=kind, eps=eps, n_queries=queries - 1, seed=seed, device="cpu")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        x_adv = attack.perturb(x, y)
        wrong: Tensor = model(x_adv).argmax(1) != y
    return wrong


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.1), ("l2", 0.6)])
def test_the_same_share_breaks(model: nn.Module, norm: str, eps: float) -> None:
    x, y = samples(200, SHAPE, dtype=torch.float32, seed=1)
    with torch.no_grad():
        y = model(x).argmax(1)
    seeds = range(3)
    ours = [Square(eps=eps, norm=norm, queries=200).run(model, x, y, seed).broken for seed in seeds]
    peers = [theirs(model, x, y, norm, eps, 200, seed) for seed in seeds]
    assert mixed(ours[0])
    print(norm, [float(o.double().mean()) for o in ours], [float(o.double().mean()) for o in peers])
