"""Measure accuracy under attacks, at one radius or at several, and check whether the result can be trusted."""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from sihg.core.draw import seeded
from sihg.core.processes import ALONE, Processes
from sihg.core.threads import use_threads
from sihg.parse import Number, parse_number
from sihg.robust.attacks.base import Natural
from sihg.robust.attacks.chunk_size import limit_rows
from sihg.robust.attacks.input_checks import check_model, check_plans, check_range, load_rows
from sihg.robust.attacks.outcome import Outcome, join_outcomes
from sihg.robust.attacks.random_models import VOTES, Draws
from sihg.robust.attacks.registry import Attacks, check_radii
from sihg.robust.attacks.replaced_gradients import (
    Bpda,
    check_stand_ins,
    replace_gradients,
)
from sihg.robust.attacks.runner import attack_parts
from sihg.robust.data.samples import open_samples
from sihg.robust.evaluation.coverage import inspect_coverage, inspect_minimum_coverage, is_decided
from sihg.robust.evaluation.diagnostics import (
    ModelState,
    check_full_split,
    inspect_model,
    inspect_outcomes,
    passes_differ,
)
from sihg.robust.evaluation.findings import Evaluation, Findings, RadiusCurve
from sihg.robust.evaluation.masking_module import MAX_SAMPLES, add_advice
from sihg.robust.evaluation.normalisation import check_normalisation
from sihg.robust.evaluation.partial import PartialResults
from sihg.robust.evaluation.progress import Progress, ProgressTracker, check_progress
from sihg.robust.evaluation.reattack import reattack_checks
from sihg.robust.evaluation.stored import find_stored, fingerprint
from sihg.robust.evaluation.task import Task, make_task
from sihg.robust.gradients import device_of, evaluation_mode
from sihg.robust.threat import Ball, Bounds
from sihg.store.run_folder import describe_environment


def evaluate(
    model: nn.Module,
    data: object,
    *,
    eps: Number,
    norm: str = "linf",
    bounds: Bounds = (0.0, 1.0),
    attacks: Attacks = ("natural", "standard"),
    targets: Tensor | int | None = None,
    samples: int | None = None,
    seed: int = 0,
    last_iterate: bool = False,
    precision: str = "float32",
    bpda: Bpda | None = None,
    eot: int = 1,
    votes: int | None = None,
    trained_with: str | None = None,
    points: bool = False,
    resume: str | Path | None = None,
    workers: int = 0,
    batch_size: int | None = None,
    threads: int = 1,
    progress: Progress | None = None,
    processes: Processes = ALONE,
) -> Evaluation:
    """Measure the accuracy of a model under attacks, and check whether the result can be trusted.

    Args:
        model: A module that maps (n, ...) to logits (n, classes), alone or in a tuple, a dict or an object with
            `.logits`. It stays on its device and keeps its modes.
        data: A pair (x, y) of tensors or arrays, a torch Dataset or DataLoader, or Samples; uint8 values stand for
            value / 255. Between float32 and float64, x is converted to what the model has.
        eps: The radius of the ball, such as 0.1 or "8/255".
        norm: The norm of the ball, "linf", "l2" or "l1"; also as AutoAttack writes it, "Linf".
        bounds: The range of x + delta, two numbers or tensors; None for no bounds.
        attacks: Names (see `sihg evaluate --help`), or a dict of names, of attacks and of functions (x, y) -> x_adv. A
            dict in the dict is a cascade: each of its attacks sees the samples that those before did not break.
        targets: The class that each sample shall get, a tensor or one class for all, whose own samples are left out.
            Then accuracy is the share of samples that are not predicted as their target.
        samples: Evaluate so many samples, each class in proportion (default: all).
        seed: The seed of the subset and of the attacks.
        last_iterate: Whether fgsm, mi-fgsm and pgd count only the end of each restart, not any iterate.
        precision: The number format in which attacks search: float32, bfloat16, or auto (measured first).
            Verdicts are made in float32.
        bpda: Other gradients for modules whose own gradient lies, such as {"defence": "identity"}: see
            `sihg.robust.attacks.replace_gradients`.
        eot: For random models: gradients and losses are means over so many draws; 20 is usual.
        votes: How many draws classify a point; it is broken if at least half are wrong (default: 10 if two passes
            differ, else 1).
        trained_with: The method the model was trained with, such as "pgd" (default: known of a model of `fit` or `load`
            that still has its weights).
        points: Whether to keep the adversarial examples, `evaluation.points`.
        resume: A folder: return the same evaluation if it was saved there, or continue it if it was interrupted; and
            keep partial results there until `save`.
        workers: Processes that read a torch Dataset, if its items do not fit in memory or are random.
        batch_size: The most samples to attack at once (default: as many as are fast). Draws do not depend on it, so
            results can differ by rounding only.
        threads: The threads to compute with; the last digits of results depend on it.
        progress: Receives an EvaluationProgress after each pass of the model, and before and after each part.
        processes: From `join_processes`: all of them call this with the same arguments, and share the attacks.
    Returns:
        The Evaluation: accuracies, outcomes per sample, and checks.
    Raises:
        InputError: An argument, the model or the data cannot be used, or an attack returns an invalid point.
    Example:
        >>> import torch
        >>> data = 0.9 * torch.eye(4), torch.arange(4)
        >>> evaluate(nn.Flatten(), data, eps=0.6, attacks="natural,fgsm").accuracy
        0.0
    """
    ball = Ball(parse_number(eps, "eps"), norm, bounds)
    whole = open_samples(data)
    arguments = (model, whole, attacks, ball, (), samples, seed, trained_with)
    how: dict[str, Any] = {"last_iterate": last_iterate, "precision": precision, "bpda": bpda, "eot": eot}
    how |= {"votes": votes, "workers": workers, "batch_size": batch_size, "processes": processes}
    with use_threads(threads):
        task = make_task(*arguments, targets=targets, **how)
        result = resume_task(task, resume, points, progress, processes)
    assert isinstance(result, Evaluation)
    return result


