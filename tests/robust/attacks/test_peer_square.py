"""Square beside pyautoattack's, which draws one window for all rows: about as many samples break."""

import pytest
import torch
from torch import Tensor, nn

from sihg.robust.attacks.square import Square
from sihg.robust.data.batches import batches
from sihg.robust.methods import FastAT
from sihg.robust.models import build
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


class ToTheEdge(peer.SquareAttack):  # type: ignore[misc, name-defined]
    """Its windows never reach the last row and column; the paper's do, and on 10 x 10 that decides many a verdict."""

    def random_int(self, low: int = 0, high: int = 1, shape: tuple[int, ...] = (1,)) -> Tensor:
        drawn: Tensor = super().random_int(low, high + 1, list(shape))
        return drawn


def theirs(model: nn.Module, x: Tensor, y: Tensor, norm: str, eps: float, queries: int, seed: int) -> Tensor:
    kind = {"linf": "Linf", "l2": "L2", "l1": "L1"}[norm]
    attack = ToTheEdge(model, norm=kind, eps=eps, n_queries=queries - 1, seed=seed, device="cpu")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        wrong: Tensor = model(attack.perturb(x, y)).argmax(1) != y
    return wrong


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.1), ("l2", 0.65), ("l1", 2.4)])
def test_the_same_share_breaks(model: nn.Module, norm: str, eps: float) -> None:
    """Up to three standard errors of the mean over 8 seeds, which take turns at four groups of 50 samples."""
    x = samples(400, SHAPE, dtype=torch.float32)[0][200:]
    with torch.no_grad():
        y = model(x).argmax(1)
    attack, ours, peers = Square(eps=eps, norm=norm, queries=200), [], []
    for seed in range(8):
        some = slice(seed % 4, None, 4)
        ours.append(attack.run(model, x[some], y[some], seed).broken.double().mean())
        peers.append(theirs(model, x[some], y[some], norm, eps, 200, seed).double().mean())
    more = torch.stack(ours) - torch.stack(peers)
    error = float(more.std()) / 8**0.5
    assert 0.2 < float(torch.stack(ours).mean()) < 0.8
    assert error < 0.03
    assert abs(float(more.mean())) <= 3 * error
