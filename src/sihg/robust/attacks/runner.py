"""Run attacks: check that they can run, then attack all samples, a part at a time.

In a cascade, each attack sees the samples that those before did neither break nor prove to hold.
"""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sihg.core.draw import seeded
from sihg.core.processes import ALONE, Processes
from sihg.errors import InputError
from sihg.robust.attacks.chunk_size import rows_per_chunk
from sihg.robust.attacks.random_models import ONCE, Draws
from sihg.robust.attacks.registry import Plan
from sihg.robust.attacks.search import OnPass, Rows, Search, Verdict, check_points, share_verdicts
from sihg.robust.data.samples import Samples
from sihg.robust.gradients import as_input, compute_logits, device_of, evaluation_mode, inner_mode, is_missing_gradient
from sihg.robust.precision import exact_float32, number_formats
from sihg.robust.threat import Ball
from sihg.robust.waits import reading_once, upload

if TYPE_CHECKING:
    from sihg.robust.attacks.base import Attack

HALF_PRECISION = (torch.float16, torch.bfloat16)
FAST_REMARK = "searched in bfloat16, which can miss breaks that float32 finds: report float32"
SHARE_SEARCHED_AGAIN = 0.1  # of a chunk's rows, in float32, after a search in bfloat16
ROWS_PER_LOOK = 4096  # samples converted to floats at once


@dataclass(eq=False)
class Outcome:
    """The result of an attack per sample; in a cascade, under it and those before."""

    attack: str
    attacked: Tensor  # which samples were attacked
    broken: Tensor  # which samples do not hold; of a random model, where at least half of the votes are wrong
    prediction: Tensor  # at the point found, -1 where not attacked
    margin: Tensor  # at the point found, nan where not attacked
    distance: Tensor  # of the point found from x; inf where it is not broken, nan where not attacked
    passes: int = 0  # forward and backward
    forwards: int = 0  # forward alone
    seconds: float = 0.0
    done: int = 0  # of the samples to attack
    remark: str = ""
    proof: bool = False  # True: the others are proven to hold, and the broken ones may hold
    stages: tuple["Outcome", ...] = ()
    votes: int = 1  # that classified the point found for each sample
    wrong: Tensor | None = None  # with several votes: how many are wrong, of the worst point in a cascade

    @classmethod
    def begin(
        cls, attack: str, broken: Tensor, proven: Tensor | None = None, votes: int = 1, wrong: Tensor | None = None
    ) -> "Outcome":
        """Return the outcome before an attack on the samples that are neither broken yet nor proven to hold."""
        unknown = torch.full(broken.shape, math.nan)
        if votes > 1:
            wrong = torch.zeros(broken.shape, dtype=torch.long) if wrong is None else wrong.clone()
        known = (broken.clone(), torch.full(broken.shape, -1), unknown, unknown.clone())
        left = ~broken if proven is None else ~(broken | proven)
        return cls(attack, left, *known, votes=votes, wrong=wrong)

    def __repr__(self) -> str:
        return f"Outcome({self.attack!r}, accuracy {self.accuracy:.4f} on {len(self.broken)} samples)"

    @property
    def accuracy(self) -> float:
        """The share of samples that are not broken."""
        return int((~self.broken).sum()) / len(self.broken)

    @property
    def mean_accuracy(self) -> float | None:
        """Of a random model: how likely one draw is right, in the mean over samples."""
        return None if self.wrong is None else 1 - int(self.wrong.sum()) / (self.votes * len(self.wrong))

    @property
    def worst_accuracy(self) -> float | None:
        """Of a random model: the share of samples for which every draw is right."""
        return None if self.wrong is None else int((self.wrong == 0).sum()) / len(self.wrong)

    def add(self, numbers: Tensor, verdict: Verdict, seconds: float) -> None:
        """Add what an attack found for the samples of these numbers."""
        self.broken[numbers] = verdict.broken.cpu()
        self.prediction[numbers] = verdict.prediction.cpu()
        self.margin[numbers] = verdict.margin.float().cpu()
        self.distance[numbers] = verdict.distance.where(verdict.broken, math.inf).float().cpu()
        if self.wrong is not None:
            self.wrong[numbers] = torch.maximum(self.wrong[numbers], verdict.wrong.cpu())
        self.passes += verdict.passes
        self.forwards += verdict.forwards
        self.seconds += seconds
        self.done += len(numbers)


@dataclass(frozen=True, eq=False)
class Part:
    """An attack on some samples has ended: its outcome so far, and what it found for these samples."""

    key: str  # of the attack: its name, in a cascade "name: stage"
    outcome: Outcome
    numbers: Tensor  # of the samples; empty before the first part
    verdict: Verdict | None = None  # None before the first part