def robust_curve(
    model: nn.Module,
    data: object,
    *,
    radii: Sequence[Number],
    norm: str = "linf",
    bounds: Bounds = (0.0, 1.0),
    attacks: str | Sequence[str] = ("pgd-20",),
    samples: int | None = None,
    seed: int = 0,
    last_iterate: bool = False,
    precision: str = "float32",
    bpda: Bpda | None = None,
    eot: int = 1,
    votes: int | None = None,
    trained_with: str | None = None,
    points: bool = False,
    resume: str | Path | None = None,
    workers: int = 0,
    batch_size: int | None = None,
    threads: int = 1,
    progress: Progress | None = None,
    processes: Processes = ALONE,
) -> RadiusCurve:
    """Measure the accuracy of a model under attacks at growing radii.

    A larger ball contains a smaller one, so each radius attacks only the samples that hold at the smaller ones.
    All arguments but these two are those of `evaluate`.

    Args:
        radii: Two or more radii that grow, such as [0, "4/255", "8/255"].
        attacks: Names of attacks.
    Returns:
        The RadiusCurve: accuracies per attack and radius, and checks.
    Raises:
        InputError: As in `evaluate`, or the radii do not grow.
    Example:
        >>> import torch
        >>> data = 0.9 * torch.eye(4), torch.arange(4)
        >>> robust_curve(nn.Flatten(), data, radii=[0, 0.6], attacks="fgsm").accuracy("fgsm")
        (1.0, 0.0)
    """
    eps = check_radii(radii)
    ball, whole = Ball(eps[-1], norm, bounds), open_samples(data)
    arguments = (model, whole, attacks, ball, eps, samples, seed, trained_with)
    how: dict[str, Any] = {"last_iterate": last_iterate, "precision": precision, "bpda": bpda, "eot": eot}
    how |= {"votes": votes, "workers": workers, "batch_size": batch_size, "processes": processes}
    with use_threads(threads):
        task = make_task(*arguments, **how)
        result = resume_task(task, resume, points, progress, processes)
    assert isinstance(result, RadiusCurve)
    return result


def resume_task(
    task: Task, folder: str | Path | None, points: bool, progress: Progress | None, processes: Processes
) -> Findings:
    """Return the evaluation that a folder holds, or make it, continuing what was interrupted there."""
    home = None if folder is None else Path(folder) / "evaluation"
    stored = None if home is None else find_stored(task, home, points=points, processes=processes)
    if stored is not None:
        return stored
    return run_task(task, task.open_partial(home, points=points, processes=processes), progress, processes)


