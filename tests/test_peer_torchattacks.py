"""Attacks with the model first beside torchattacks': the same calls give the same images."""

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import sihg.attacks
from tests.robust.planted import digits, healthy

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    peer = pytest.importorskip("torchattacks", reason="torchattacks is not installed (`make peers` does it)")
pytestmark = [pytest.mark.peer]
EQUAL: dict[str, dict[str, Any]] = {
    "FGSM": {"eps": 0.05},
    "BIM": {"eps": 0.05, "alpha": 0.02, "steps": 7},
    "PGD": {"eps": 0.05, "alpha": 0.02, "steps": 7, "random_start": False},
    "PGDL2": {"eps": 0.4, "alpha": 0.1, "steps": 7, "random_start": False},
    "MIFGSM": {"eps": 0.05, "alpha": 0.01, "steps": 7, "decay": 0.9},
}


def smooth() -> nn.Module:
    """A network without kinks, in float64: the signs of gradients are those of another library's."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.Tanh(), nn.Linear(20, 10)).double()


@pytest.mark.parametrize("name", list(EQUAL))
def test_the_same_images(name: str) -> None:
    model, settings = smooth(), EQUAL[name]
    x, y = digits().floats(slice(50)).double(), digits().y[:50]
    if name == "PGDL2":  # torchattacks clamps after its projection, we project onto both: stay away from the bounds
        x = 0.25 + x / 2
    found = getattr(sihg.attacks, name)(model, **settings)(x, y)
    assert torch.allclose(found, getattr(peer, name)(model, **settings)(x, y), atol=1e-9)
    assert not torch.equal(found, x)


def test_the_same_defaults() -> None:
    model = healthy()
    assert vars(sihg.attacks.PGD(model).attack)["step_size"] == peer.PGD(model).alpha
    for name in ("FGSM", "BIM", "PGD", "PGDL2", "MIFGSM", "APGD", "APGDT", "FAB", "Square"):
        ours, theirs = getattr(sihg.attacks, name)(model), getattr(peer, name)(model)
        assert ours.attack.eps == theirs.eps, name
        for setting in ("steps", "n_restarts", "n_queries", "p_init", "alpha", "decay", "seed"):
            if hasattr(theirs, setting):
                own = {"n_restarts": "restarts", "n_queries": "queries", "alpha": "step_size", "decay": "momentum"}
                value = ours.seed if setting == "seed" else getattr(ours.attack, own.get(setting, setting))
                assert value == getattr(theirs, setting), (name, setting)
    deepfool, cw = sihg.attacks.DeepFool(model).attack, sihg.attacks.CW(model).attack.attack  # type: ignore[attr-defined]
    assert (deepfool.steps, deepfool.overshoot) == (peer.DeepFool(model).steps, peer.DeepFool(model).overshoot)  # type: ignore[attr-defined]
    theirs = peer.CW(model)
    assert (cw.first_c, cw.confidence, cw.steps, cw.step_size) == (theirs.c, theirs.kappa, theirs.steps, theirs.lr)


def test_as_near_as_theirs() -> None:
    """C&W and DeepFool seek near points: ours are misclassified wherever theirs are, and no farther on average."""
    model, x, y = healthy(), digits().floats(slice(50)), digits().y[:50]
    right = model(x).argmax(1) == y
    x, y = x[right], y[right]
    for name, settings in (("CW", {"c": 10, "steps": 100}), ("DeepFool", {})):
        ours = getattr(sihg.attacks, name)(model, **settings)(x, y)
        theirs = getattr(peer, name)(model, **settings)(x, y)
        wrong = [model(points).argmax(1) != y for points in (ours, theirs)]
        assert int(wrong[0].sum()) >= int(wrong[1].sum())
        both = wrong[0] & wrong[1]
        assert int(both.sum()) > 10
        far = [torch.linalg.vector_norm((points - x)[both].flatten(1), dim=1).mean() for points in (ours, theirs)]
        assert float(far[0]) <= 1.01 * float(far[1])
