"""Progress moves with every pass, says what the outcomes say in the end, and no attack takes more than it announces."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sihg
from sihg.robust.attacks import registry, runner
from sihg.robust.attacks.outcome import Outcome
from sihg.robust.attacks.registry import build_attack, build_plan
from sihg.robust.attacks.runner import attack_batch
from sihg.robust.data.samples import Samples
from sihg.robust.evaluation.progress import EvaluationProgress, ProgressTracker
from sihg.robust.threat import Ball
from tests.refused import refused
from tests.robust.planted import EPS, digits, healthy

SAMPLES, CHUNK = 150, 64
NAMES = [  # a short attack of each kind
    *("-".join([kind, *("4", "2")[: len(counts)]]) for kind, (_, _, _, counts) in registry._KINDS.items()),
    *("apgd-t-7", "transfer:other"),
]
NORMS = {"certified": ("linf",), "cw": ("l2",), "deepfool": ("linf", "l2")}  # of attacks that have not all
ENDS_EARLY = ("deepfool",)  # also at points outside the ball


class Counted(nn.Module):
    """A model that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.calls = healthy(), 0

    def forward(self, x: Tensor) -> Tensor:
        """Count the call."""
        self.calls += 1
        return self.model(x)  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "rows_per_chunk", lambda _shape: CHUNK)
    monkeypatch.setattr("sihg.robust.evaluation.progress.rows_per_chunk", lambda _shape: CHUNK)


def small_digits() -> tuple[Tensor, Tensor]:
    samples = digits()
    return samples.floats(slice(SAMPLES)), samples.y[:SAMPLES]


def stages_of(events: list[EvaluationProgress]) -> dict[str, list[EvaluationProgress]]:
    stages: dict[str, list[EvaluationProgress]] = {}
    for event in events:
        stages.setdefault(event.stage, []).append(event)
    return stages


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_every_pass_is_told_and_the_counts_end_at_those_of_the_outcomes(precision: str) -> None:
    model, events = Counted(), list[EvaluationProgress]()
    calls: list[int] = []

    def progress(event: EvaluationProgress) -> None:
        events.append(event)
        calls.append(model.calls)

    attacks = "natural,pgd-5-2,apgd-t-3,square-8,noise-2"
    found = sihg.evaluate(model, small_digits(), eps=EPS, attacks=attacks, precision=precision, progress=progress)
    attacking = [(event, n) for event, n in zip(events, calls, strict=True) if not event.stage.startswith("checks")]
    steps = {later[1] - earlier[1] for earlier, later in pairwise(attacking)}
    assert steps == {0, 1}  # never two passes between two events
    stages = stages_of(events)
    for outcome in found.outcomes:
        told = stages[outcome.attack]
        assert (told[-1].passes, told[-1].forwards) == (outcome.passes, outcome.forwards)
        assert told[-1].accuracy == outcome.accuracy
        assert (told[-1].done, told[-1].total, told[-1].left) == (SAMPLES, SAMPLES, 0)
        for before, after in pairwise(told):
            assert before.accuracy >= after.accuracy
            assert before.left >= after.left
            assert before.passes + before.forwards <= after.passes + after.forwards
        assert told[-1].stage_left == 0
    assert [event.work for event in events] == sorted(event.work for event in events)
    assert attacking[-1][0].work_left == 0
    counted = sum(outcome.passes + outcome.forwards / 3 for outcome in found.outcomes)
    assert math.isclose(attacking[-1][0].work, counted)


def test_a_cascade_tells_of_the_samples_that_are_left_for_each_stage() -> None:
    events: list[EvaluationProgress] = []
    found = sihg.robust_curve(
        healthy(), small_digits(), radii=[0, EPS / 2, EPS], attacks="pgd-3", progress=events.append
    )
    stages = stages_of(events)
    assert [name for name in stages if not name.startswith("checks")] == [
        f"pgd-3: {stage.attack}" for stage in found.outcomes[0].stages
    ]
    accuracies = [event.accuracy for event in events]
    assert accuracies == sorted(accuracies, reverse=True)
    assert tuple(told[-1].accuracy for name, told in stages.items() if "pgd" in name) == found.accuracy("pgd-3")


