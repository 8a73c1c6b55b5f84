"""APGD beside pyautoattack's: random starts differ, what breaks hardly does."""

import pytest
import torch

from sihg.robust.attacks import APGD
from tests.robust.attacks.trained_models import SHAPES, mixed, trained
from tests.robust.methods.nets import samples

peer = pytest.importorskip("pyautoattack.autopgd_base", reason="pyautoattack is not installed (`make env` does it)")
pytestmark = [pytest.mark.peer]


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.05), ("l2", 0.3)])
@pytest.mark.parametrize("loss", ["ce", "dlr-t"])
def test_the_same_share_breaks(loss: str, norm: str, eps: float) -> None:
    model = trained("smooth", torch.float32).eval()
    x, y = samples(400, SHAPES["smooth"], dtype=torch.float32)
    right = model(x).argmax(1) == y
    x, y = x[right], y[right]
    kind = {"ce": peer.APGDAttack, "dlr-t": peer.APGDAttack_targeted}[loss]
    settings = {"loss": "ce"} if loss == "ce" else {"n_target_classes": 3}
    name = {"linf": "Linf", "l2": "L2"}[norm]
    theirs = kind(model, n_iter=30, n_restarts=1, norm=name, eps=eps, seed=0, device="cpu", **settings)
    found = theirs.perturb(x, y)
    their_broken = model(found).argmax(1) != y
    our_broken = APGD(eps=eps, norm=norm, loss=loss, steps=30).run(model, x, y).broken
    assert mixed(our_broken)
    assert int((our_broken != their_broken).sum()) <= 0.01 * len(x)