def run_attacks(
    model: nn.Module,
    samples: Samples,
    plans: Mapping[str, Plan],
    *,
    seed: int = 0,
    precision: str = "float32",
    draws: Draws = ONCE,
    processes: Processes = ALONE,
    on_pass: OnPass | None = None,
) -> list[Outcome]:
    """Carry out each plan on all samples, on the model's device."""
    how: dict[str, Any] = {"seed": seed, "precision": precision, "draws": draws}
    parts = attack_parts(model, samples, plans, **how, processes=processes, on_pass=on_pass)
    return join_outcomes(plans, {part.key: part.outcome for part in parts})


def attack_parts(
    model: nn.Module,
    samples: Samples,
    plans: Mapping[str, Plan],
    *,
    seed: int = 0,
    precision: str = "float32",
    draws: Draws = ONCE,
    known: Mapping[str, Outcome] | None = None,
    processes: Processes = ALONE,
    on_pass: OnPass | None = None,
) -> Iterator[Part]:
    """Carry out each plan and yield after each part, so that the caller can show progress, keep results or stop.

    Args:
        model: The model, which is attacked on its own device.
        samples: The samples. Only those under attack are floats, and on the device.
        plans: For each name the attacks to run, each on the samples that those before did not break.
        seed: The seed of the attacks' draws.
        precision: The number format of the searches of attacks that allow it; verdicts are float32.
        draws: For random models: over how many draws gradients are averaged, and how many classify a point.
        known: Outcomes of an interrupted run by key: attacks go on where they were.
        processes: Who attacks: each takes every `size`-th chunk of samples, and all yield the same parts.
        on_pass: Called after each pass of the model, as `Search` says.
    Yields:
        For each attack a part without samples, then its parts. The outcome is the same object each time.
    """
    for name, plan in plans.items():
        broken = proven = torch.zeros(len(samples), dtype=torch.bool)
        proven_eps, wrong = 0.0, None
        for stage, attack in plan.items():
            key = name if len(plan) == 1 else f"{name}: {stage}"
            if attack.eps > proven_eps:  # a proof holds in its ball and in smaller ones
                proven = torch.zeros_like(proven)
            outcome = (known or {}).get(key) or Outcome.begin(stage, broken, proven, draws.votes, wrong)
            outcome.proof = attack.proves
            yield Part(key, outcome, torch.arange(0))
            yield from _attack(model, samples, attack, outcome, seed, key, precision, draws, processes, on_pass)
            broken, wrong = outcome.broken, outcome.wrong
            if attack.proves:
                proven, proven_eps = outcome.attacked & (outcome.margin > 0), attack.eps


def _attack(
    model: nn.Module,
    samples: Samples,
    attack: "Attack",
    outcome: Outcome,
    seed: int,
    key: str,
    precision: str,
    draws: Draws,
    processes: Processes,
    on_pass: OnPass | None,
) -> Iterator[Part]:
    left = outcome.attacked.nonzero().flatten()[outcome.done :]
    chunks = left.split(rows_per_chunk(samples.shape)) if len(left) else ()
    device = device_of(model)
    reader = samples.reader(chunks[processes.rank :: processes.size])
    for first in range(0, len(chunks), processes.size):
        turn = chunks[first : first + processes.size]
        begin = time.perf_counter()
        own = None
        with processes.together():
            if processes.rank < len(turn):
                numbers = turn[processes.rank]
                x, y = upload(as_input(model, next(reader)), device), upload(samples.y[numbers], device)
                own = _attack_chunk(model, x, y, attack, seed, key, numbers, precision, draws, on_pass)
        verdicts = [own] if processes.size == 1 else share_verdicts(own, processes)
        seconds = (time.perf_counter() - begin) / len(turn)
        for numbers, verdict in zip(turn, verdicts, strict=False):
            assert verdict is not None
            outcome.add(numbers, verdict, seconds)
            remarks = (
                attack.remark(verdict.classes),
                FAST_REMARK if precision != "float32" and attack.searches_fast else "",
            )
            outcome.remark = "; ".join(filter(None, remarks))
            yield Part(key, outcome, numbers, verdict)