def test_samples_with_a_point_stay_in_a_search_for_the_nearest() -> None:
    events: list[EvaluationProgress] = []
    found = sihg.minimum_eps(healthy(), small_digits(), max_eps=0.5, attacks="fab-t-5", progress=events.append)
    told = stages_of(events)["fab-t-5"]
    part = next(event.done for event in told if event.done)  # its samples have a misclassified point by the end
    last = [event for event in told if not event.done][-1]
    assert last.left == SAMPLES - int((found.distances[:part] == 0).sum())
    assert found.accuracy(0.5) == 0
    half = told[len(told) // 2]
    assert half.work_left is not None
    assert 0.5 < half.work_left / (told[-1].work - half.work) < 2


def test_checks_tell_of_their_passes() -> None:
    events: list[EvaluationProgress] = []
    sihg.evaluate(healthy(), small_digits(), eps=EPS, attacks="natural,pgd-3", progress=events.append)
    stages = stages_of(events)
    assert events[0].stage == "checks: model"
    for name in ("one step", "radius", "steps", "runs"):
        told = [event.passes + event.forwards for event in stages[f"checks: {name}"]]
        assert told == sorted(set(told))
        assert told[-1] > 0
        assert stages[f"checks: {name}"][-1].work_left is None


def test_what_is_left_is_estimated_from_the_samples_so_far() -> None:
    """A quarter of the first part breaks, so the parts to come are expected to cost as it, and to lose a quarter."""
    events: list[EvaluationProgress] = []
    ball, x = Ball(0.1, bounds=None), torch.zeros(3 * CHUNK, 1, 8, 8)
    plans = {"pgd": build_plan("pgd-9", ball), "noise": build_plan("noise-4", ball)}
    samples = Samples(x, torch.zeros(len(x), dtype=torch.long), ("0", "1"), "planted")
    tracker = ProgressTracker(events.append, plans, samples, 2, "float32")
    outcome = Outcome.begin("pgd-9", torch.zeros(len(x), dtype=torch.bool))
    tracker.show(runner.Part("pgd", outcome, torch.arange(0)))
    most, later = CHUNK * (9 + 1 / 3), CHUNK * 9 / 3
    assert math.isclose(events[-1].work_left or 0, 3 * (most + later))
    tracker.on_pass(CHUNK, 0, 0)
    tracker.on_pass(CHUNK, 0, 16)
    held = CHUNK - 16
    now = held * (7 + 1 / 3)
    assert (events[-1].passes, events[-1].left) == (2 * CHUNK, 2 * CHUNK + held)
    assert math.isclose(events[-1].stage_left or 0, now + 2 * (2 * CHUNK + now))
    assert math.isclose(events[-1].work_left or 0, now + 2 * (2 * CHUNK + now) + 3 * held * 9 / 3)


def other_model(_run: str) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


@pytest.mark.parametrize("eps", [EPS, 1e-4])  # in the smallest ball hardly anything breaks, and all passes are made
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("name", NAMES)
def test_no_attack_takes_more_passes_than_it_announces(name: str, norm: str, eps: float) -> None:
    kind = name.partition("-")[0]
    if norm not in NORMS.get(kind, (norm,)):
        pytest.skip(f"{kind} is for {NORMS[kind]}")
    attack = build_attack(name, Ball(eps, norm), source=other_model)
    x, y = small_digits()
    for classes in (10, 3):
        model = healthy() if classes == 10 else nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
        most, verdict = attack.max_passes(classes), attack.run(model, x, y % classes)
        assert most is not None
        passes = verdict.passes + verdict.forwards / 3
        assert passes <= most * len(x) * (1 + 1e-12)
        if eps < EPS and kind not in ENDS_EARLY and (kind, norm) != ("square", "linf"):  # which may skip queries
            assert passes >= most * int((~verdict.broken).sum()) * (1 - 1e-12)  # and it announces no more


def test_an_attack_of_ones_own_may_announce_nothing() -> None:
    events: list[EvaluationProgress] = []
    attacks: Any = {"natural": "natural", "mine": lambda x, _y: x}
    sihg.evaluate(healthy(), small_digits(), eps=EPS, attacks=attacks, progress=events.append)
    for stage, told in stages_of(events).items():
        assert all(event.work_left is None for event in told)
        assert all((event.stage_left is None) == (stage != "natural") for event in told)
    shares = [event.stage_share for event in events if event.stage == "mine"]
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_a_resumed_part_is_told_and_is_no_work_of_now(tmp_path: Any) -> None:
    settings: dict[str, Any] = {"eps": EPS, "attacks": "pgd-3", "resume": tmp_path}

    def stop(event: EvaluationProgress) -> None:
        if event.done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sihg.evaluate(healthy(), small_digits(), **settings, progress=stop)
    events: list[EvaluationProgress] = []
    found = sihg.evaluate(healthy(), small_digits(), **settings, progress=events.append)
    told = stages_of(events)["pgd-3"]
    assert (told[0].done, told[0].resumed, told[0].work) == (CHUNK, CHUNK, 0)
    assert told[0].passes > 0
    assert told[-1].passes == found["pgd-3"].passes
    new = told[-1].passes - told[0].passes + (told[-1].forwards - told[0].forwards) / 3
    assert math.isclose(told[-1].work, new)


@pytest.mark.parametrize("progress", [lambda _attack, _done, _total: None, 3, lambda: None])
def test_the_older_form_is_refused_with_the_new_one(progress: Callable[..., object]) -> None:
    with refused("progress-form"):
        sihg.evaluate(healthy(), small_digits(), eps=EPS, attacks="natural", progress=progress)


def test_nested_searches_are_heard() -> None:
    heard: list[tuple[int, int, int]] = []
    x, y = small_digits()
    for name, precision in (("transfer:other", "float32"), ("pgd-3", "bfloat16")):
        heard.clear()
        attack = build_attack(name, Ball(EPS), source=other_model)
        verdict = attack_batch(
            attack, healthy(), x[:CHUNK], y[:CHUNK], precision=precision, on_pass=lambda *new: heard.append(new)
        )
        assert sum(passes for passes, _, _ in heard) == verdict.passes
        assert sum(forwards for _, forwards, _ in heard) == verdict.forwards
        assert heard[-1][2] <= int(verdict.broken.sum())
