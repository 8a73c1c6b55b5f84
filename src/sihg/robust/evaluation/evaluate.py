"""Measure accuracy under attacks, at one radius or at several, and check whether the result can be trusted."""

import hashlib
import io
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from sihg.errors import InputError
from sihg.parse import Number, parse_number
from sihg.robust.attacks.base import check_module
from sihg.robust.attacks.no_attack import Natural
from sihg.robust.attacks.preflight import check_model, check_plans, check_range
from sihg.robust.attacks.registry import Plan
from sihg.robust.attacks.runner import Outcome, attack_parts, device_of, join_outcomes
from sihg.robust.attacks.transfer import Transfer
from sihg.robust.attacks.user_function import FunctionAttack
from sihg.robust.data.samples import Samples, as_samples, stratified_subset
from sihg.robust.evaluation.diagnostics import (
    ModelState,
    check_full_split,
    check_other_attacks,
    inspect_model,
    inspect_outcomes,
)
from sihg.robust.evaluation.partial import PartialResults
from sihg.robust.evaluation.plans import Attacks, check_radii, plan_attacks, plan_curve
from sihg.robust.evaluation.reattack import reattack_checks
from sihg.robust.evaluation.stored import (
    arrays_per_sample,
    attack_rows,
    curve_rows,
    record_name,
    sha256_of_samples,
    sha256_of_tensors,
)
from sihg.robust.gradients import evaluation_mode
from sihg.robust.threat import Ball, Bounds
from sihg.store.environment import describe_environment
from sihg.store.files import write_arrays, write_bytes
from sihg.store.schema import (
    AttackRow,
    Check,
    CurveRecord,
    CurveRow,
    EvaluationHeader,
    EvaluationRecord,
    Json,
    count_results,
    write_record,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Progress = Callable[[str, int, int], object]  # receives an attack, how many samples are done, and of how many


@dataclass(frozen=True, eq=False)
class Task:
    """What to evaluate: a model on samples under attacks, and how the record is named."""

    model: nn.Module
    samples: Samples
    index: Tensor  # of each sample in its split
    ball: Ball  # of a curve: the largest
    plans: Mapping[str, Plan]
    header: EvaluationHeader
    name: str  # of the record
    trained_with: str | None = None  # the method, if known
    radii: tuple[float, ...] = ()  # of a curve

    def partial_results(self, folder: Path | None, *, points: bool = False) -> PartialResults | None:
        """Open the partial results in a folder, or in memory if only points are wanted."""
        if folder is None and not points:
            return None
        identity = {} if folder is None else self._identity()
        return PartialResults(folder, self.name, identity, points=points)

    def _identity(self) -> dict[str, Json]:
        attacks = [attack for plan in self.plans.values() for attack in plan.values()]
        if own := [attack.name for attack in attacks if isinstance(attack, FunctionAttack)]:
            raise InputError(
                f"{own[0]} is a function, and a changed function cannot be recognised: evaluate it without resume",
                code="resume-function",
                attack=own[0],
            )
        bounds = {str(i): torch.as_tensor(bound) for i, bound in enumerate(self.ball.bounds or ())}
        model = f"{type(self.model).__module__} {self.model!r}"
        return {
            **msgspec.to_builtins(self.header),
            "weights": "",  # the folder may have moved
            "eps": self.ball.eps,
            "radii": list(self.radii),
            "bounds": sha256_of_tensors(bounds),
            "attacks": {name: {stage: repr(attack) for stage, attack in p.items()} for name, p in self.plans.items()},
            "sources": [sha256_of_model(attack.source) for attack in attacks if isinstance(attack, Transfer)],
            "contents": sha256_of_samples(self.samples),
            "model": hashlib.sha256(model.encode()).hexdigest(),
            "version": describe_environment().sihg,
        }


@dataclass(frozen=True, eq=False, repr=False)
class Findings:
    """What the attacks found, and what the checks say about it. Evaluation and RadiusCurve share this."""

    task: Task
    outcomes: tuple[Outcome, ...]
    checks: tuple[Check, ...]
    checks_seconds: float
    partial: PartialResults | None = None

    @property
    def name(self) -> str:
        """The name of the record's files."""
        return self.task.name

    @property
    def ball(self) -> Ball:
        """The ball of the attacks; of a curve, the largest."""
        return self.task.ball

    @property
    def points(self) -> Tensor | None:
        """The adversarial examples, one per sample, if `points=True` was asked for.

        Each is the point of the first attack that broke the sample, else that of the smallest margin.
        """
        return None if self.partial is None else self.partial.points

    @property
    def errors(self) -> list[Check]:
        """Checks that say that the accuracies are wrong."""
        return [check for check in self.checks if check.result == "error"]

    @property
    def warnings(self) -> list[Check]:
        """Checks that say that the accuracies may mislead."""
        return [check for check in self.checks if check.result == "warning"]

    def __getitem__(self, attack: str) -> Outcome:
        """Return the outcome of one attack."""
        for outcome in self.outcomes:
            if outcome.attack == attack:
                return outcome
        names = [outcome.attack for outcome in self.outcomes]
        raise InputError(
            f"{attack!r} was not run: choose from {', '.join(names)}", code="attack-not-run", attack=attack
        )

    @property
    def record(self) -> EvaluationRecord | CurveRecord:
        """What NAME.json holds."""
        raise NotImplementedError

    def save(self, folder: str | Path, *, name: str | None = None) -> Path:
        """Write the record that `sihg report FOLDER` shows.

        Args:
            folder: The files go to FOLDER/evaluation: NAME.json the record, NAME.npz what each attack found per
                sample, NAME.points.npy the points if they were kept.
            name: The name of the files (default: what was evaluated, and how).

        Returns:
            The path of NAME.json.

        Raises:
            InputError: The files cannot be written.

        Example:
            >>> import tempfile
            >>> model, x = nn.Flatten(), 0.9 * torch.eye(4)
            >>> evaluation = evaluate(model, (x, torch.arange(4)), eps=0.6, attacks="natural,fgsm")
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     evaluation.save(folder).name
            'Flatten_data_natural+fgsm_eps-0.6.json'
        """
        return self.write(Path(folder) / "evaluation", name or self.name)[0]

    def write(self, home: Path, name: str) -> list[Path]:
        """Write the record into a folder as it is; return its files, without that of the arrays."""
        arrays = arrays_per_sample(self.outcomes, self.task.index, self.task.samples.y)
        write_arrays(home / f"{name}.npz", arrays)
        files = [write_record(home / f"{name}.json", self.record)]
        if self.partial is not None:
            self.partial.remove()
            files += self._write_points(home / f"{name}.points.npy")
        return files

    def _write_points(self, path: Path) -> list[Path]:
        if self.partial is None or self.points is None:
            return []
        if path != self.partial.points_path:
            buffer = io.BytesIO()
            np.save(buffer, self.points.numpy())
            write_bytes(path, buffer.getvalue())
        return [path]

    def _notes(self, rows: Sequence[AttackRow | CurveRow]) -> list[str]:
        lines = [f"note: {row.attack}: {row.remark}" for row in rows if row.remark]
        lines += [f"{check.result}: {check.message} ({check.link})" for check in (*self.errors, *self.warnings)]
        return [*lines, f"checks: {count_results(self.checks)}"]


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation(Findings):
    """Accuracy under attacks at one radius. `print` shows it as a table, `save` writes its record.

    Example:
        >>> data = 0.9 * torch.eye(4), torch.arange(4)
        >>> evaluation = evaluate(nn.Flatten(), data, eps="1/10", attacks="natural,fgsm")
        >>> evaluation
        <Evaluation: accuracy 100.00 % under natural, fgsm; linf, eps 0.1 = 25.5/255, 4 samples, warnings: 0, errors: 0>
        >>> evaluation.accuracy, evaluation["fgsm"].broken.tolist()
        (1.0, [False, False, False, False])
    """

    @property
    def broken(self) -> Tensor:
        """Which samples some attack broke; if there are only proofs, which are not proven robust."""
        attacks = [outcome.broken for outcome in self.outcomes if not outcome.proof]
        return torch.stack(attacks or [outcome.broken for outcome in self.outcomes]).any(0)

    @property
    def accuracy(self) -> float:
        """The robust accuracy: the share of samples that no attack broke."""
        return int((~self.broken).sum()) / len(self.broken)

    def rows(self) -> tuple[AttackRow, ...]:
        """Return a row per attack, and one for all attacks together."""
        return attack_rows(self.outcomes, self.broken)

    @property
    def record(self) -> EvaluationRecord:
        """What NAME.json holds."""
        return EvaluationRecord(
            **msgspec.structs.asdict(self.task.header),
            eps=self.ball.eps,
            attacks=self.rows(),
            checks=self.checks,
            checks_seconds=self.checks_seconds,
            environment=describe_environment(),
        )

    def __repr__(self) -> str:
        names = ", ".join(outcome.attack for outcome in self.outcomes)
        counts = f"warnings: {len(self.warnings)}, errors: {len(self.errors)}"
        about = f"{describe_ball(self.ball)}, {len(self.broken)} samples, {counts}"
        return f"<Evaluation: accuracy {100 * self.accuracy:.2f} % under {names}; {about}>"

    def __str__(self) -> str:
        about = f"({describe_ball(self.ball)}, {len(self.broken)} samples)"
        lines = [f"{'attack':<12} accuracy %   95 % interval   {about}"]
        lines += [
            f"{row.attack:<12} {100 * row.accuracy:>10.2f}   {100 * row.low:.2f} - {100 * row.high:.2f}"
            for row in self.rows()
        ]
        return "\n".join([*lines, *self._notes(self.rows())])


@dataclass(frozen=True, eq=False, repr=False)
class RadiusCurve(Findings):
    """Accuracy under attacks at growing radii. `print` shows it as a table, `save` writes its record.

    Example:
        >>> data = 0.9 * torch.eye(4), torch.arange(4)
        >>> curve = robust_curve(nn.Flatten(), data, radii=[0, 0.3, 0.6], attacks="fgsm")
        >>> curve
        <RadiusCurve: fgsm at 3 radii from 0 to 0.6; linf, 4 samples, warnings: 0, errors: 0>
        >>> curve.accuracy("fgsm")
        (1.0, 1.0, 0.0)
    """

    @property
    def radii(self) -> tuple[float, ...]:
        """The radii, growing."""
        return self.task.radii

    def accuracy(self, attack: str) -> tuple[float, ...]:
        """Return the accuracy at each radius: the share of samples that hold there and at all smaller radii."""
        return next(row.accuracy for row in self.rows() if row.attack == self[attack].attack)

    def rows(self) -> tuple[CurveRow, ...]:
        """Return a row per attack, with the accuracy at each radius and its 95 % interval."""
        return curve_rows(self.outcomes, self.radii)

    @property
    def record(self) -> CurveRecord:
        """What NAME.json holds."""
        return CurveRecord(
            **msgspec.structs.asdict(self.task.header),
            eps=self.radii,
            curves=self.rows(),
            checks=self.checks,
            environment=describe_environment(),
        )

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """Draw accuracy against the radius, each attack with its 95 % interval.

        Args:
            axes: The matplotlib axes to draw on (default: those of a new figure, `axes.figure`).

        Returns:
            The axes.

        Example:
            >>> data = 0.9 * torch.eye(4), torch.arange(4)
            >>> curve = robust_curve(nn.Flatten(), data, radii=[0, 0.6], attacks="fgsm")
            >>> curve.plot().get_xlabel()
            'radius of the attack (linf)'
        """
        if axes is None:
            from matplotlib.figure import Figure

            axes = Figure(layout="constrained").add_subplot()
        for row in self.rows():
            (line,) = axes.plot(self.radii, row.accuracy, marker="o", label=row.attack)
            axes.fill_between(self.radii, row.low, row.high, color=line.get_color(), alpha=0.15, linewidth=0)
        axes.set(xlabel=f"radius of the attack ({self.ball.norm})", ylabel="accuracy", ylim=(0, 1.02))
        axes.legend()
        return axes

    def __repr__(self) -> str:
        names = ", ".join(outcome.attack for outcome in self.outcomes)
        ends = f"{len(self.radii)} radii from {self.radii[0]:g} to {self.radii[-1]:g}"
        counts = f"warnings: {len(self.warnings)}, errors: {len(self.errors)}"
        return f"<RadiusCurve: {names} at {ends}; {self.ball.norm}, {self.task.header.samples} samples, {counts}>"

    def __str__(self) -> str:
        rows = self.rows()
        lines = ["  ".join([f"{'eps':<10}", *(f"{row.attack + ' %':>12}" for row in rows)])]
        for i, eps in enumerate(self.radii):
            lines.append("  ".join([f"{eps:<10.4g}", *(f"{100 * row.accuracy[i]:>12.2f}" for row in rows)]))
        return "\n".join([*lines, *self._notes(rows)])


def evaluate(
    model: nn.Module,
    data: object,
    *,
    eps: Number,
    norm: str = "linf",
    bounds: Bounds = (0.0, 1.0),
    attacks: Attacks = ("natural", "standard"),
    samples: int | None = None,
    seed: int = 0,
    last_iterate: bool = False,
    trained_with: str | None = None,
    points: bool = False,
    resume: str | Path | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Measure the accuracy of a model under attacks, and check whether the result can be trusted.

    Args:
        model: A module that maps (n, ...) to logits (n, classes). It stays on its device and keeps its modes.
        data: A pair (x, y), a torch Dataset or Samples; uint8 values stand for value / 255.
        eps: The radius of the ball, such as 0.1 or "8/255".
        norm: The norm of the ball, "linf" or "l2".
        bounds: The range of x + delta, two numbers or tensors; None for no bounds.
        attacks: Names (see `sihg evaluate --help`), or a dict of names, of attacks and of functions (x, y) -> x_adv.
        samples: Evaluate so many samples, each class in proportion (default: all).
        seed: The seed of the subset and of the attacks.
        last_iterate: Whether fgsm and pgd count only the end of each run, not any iterate.
        trained_with: The method the model was trained with, if known, such as "pgd".
        points: Whether to keep the adversarial examples, `evaluation.points`.
        resume: A folder: continue the interrupted evaluation there, and keep partial results in it until `save`.
        progress: Receives (attack, samples done, samples in all) after each part of an attack.

    Returns:
        The Evaluation: accuracies, outcomes per sample, and checks.

    Raises:
        InputError: An argument, the model or the data cannot be used, or an attack returns an invalid point.

    Example:
        >>> model, x, y = nn.Flatten(), 0.9 * torch.eye(4), torch.arange(4)
        >>> evaluate(model, (x, y), eps=0.6, attacks="natural,fgsm").accuracy
        0.0
    """
    ball = Ball(_radius(eps), norm, bounds)
    check_module(model)
    whole = as_samples(data)
    plans = plan_attacks(attacks, ball, last_iterate=last_iterate)
    task = _make_task(
        model, whole, samples, ball, plans, (), seed, last_iterate=last_iterate, trained_with=trained_with
    )
    result = run_task(task, task.partial_results(_home(resume), points=points), progress)
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
    trained_with: str | None = None,
    points: bool = False,
    resume: str | Path | None = None,
    progress: Progress | None = None,
) -> RadiusCurve:
    """Measure the accuracy of a model under attacks at growing radii.

    A larger ball contains a smaller one, so each radius attacks only the samples that hold at the smaller ones.

    Args:
        model: As in `evaluate`, like all arguments but these two.
        data: As in `evaluate`.
        radii: Two or more radii that grow, such as [0, "4/255", "8/255"].
        norm: The norm of the balls.
        bounds: The range of x + delta.
        attacks: Names of attacks.
        samples: Evaluate so many samples.
        seed: The seed of the subset and of the attacks.
        last_iterate: Whether only the end of each run counts.
        trained_with: The method the model was trained with.
        points: Whether to keep the adversarial examples.
        resume: A folder to continue in.
        progress: Receives (attack, samples done, samples in all).

    Returns:
        The RadiusCurve: accuracies per attack and radius, and checks.

    Raises:
        InputError: As in `evaluate`, or the radii do not grow.

    Example:
        >>> model, x, y = nn.Flatten(), 0.9 * torch.eye(4), torch.arange(4)
        >>> robust_curve(model, (x, y), radii=[0, 0.6], attacks="fgsm").accuracy("fgsm")
        (1.0, 0.0)
    """
    numbers = check_radii(radii)
    ball = Ball(numbers[-1], norm, bounds)
    check_module(model)
    whole = as_samples(data)
    plans = plan_curve(attacks, ball, numbers, last_iterate=last_iterate)
    task = _make_task(
        *(model, whole, samples, ball, plans, tuple(numbers), seed),
        last_iterate=last_iterate,
        trained_with=trained_with,
    )
    result = run_task(task, task.partial_results(_home(resume), points=points), progress)
    assert isinstance(result, RadiusCurve)
    return result


def run_task(
    task: Task, partial: PartialResults | None = None, progress: Progress | None = None
) -> Evaluation | RadiusCurve:
    """Attack and check. If this is interrupted, the partial results are written."""
    model, samples, seed = task.model, task.samples, task.header.seed
    begin = time.perf_counter()
    with partial or nullcontext(), evaluation_mode(model):
        state = ModelState(model)
        check_model(model, samples)
        attacks = [attack for plan in task.plans.values() for attack in plan.values()]
        attacked = bool(task.radii) or any(not isinstance(attack, Natural) for attack in attacks)
        check_range(samples, task.ball if attacked else Ball(0.0, task.ball.norm, task.ball.bounds))
        check_plans(model, samples, task.plans)
        checks = list(inspect_model(model, samples, task.ball, seed, attacked=attacked))
        spent = time.perf_counter() - begin
        outcomes = _attack(task, partial, progress)
        begin = time.perf_counter()
        if task.radii:
            checks.append(check_full_split(len(samples), task.header.of))
            checks.append(check_other_attacks(task.plans, task.trained_with))
        else:
            checks += inspect_outcomes(samples, task.header.of, task.plans, outcomes, task.trained_with)
            checks += reattack_checks(model, samples, task.ball, task.plans, outcomes, seed, spent=spent)
        checks.append(state.check())
    seconds = spent + time.perf_counter() - begin
    kind = RadiusCurve if task.radii else Evaluation
    return kind(task, tuple(outcomes), tuple(checks), seconds, partial)


def _attack(task: Task, partial: PartialResults | None, progress: Progress | None) -> list[Outcome]:
    known = None if partial is None else partial.known()
    outcomes: dict[str, Outcome] = {}
    for part in attack_parts(task.model, task.samples, task.plans, seed=task.header.seed, known=known):
        outcomes[part.key] = part.outcome
        if partial is not None:
            partial.keep(part)
        if progress is not None:
            progress(part.key, part.outcome.done, int(part.outcome.attacked.sum()))
    return join_outcomes(task.plans, outcomes)


def _make_task(
    model: nn.Module,
    whole: Samples,
    count: int | None,
    ball: Ball,
    plans: Mapping[str, Plan],
    radii: tuple[float, ...],
    seed: int,
    *,
    last_iterate: bool,
    trained_with: str | None,
) -> Task:
    index = subset_index(whole, count, seed)
    samples = whole if len(index) == len(whole) else whole.take(index)
    header = EvaluationHeader(
        weights="",
        sha256=sha256_of_model(model),
        checkpoint=type(model).__name__,
        data=samples.name,
        split="",
        samples=len(samples),
        of=len(whole),
        seed=seed,
        norm=ball.norm,
        bounds=bounds_in_record(ball.bounds),
        device=str(device_of(model)),
        rule="last iterate" if last_iterate else "any iterate",
    )
    radius = f"curve-{radii[0]:g}:{radii[-1]:g}:{len(radii)}" if radii else f"eps-{ball.eps:.6g}"
    parts = [header.checkpoint, samples.name, "+".join(plans), radius]
    parts += [ball.norm] if ball.norm != "linf" else []
    parts += [] if header.bounds == (0.0, 1.0) else [f"bounds-{header.bounds}"]
    parts += [f"n{count}"] if count is not None else []
    parts += [f"seed{seed}"] if seed else []
    parts += ["last-iterate"] if last_iterate else []
    return Task(model, samples, index, ball, plans, header, record_name(parts), trained_with, radii)


def subset_index(samples: Samples, n: int | None, seed: int) -> Tensor:
    """Return the rows of n samples, each class in proportion and never simply the first; None for all."""
    rows = torch.arange(len(samples))
    return rows if n is None else stratified_subset(replace(samples, x=rows), n, seed).x


def sha256_of_model(model: nn.Module) -> str:
    """Return the SHA-256 of the model's parameters and buffers."""
    return sha256_of_tensors({name: v for name, v in model.state_dict().items() if isinstance(v, Tensor)})


def bounds_in_record(bounds: Bounds) -> tuple[float, float] | None:
    """Return the range of all features together; None where it is not finite."""
    low, high = (-torch.inf, torch.inf) if bounds is None else bounds
    pair = float(torch.as_tensor(low).min()), float(torch.as_tensor(high).max())
    return pair if np.isfinite(pair).all() else None


def describe_ball(ball: Ball) -> str:
    """Describe the attacker; eps also in steps of 8-bit images where the values have a range of 1."""
    low, high = (0.0, 0.0) if ball.bounds is None else ball.bounds
    unit = ball.norm == "linf" and bool((torch.as_tensor(high) - torch.as_tensor(low) == 1).all())
    pixels = f" = {255 * ball.eps:.3g}/255" if unit else ""
    return f"{ball.norm}, eps {ball.eps:.4g}{pixels}"


def _radius(eps: Number) -> float:
    return parse_number(eps, "eps") if isinstance(eps, str) else eps


def _home(resume: str | Path | None) -> Path | None:
    return None if resume is None else Path(resume) / "evaluation"