def _attack_chunk(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    attack: "Attack",
    seed: int,
    key: str,
    numbers: Tensor,
    precision: str,
    draws: Draws,
    on_pass: OnPass | None,
) -> Verdict:
    how: dict[str, Any] = {"numbers": numbers, "precision": precision, "draws": draws, "on_pass": on_pass}
    try:
        verdict = attack_batch(attack, model, x, y, seed, **how)
    except RuntimeError as error:
        if not is_missing_gradient(error):
            raise
        raise InputError("no-input-gradient", attack=key) from error
    check_points(key, attack.ball, x, verdict.x_adv, numbers)
    return verdict


def join_outcomes(plans: Mapping[str, Plan], outcomes: Mapping[str, Outcome]) -> list[Outcome]:
    """Return one outcome for each plan, made of those of its stages."""
    joined = []
    for name, plan in plans.items():
        stages = [outcomes[name if len(plan) == 1 else f"{name}: {stage}"] for stage in plan]
        joined.append(stages[0] if len(stages) == 1 else _join_stages(name, stages))
    return joined


def _join_stages(name: str, stages: list[Outcome]) -> Outcome:
    """Return a cascade as one attack: each sample at the point that broke it, or at that of smallest margin."""
    prediction, margin, distance = (t.clone() for t in (stages[0].prediction, stages[0].margin, stages[0].distance))
    for stage in (stage for stage in stages[1:] if not stage.proof):
        better = stage.attacked & (stage.broken | ~(stage.margin >= margin))
        prediction[better], margin[better] = stage.prediction[better], stage.margin[better]
        distance[better] = stage.distance[better]
    return Outcome(
        name,
        stages[0].attacked,
        stages[-1].broken,
        prediction,
        margin,
        distance,
        sum(stage.passes for stage in stages),
        sum(stage.forwards for stage in stages),
        sum(stage.seconds for stage in stages),
        len(prediction),
        "; ".join(f"{stage.attack}: {stage.remark}" for stage in stages if stage.remark),
        stages[-1].proof,
        tuple(stages),
        stages[-1].votes,
        stages[-1].wrong,
    )


