"""APGD beside pyautoattack's: random starts differ, what breaks hardly does."""

from typing import Any

import pytest
import torch

from sihg.robust.attacks import APGD
from sihg.robust.gradients import dlr, targeted_dlr
from tests.robust.attacks.trained_models import SHAPES, mixed, trained
from tests.robust.methods.nets import samples

peer = pytest.importorskip("pyautoattack.autopgd_base", reason="pyautoattack is not installed (`make env` does it)")
pytestmark = [pytest.mark.peer]


@pytest.mark.filterwarnings("ignore:there are")  # the ratio is flat where the label is third
@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.05), ("l2", 0.3), ("l1", 0.7)])
@pytest.mark.parametrize("loss", ["ce", "dlr", "dlr-t"])
def test_the_same_share_breaks(loss: str, norm: str, eps: float) -> None:
    model = trained("smooth", torch.float32).eval()
    x, y = samples(400, SHAPES["smooth"], dtype=torch.float32)
    right = model(x).argmax(1) == y
    x, y = x[right], y[right]
    kind = peer.APGDAttack_targeted if loss == "dlr-t" else peer.APGDAttack
    settings: dict[str, Any] = {"n_target_classes": 3} if loss == "dlr-t" else {"loss": loss}
    settings |= {"use_largereps": True} if norm == "l1" else {}
    name = {"linf": "Linf", "l2": "L2", "l1": "L1"}[norm]
    theirs = kind(model, n_iter=30, n_restarts=1, norm=name, eps=eps, seed=0, device="cpu", **settings)
    found = theirs.perturb(x, y)
    their_broken = model(found).argmax(1) != y
    our_broken = APGD(eps=eps, norm=norm, loss=loss, steps=30).run(model, x, y).broken
    assert mixed(our_broken)
    assert int((our_broken != their_broken).sum()) <= (0.02 if norm == "l1" else 0.01) * len(x)


def test_the_ratios_are_theirs() -> None:
    """To the last bits, for labels that lead and others."""
    logits = 5 * torch.randn(200, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y, target = torch.arange(200) % 7, (torch.arange(200) + 3) % 7
    theirs = peer.APGDAttack_targeted(torch.nn.Identity(), eps=1.0)
    torch.testing.assert_close(dlr(logits, y), theirs.dlr_loss(logits, y), rtol=1e-14, atol=0)
    theirs.y_target = target
    torch.testing.assert_close(targeted_dlr(target, logits, y), theirs.dlr_loss_targeted(logits, y), rtol=1e-14, atol=0)
