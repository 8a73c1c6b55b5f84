"""Cascades: who is attacked, what is broken, what it costs; and models that no gradient passes."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from sihg.core.processes import Processes
from sihg.robust.attacks import PGD, Attack, Natural, Noise
from sihg.robust.attacks import runner as cascade
from sihg.robust.attacks.outcome import join_outcomes
from sihg.robust.attacks.output_checks import check_points
from sihg.robust.attacks.registry import build_plan
from sihg.robust.attacks.runner import attack_batch, attack_parts, run_attacks
from sihg.robust.attacks.verdict import PointsTo, share_verdicts
from sihg.robust.data.samples import Samples, as_samples
from sihg.robust.evaluation.evaluate import evaluate
from sihg.robust.gradients import margins
from sihg.robust.threat import Ball
from tests.refused import refused
from tests.robust.evaluation.test_evaluate import Threshold, on_a_line
from tests.robust.methods.nets import net, samples


def test_each_attack_sees_what_the_ones_before_left() -> None:
    """The distances of the samples to the threshold are .4, .3, .2, .1, -.1, .2 and .35."""
    stages: Mapping[str, Attack] = {"natural": Natural(), "small": PGD(eps=0.15), "large": PGD(eps=0.25)}
    (found,) = run_attacks(Threshold(), on_a_line(), {"all": stages})
    assert [one.attack for one in found.stages] == ["natural", "small", "large"]
    attacked = [list(range(7)), [0, 1, 2, 3, 5, 6], [0, 1, 2, 5, 6]]
    assert [one.attacked.nonzero().flatten().tolist() for one in found.stages] == attacked
    broken = [[4], [3, 4], [2, 3, 4, 5]]
    assert [one.broken.nonzero().flatten().tolist() for one in found.stages] == broken
    assert (found.attack, bool(found.attacked.all()), found.broken.nonzero().flatten().tolist()) == (
        "all",
        True,
        broken[-1],
    )
    assert [one.done for one in found.stages] == [7, 6, 5]
    assert found.accuracy == 3 / 7
    for one in found.stages:
        assert bool((one.prediction[~one.attacked] == -1).all())
        assert torch.equal(one.margin.isnan(), ~one.attacked)


def test_costs_add_up() -> None:
    stages: Mapping[str, Attack] = {"noise": Noise(eps=0.15), "small": PGD(eps=0.15), "large": PGD(eps=0.25)}
    (found,) = run_attacks(Threshold(), on_a_line(), {"all": stages})
    assert min(one.forwards for one in found.stages) > 0
    for cost in ("passes", "forwards", "seconds"):
        assert getattr(found, cost) == sum(getattr(one, cost) for one in found.stages)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_cascade_is_what_its_points_are(norm: str) -> None:
    """The point that broke a sample, or that of smallest margin, whichever attack found it."""
    x, y = samples(150, dtype=torch.float32)
    model = net("smooth", dtype=torch.float32)
    eps = {"linf": 0.04, "l2": 0.2}[norm]
    stages: Mapping[str, Attack] = {
        "strong": PGD(eps=eps, norm=norm, steps=10),
        "weak": Noise(eps=eps / 4, norm=norm, draws=1),
        "other": PGD(eps=eps, norm=norm, steps=3, restarts=2, last_iterate=True),
    }
    points: dict[str, dict[int, Tensor]] = {f"all: {name}": {} for name in stages}
    outcomes = {}
    for part in attack_parts(model, as_samples((x, y)), {"all": stages}):
        outcomes[part.key] = part.outcome
        if part.verdict is not None:
            points[part.key].update(zip(part.numbers.tolist(), part.verdict.x_adv, strict=True))
    (found,) = join_outcomes({"all": stages}, outcomes)
    chosen, least = [], []
    for row in range(150):
        given = [points[f"all: {name}"][row] for name in stages if row in points[f"all: {name}"]]
        at = margins(model(torch.stack(given)), y[row].expand(len(given)))
        chosen.append(given[int(at.argmin())])
        least.append(int(at.argmin()))
    logits = model(torch.stack(chosen))
    torch.testing.assert_close(found.margin, margins(logits, y), rtol=0, atol=1e-6)
    assert torch.equal(found.prediction, logits.argmax(1))
    assert torch.equal(found.broken, found.prediction != y)
    assert 0.05 < found.accuracy < 0.95
    assert set(least) >= {0, 2}  # no attack alone has the smallest margins


def test_too_few_classes_are_told_of() -> None:
    found = evaluate(Threshold(), on_a_line(), eps=0.25, attacks="standard")
    assert found.accuracy == 3 / 7
    (row,) = found.rows()
    assert "apgd-t: 2 classes: the difference of two logits instead of the DLR loss, which needs 4" in row.remark
    assert [bool(stage.remark) for stage in row.stages][:3] == [False, False, True]


def test_only_those_under_attack_are_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    n, made, floats = 600, [], Samples.floats
    x, y = samples(n, (6,), dtype=torch.float32)
    model = net("table", dtype=torch.float32)

    def counted(self: Samples, index: Tensor) -> Tensor:
        made.append(len(index))
        return floats(self, index)

    monkeypatch.setattr(cascade, "rows_per_chunk", lambda _shape: 128)
    monkeypatch.setattr(Samples, "floats", counted)
    (found,) = run_attacks(model, as_samples((x, y)), {"all": {"natural": Natural(), "pgd": PGD(eps=0.1, steps=2)}})
    left = int(found.stages[1].attacked.sum())
    assert 128 < left < n
    assert made == [128] * 4 + [n - 4 * 128] + [128] * (left // 128) + ([left % 128] if left % 128 else [])


def test_a_cascade_in_parts_is_a_cascade_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = samples(300, (6,))
    model, runs = net("table"), []
    stages: Mapping[str, Attack] = {"noise": Noise(eps=0.1, draws=2), "pgd": PGD(eps=0.15, steps=3, restarts=2)}
    for size in (64, 128, 1024):
        monkeypatch.setattr(cascade, "rows_per_chunk", lambda _shape, size=size: size)
        runs += run_attacks(model, as_samples((x, y)), {"all": stages}, seed=2)
    assert 0 < runs[0].accuracy < 1
    for one, other in pairwise(runs):
        assert torch.equal(one.broken, other.broken)
        assert (one.passes, one.forwards) == (other.passes, other.forwards)


class Failing(nn.Module):
    def __init__(self, fails: Any) -> None:
        super().__init__()
        self.fails = fails

    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(self.fails, Exception):
            return torch.cat([x.detach(), -x.detach()], 1)
        raise self.fails


def test_no_gradient_is_told_from_other_failures() -> None:
    plans = {"standard": {"pgd": build_plan("pgd-2", Ball(0.1))["pgd-2"]}}
    with refused("no-input-gradient", attack="standard"):
        run_attacks(Failing(None), on_a_line(), plans)
    with pytest.raises(RuntimeError, match="out of memory"):
        run_attacks(Failing(RuntimeError("out of memory")), on_a_line(), plans)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_points_may_leave_the_ball_by_rounding_only(norm: str) -> None:
    x, ball, numbers = torch.full((3, 4), 0.5), Ball(0.1, norm), torch.tensor([7, 8, 9])
    step = torch.zeros_like(x)
    step[1, 2] = 0.1
    check_points("mine", ball, x, x + step * (1 + 1e-6), numbers)
    with refused("points-outside-ball", row=8, name="mine", eps=0.1):
        check_points("mine", ball, x, x + step * (1 + 1e-4), numbers)


class Mirror(Processes):
    """Stands for two processes that found the same; notes what is sent to whom."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank, 2)
        self.to_all = self.to_first = 0

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Send to all."""
        self.to_all += len(data)
        return [data, data]

    def collect_bytes(self, data: bytes) -> list[bytes]:
        """Send to the first."""
        self.to_first += len(data)
        return [data, data] if self.is_first else [b"", data]


@pytest.mark.parametrize("rank", [0, 1])
def test_points_are_sent_only_to_who_keeps_them(rank: int) -> None:
    x, y = torch.rand(30, 1000), torch.arange(30) % 3
    own = attack_batch(Natural(), nn.Linear(1000, 3), x, y)
    size = x.numel() * x.element_size()
    kept = {"all": [30, 30], "first": [30, 30] if rank == 0 else [0, 30], "none": [0, 0]}
    for points_to, counts in kept.items():
        processes = Mirror(rank)
        found = share_verdicts(own, processes, cast(PointsTo, points_to))
        assert [0 if verdict is None else len(verdict.x_adv) for verdict in found] == counts
        assert all(verdict is not None and torch.equal(verdict.margin, own.margin) for verdict in found)
        assert (processes.to_all > size, processes.to_first > size) == (points_to == "all", points_to == "first")