def attack_batch(
    attack: "Attack",
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    seed: int = 0,
    *,
    numbers: Tensor | None = None,
    precision: str = "float32",
    draws: Draws = ONCE,
    on_pass: OnPass | None = None,
) -> Verdict:
    """Attack every row of x; `numbers` are those of its rows in a larger set, which decide the draws.

    With `precision` bfloat16, attacks that allow it search in that format, and a float32 pass at the point found makes
    each verdict. A random model draws from torch's global generators, which are seeded for each chunk of rows and
    are as before afterwards.
    """
    check_module(model)
    numbers = torch.arange(len(x)) if numbers is None else numbers
    check_batch(x, y, numbers)
    first_numbers, numbers = numbers[:: rows_per_chunk(x.shape[1:])].tolist(), upload(numbers, x.device)
    x, y = x.detach(), y.long()
    size, found = rows_per_chunk(x.shape[1:]), []
    fast = precision == "bfloat16" and attack.searches_fast
    judged = draws.votes > 1 and not attack.proves  # by votes
    formats = number_formats(model, ascent=precision) if fast else exact_float32(x.device.type)
    with formats, inner_mode(model, "running") if attack.input_gradients_only else evaluation_mode(model):
        for done in range(0, max(len(x), 1), size):
            part = slice(done, done + size)
            place = torch.arange(len(x[part]), device=x.device)
            rows = Rows(x[part], y[part], attack.ball.around(x[part]), numbers[part], place)
            found.append(attack.search_type(model, rows, attack.ball, fast=fast, draws=draws, on_pass=on_pass))
            if len(rows):
                drawn = seeded(seed, f"model under {type(attack).__name__}", 0, first_numbers[done // size], x.device)
                with reading_once(), drawn:
                    attack.search(found[-1], seed)
                    if fast:
                        found[-1].judge()
                        _search_closest_again(attack, found[-1], seed)
                    if judged:
                        found[-1].judge()
    x_adv = attack.ball.clip(torch.cat([search.x_adv for search in found]))
    return Verdict(
        x_adv,
        torch.cat([search.broken for search in found]),
        torch.cat([search.prediction for search in found]),
        torch.cat([search.margin for search in found]),
        attack.ball.lengths(x_adv - x),
        sum(search.passes for search in found),
        sum(search.forwards for search in found),
        max(search.classes for search in found),
        torch.cat([search.wrong if judged else draws.votes * search.broken.long() for search in found]),
    )


def _search_closest_again(attack: "Attack", search: Search, seed: int) -> None:
    """Attack again, in float32 from the same starts, the unbroken rows of smallest margin: a tenth of all rows.

    Nearly all breaks that a search in bfloat16 misses are among them (benchmarks/precision_quality.py).
    """
    closest = search.closest_rows(math.ceil(SHARE_SEARCHED_AGAIN * len(search.rows)))
    if len(closest):
        again = search.nested(search.model, closest.alone())
        attack.search(again, seed)
        search.take_over(again, closest)


def check_module(model: object) -> None:
    """Raise InputError unless the model is a torch.nn.Module, which has a mode, a state and a device."""
    if not isinstance(model, nn.Module):
        raise InputError("not-a-module", type=type(model).__name__)


def check_batch(x: Tensor, y: Tensor, numbers: Tensor) -> None:
    """Raise InputError unless x is finite floats (n, ...) and y is n labels; rows are named by their numbers."""
    if x.dim() < 2 or not math.prod(x.shape[1:]):
        raise InputError("batch-shape", shape=tuple(x.shape))
    if not x.is_floating_point():
        raise InputError("batch-type", dtype=x.dtype)
    if y.shape != x.shape[:1] or y.is_floating_point() or y.dtype == torch.bool:
        raise InputError("labels", shape=tuple(y.shape), dtype=y.dtype, count=len(x))
    if numbers.shape != x.shape[:1]:
        raise InputError("row-numbers", shape=tuple(numbers.shape), count=len(x))
    y = y.long()
    if bool((y < 0).any()):
        row = int((y < 0).nonzero()[0])
        raise InputError("label-range", row=int(numbers[row]), y=int(y[row]))
    if not bool(torch.isfinite(x).all()):
        row = int(numbers[int((~torch.isfinite(x.flatten(1)).all(1)).nonzero()[0])])
        raise InputError("samples-not-finite", row=row)


def load_rows(model: nn.Module, samples: Samples, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
    """Return these samples as floats of the model's type, and their labels, on the device of the model."""
    device = device_of(model)
    return as_input(model, samples.floats(rows)).to(device), samples.y[rows].to(device)


def check_range(samples: Samples, ball: Ball) -> None:
    """Raise InputError if eps is in another unit than the data, or samples lie outside the bounds.

    Samples that are not in memory are checked when they are read; a few of them are looked at now.
    """
    ball.check_scale(samples.probe())
    for first in range(0, len(samples) if ball.bounds is not None and samples.lazy is None else 0, ROWS_PER_LOOK):
        ball.around(samples.floats(slice(first, first + ROWS_PER_LOOK)))


def check_plans(model: nn.Module, samples: Samples, plans: Mapping[str, Plan]) -> None:
    """Raise InputError if one of the attacks cannot attack this model."""
    x, _ = load_rows(model, samples, slice(0, 1))
    for attack in (attack for plan in plans.values() for attack in plan.values()):
        attack.check(model, x)


def check_model(model: nn.Module, samples: Samples, *, as_stored: bool = False) -> int:
    """Return how many logits the model has; raise InputError unless it maps a sample to one for each class.

    With `as_stored`, the sample is not converted to the type of the weights: trainings take it as it is.
    """
    x = samples.floats(slice(0, 1)).to(device_of(model)) if as_stored else load_rows(model, samples, slice(0, 1))[0]
    x = x.clone()
    try:
        out = compute_logits(model, x)
    except InputError:
        raise
    except Exception as error:
        raise _refused_samples(model, samples, x, error) from error
    if not x.is_inference() and x._version:  # the version counts changes in place
        raise InputError("model-changes-input")
    name, classes = samples.name, len(samples.classes)
    if not isinstance(out, Tensor) or out.dim() != 2 or len(out) != 1:
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise InputError("output-shape", name=name, classes=classes, shape=shape)
    if not out.is_floating_point():
        raise InputError("logits-dtype", dtype=out.dtype)
    if out.shape[1] < classes:
        row, label = int(samples.y.argmax()), int(samples.y.max())
        raise InputError("too-few-outputs", name=name, classes=classes, row=row, label=label, outputs=out.shape[1])
    return int(out.shape[1])


def _refused_samples(model: nn.Module, samples: Samples, x: Tensor, error: Exception) -> InputError:
    why = (str(error) or repr(error)).split("\n")[0]
    half = next((value.dtype for value in model.parameters() if value.dtype in HALF_PRECISION), None)
    remedy = "give it data of its size and type" if half is None else f"it is {half}, use model.float()"
    return InputError("model-refuses-samples", shape=samples.shape, dtype=x.dtype, why=why, remedy=remedy)


def check_device(name: str) -> str:
    """Return the name of a device, or raise InputError if torch cannot use it here."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise InputError("device-unavailable", name=name, why=str(error).split("\n")[0]) from error
    return name