def run_task(
    task: Task,
    partial: PartialResults | None = None,
    progress: Progress | None = None,
    processes: Processes = ALONE,
) -> Findings:
    """Attack and check. If this is interrupted, the partial results are written."""
    model, samples, seed = task.model, task.samples, task.header.seed
    asked = fingerprint(task)
    check_progress(progress)
    begin = time.perf_counter()
    with (
        partial or nullcontext(),
        seeded(seed, "evaluation", device=device_of(model)),
        evaluation_mode(model),
        replace_gradients(model, task.bpda),
        limit_rows(task.batch_size),
    ):
        state = ModelState(model)
        outputs = check_model(model, samples)
        task = _choose_votes(task, processes)
        draws = Draws(task.header.eot, task.header.votes)
        attacks = [attack for plan in task.plans.values() for attack in plan.values()]
        attacked = bool(task.radii) or any(not isinstance(attack, Natural) for attack in attacks)
        check_range(samples, task.ball if attacked else Ball(0.0, task.ball.norm, task.ball.bounds))
        check_plans(model, samples, task.plans)
        check_stand_ins(model, task.bpda, load_rows(model, samples, slice(0, 1))[0])
        about = (task.plans, samples, outputs, task.header.precision, draws)
        tracker = progress and ProgressTracker(progress, *about)
        if tracker is not None:
            tracker.begin_check("model")
        checks = list(inspect_model(model, samples, task.ball, seed, attacked=attacked, draws=draws))
        checks.append(check_normalisation(model, samples, seed))
        spent = time.perf_counter() - begin
        outcomes = _attack(task, partial, tracker, processes)
        begin = time.perf_counter()
        if task.header.target or task.kind is not Evaluation:
            checks.append(check_full_split(len(samples), task.header.of))
        else:
            checks += inspect_outcomes(samples, task.header.of, task.plans, outcomes)
            how: dict[str, Any] = {"draws": draws, "listen": None if tracker is None else tracker.begin_check}
            checks += reattack_checks(model, samples, task.ball, task.plans, outcomes, seed, **how)
        if task.kind.keeps_nearest:
            checks += inspect_minimum_coverage(task.plans, outcomes)
        elif not task.header.target:
            masked = any(check.name == "gradients" and check.result == "warning" for check in checks)
            decided = not task.radii and (task.ball.eps == 0 or is_decided(outcomes))
            checks += inspect_coverage(task.plans, task.trained_with, masked=masked, decided=decided)
        checks = add_advice(checks, model, load_rows(model, samples, slice(MAX_SAMPLES))[0], task.ball, seed)
        checks.append(state.check())
    seconds = spent + time.perf_counter() - begin
    return task.kind(
        *(task.name, task.header, task.ball, task.index, samples.y, tuple(outcomes), tuple(checks), seconds),
        environment=describe_environment(threads=torch.get_num_threads()),
        radii=task.radii,
        partial=partial,
        fingerprint=asked,
    )


def _choose_votes(task: Task, processes: Processes) -> Task:
    """Return the task with as many votes as asked for; by default several if the model is random."""
    votes = task.votes
    if votes is None:
        is_random = passes_differ(task.model, task.samples, task.header.seed)
        votes = VOTES if processes.gather(is_random)[0] else 1
    return replace(task, header=msgspec.structs.replace(task.header, votes=votes))


def _attack(
    task: Task, partial: PartialResults | None, tracker: ProgressTracker | None, processes: Processes
) -> list[Outcome]:
    known = None if partial is None else partial.known()
    outcomes: dict[str, Outcome] = {}
    parts = attack_parts(
        task.model,
        task.samples,
        task.plans,
        seed=task.header.seed,
        precision=task.header.precision,
        draws=Draws(task.header.eot, task.header.votes),
        known=known,
        processes=processes,
        on_pass=None if tracker is None else tracker.on_pass,
        points_to="none" if partial is None else partial.points_to,
    )
    for part in parts:
        outcomes[part.key] = part.outcome
        if partial is not None:
            partial.keep(part)
        if tracker is not None:
            tracker.show(part)
    return join_outcomes(task.plans, outcomes)
