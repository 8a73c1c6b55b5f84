"""Smallest distances beside those of pyautoattack's FAB-T."""

import pytest
import torch

from sihg.robust.attacks.nearest import plan_nearest
from sihg.robust.threat import Ball
from tests.robust.attacks.trained_models import trained
from tests.robust.methods.nets import samples

peer = pytest.importorskip("pyautoattack.fab_pt", reason="pyautoattack is not installed (`make env` does it)")
pytestmark = [pytest.mark.peer]


@pytest.mark.parametrize(("norm", "eps", "order"), [("linf", 0.5, torch.inf), ("l2", 3.0, 2)])
@pytest.mark.parametrize("kind", ["smooth", "plain"])
def test_distances_of_fab(kind: str, norm: str, eps: float, order: float) -> None:
    """Ours end with a bisection of the segment, so that they are a little smaller."""
    x, y = samples(100, dtype=torch.float32)
    model = trained(kind, torch.float32).eval()
    theirs = peer.FABAttack_PT(model, norm.capitalize(), 1, 20, eps, targeted=True, n_target_classes=3, device=x.device)
    with torch.random.fork_rng(devices=[]):
        points = torch.stack([theirs.attack_single_run(x, y) for theirs.target_class in (2, 3, 4)])
    with torch.no_grad():
        wrong = torch.stack([model(point).argmax(1) != y for point in points])
    far = torch.linalg.vector_norm((points - x).flatten(2), ord=order, dim=2)
    distance = far.masked_fill(~wrong, torch.inf).amin(0)
    (attack,) = plan_nearest(["fab-t-20"], Ball(eps, norm)).values()
    found = attack.run(model, x, y)
    both = found.broken & distance.isfinite() & (distance > 0)
    assert int(both.sum()) > 60
    ratio = found.distance[both] / distance[both]
    assert 0.97 <= float(ratio.median()) <= 1.0001
    assert float(ratio.quantile(0.9)) <= 1.01
    assert float(ratio.max()) <= 1.1
