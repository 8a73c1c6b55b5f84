"""Samples that interval bounds prove to hold are left out of the standard set."""

from functools import cache

import pytest
import torch
from torch import Tensor, nn

import sihg
from sihg.robust import models
from sihg.robust.attacks import Certified
from sihg.robust.attacks.certified import Proof
from sihg.robust.attacks.outcome import Outcome
from sihg.robust.attacks.registry import STANDARD, build_attack, build_plan
from sihg.robust.attacks.runner import run_attacks
from sihg.robust.threat import Ball
from tests.robust.small import digits

EPS = 0.1


@cache
def provable() -> nn.Module:
    """Return a network trained by interval bounds, which prove much of it."""
    model = models.build("small-cnn", (1, 8, 8), 10, width=1 / 2, seed=0)
    return sihg.fit(model, digits(600), method="ibp", eps=EPS, validation=0, epochs=12, batch_size=50, ramp=6).model


class Opaque(nn.Module):
    """Hide the layers of a network, so that it has no interval bounds."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out


def run_short_set(model: nn.Module, count: int = 100) -> Outcome:
    """Run the standard set with shorter attacks."""
    plan = dict(build_plan("standard", Ball(EPS)))
    short = zip(STANDARD, ("apgd-ce-10", "apgd-t-5", "fab-t-5", "square-100"), strict=True)
    plan |= {stage: build_attack(name, Ball(EPS)) for stage, name in short}
    (outcome,) = run_attacks(model, digits(count), {"standard": plan})
    return outcome


def test_proven_samples_are_not_attacked_and_verdicts_stay() -> None:
    spared, whole = run_short_set(provable()), run_short_set(Opaque(provable()))
    proof, first = spared.stages[1:3]
    proven = proof.attacked & (proof.margin > 0)
    certified = Certified(eps=EPS).run(provable(), digits(100).floats(), digits(100).y)
    assert 20 < int(proven.sum()) <= int((~certified.broken).sum())
    assert not bool((proven & certified.broken).any())
    assert not bool((proven & first.attacked).any())
    assert not bool((proven & spared.broken).any())
    assert torch.equal(spared.broken, whole.broken)
    assert torch.equal(spared.margin[~proven], whole.margin[~proven])
    assert spared.passes < 0.7 * whole.passes


def test_a_model_without_bounds_gets_no_proof() -> None:
    proof = run_short_set(Opaque(provable())).stages[1]
    assert proof.forwards == 0
    assert bool((proof.margin[proof.attacked] == -torch.inf).all())


def test_evaluations_name_the_proof_only_where_there_is_one() -> None:
    found = [sihg.evaluate(m, digits(16), eps=EPS, attacks="standard") for m in (provable(), Opaque(provable()))]
    stages = [[stage.attack for stage in one["standard"].stages] for one in found]
    assert stages == [["natural", "certified", *STANDARD], ["natural", *STANDARD]]
    assert torch.equal(found[0].broken, found[1].broken)


@pytest.mark.parametrize("own", [nn.Sequential, nn.ReLU])
def test_a_forward_assigned_to_a_module_gets_no_proof(own: type[nn.Module]) -> None:
    """Layers alone prove every sample; what the module really does breaks all of them."""
    linear = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        linear.weight.copy_(torch.eye(2))
    model = nn.Sequential(nn.ReLU(), linear)
    patched = next(module for module in model.modules() if isinstance(module, own))
    forward = patched.forward
    patched.forward = lambda x: forward(100 * x - 49)
    x = torch.tensor([[0.5, 0.49]]).expand(4, 2)
    found = sihg.evaluate(model, (x, torch.zeros(4, dtype=torch.long)), eps=0.01, attacks="standard")
    assert found.accuracy == 0
    assert "certified" not in [stage.attack for stage in found["standard"].stages]


def test_other_norms_have_no_proof() -> None:
    assert list(build_plan("standard", Ball(1.0, "l2"))) == ["natural", *STANDARD]


def test_a_proof_does_not_hold_in_a_larger_ball() -> None:
    curve = sihg.robust_curve(provable(), digits(40), radii=[0.02, 0.3], attacks="standard")
    stages = {stage.attack: stage for stage in curve["standard"].stages}
    small, large = (stages[f"{eps:g} certified"] for eps in (0.02, 0.3))
    assert bool((small.margin > 0).any())
    assert int(large.attacked.sum()) == int((~stages["0.02 square"].broken).sum())  # all that are not broken


@pytest.mark.parametrize("slack", [1e-6, 1e-2])
def test_a_proof_must_exceed_rounding(slack: float) -> None:
    """One sample, one feature: logits 0 and w x, so the smallest margin in the ball is w (x - eps)."""
    head = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[0.0], [100.0]]))
    x = torch.tensor([[EPS * (1 + slack)]])
    verdict = Proof(eps=EPS, bounds=None).run(head, x, torch.tensor([1]))
    assert bool(verdict.margin > 0) == (slack > 1e-4)
