"""Run attacks on all samples, a part at a time.

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
from sihg.robust.attacks.attacked_rows import Rows
from sihg.robust.attacks.chunk_size import rows_per_chunk
from sihg.robust.attacks.input_checks import check_batch, check_module
from sihg.robust.attacks.outcome import Outcome, join_outcomes
from sihg.robust.attacks.output_checks import check_points
from sihg.robust.attacks.random_models import ONCE, Draws
from sihg.robust.attacks.registry import Plan
from sihg.robust.attacks.search import OnPass, Search
from sihg.robust.attacks.verdict import PointsTo, Verdict, share_verdicts
from sihg.robust.data.samples import Samples
from sihg.robust.gradients import as_input, device_of, evaluation_mode, inner_mode, is_missing_gradient
from sihg.robust.precision import exact_float32, number_formats
from sihg.robust.waits import reading_once, upload

if TYPE_CHECKING:
    from sihg.robust.attacks.base import Attack

FAST_REMARK = "searched in bfloat16, which can miss breaks that float32 finds: report float32"
SHARE_SEARCHED_AGAIN = 0.1  # of a chunk's rows, in float32, after a search in bfloat16


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
    how: dict[str, Any] = {"seed": seed, "precision": precision, "draws": draws, "points_to": "none"}
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
    points_to: PointsTo = "all",
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
        points_to: Which processes get the points that others have found: those that keep them.
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
            yield from _attack(
                model, samples, attack, outcome, seed, key, precision, draws, processes, on_pass, points_to
            )
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
    points_to: PointsTo,
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
        verdicts = [own] if processes.size == 1 else share_verdicts(own, processes, points_to)
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
