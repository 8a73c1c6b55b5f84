"""FAB-T and FAB beside pyautoattack's: as many samples hold, of nearly the same ones."""

import pytest
import torch

from sihg.robust.attacks.fab import FAB
from tests.robust.attacks.trained_models import mixed, trained
from tests.robust.methods.nets import samples

peer = pytest.importorskip("pyautoattack.fab_pt", reason="pyautoattack is not installed (`make env` does it)")
pytestmark = [pytest.mark.peer]


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.07), ("l2", 0.4), ("l1", 0.9)])
@pytest.mark.parametrize("kind", ["smooth", "plain"])
@pytest.mark.parametrize("restarts", [1, 2])
def test_the_same_robust_accuracy(kind: str, norm: str, eps: float, restarts: int) -> None:
    n = 200
    x, y = samples(n, dtype=torch.float32)
    model = trained(kind, torch.float32).eval()
    theirs = peer.FABAttack_PT(
        model, norm.capitalize(), restarts, 20, eps, targeted=True, n_target_classes=3, device=x.device
    )
    with torch.random.fork_rng(devices=[]):
        x_adv = theirs.perturb(x, y)
    with torch.no_grad():
        broken = model(x_adv).argmax(1) != y
    ours = FAB(eps=eps, norm=norm, steps=20, restarts=restarts).run(model, x, y).broken
    assert mixed(ours)
    assert abs(int(ours.sum()) - int(broken.sum())) <= n // 100
    assert int((ours != broken).sum()) <= n // 50


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.07), ("l2", 0.4), ("l1", 0.9)])
def test_the_same_robust_accuracy_without_targets(norm: str, eps: float) -> None:
    n = 200
    x, y = samples(n, dtype=torch.float32)
    model = trained("smooth", torch.float32).eval()
    theirs = peer.FABAttack_PT(model, norm.capitalize(), 2, 20, eps, targeted=False, device=x.device)
    with torch.random.fork_rng(devices=[]):
        x_adv = theirs.perturb(x, y)
    with torch.no_grad():
        broken = model(x_adv).argmax(1) != y
    ours = FAB(eps=eps, norm=norm, steps=20, restarts=2, targeted=False).run(model, x, y).broken
    assert mixed(ours)
    assert abs(int(ours.sum()) - int(broken.sum())) <= n // 100
    assert int((ours != broken).sum()) <= n // 50
