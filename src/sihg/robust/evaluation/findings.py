"""What an evaluation found: accuracies, outcomes per sample and checks, to print, draw or save."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import msgspec
import numpy as np
import torch
from torch import Tensor

from sihg.errors import InputError
from sihg.robust.attacks.outcome import Outcome
from sihg.robust.attacks.registry import radius_name
from sihg.robust.evaluation.own_seal import seal_record
from sihg.robust.evaluation.partial import PartialResults
from sihg.robust.threat import Ball
from sihg.store.arrays import write_arrays
from sihg.store.files import sha256_of_file, write_bytes
from sihg.store.schema import (
    AttackRow,
    Check,
    CurveRecord,
    CurveRow,
    Environment,
    EvaluationHeader,
    EvaluationRecord,
    count_results,
    explain_not_run,
    method_notes,
    vote_note,
    write_record,
)
from sihg.store.statistics import wilson

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PER_SAMPLE = ("attacked", "broken", "prediction", "margin", "distance")


@dataclass(frozen=True, eq=False, repr=False)
class Findings:
    """What the attacks found, and what the checks say about it. Evaluation and RadiusCurve share this."""

    name: str  # of the record's files
    header: EvaluationHeader  # which model was evaluated on which samples
    ball: Ball  # of a curve, the largest
    index: Tensor  # of each sample in its split
    labels: Tensor
    outcomes: tuple[Outcome, ...]
    checks: tuple[Check, ...]
    checks_seconds: float
    environment: Environment
    keeps_nearest: ClassVar[bool] = False  # of each sample the nearest misclassified point, not the first found
    radii: tuple[float, ...] = ()  # of a curve, growing
    partial: PartialResults | None = None
    kept_points: Tensor | None = None  # of an evaluation that was stored
    fingerprint: str = ""  # of all that decides the result; "" if that is not known
    stored: Path | None = None  # the record that this was read from; None if the attacks were run

    @property
    def points(self) -> Tensor | None:
        """Each sample's point of the first attack that broke it, else that of the smallest margin; None if not kept."""
        return self.kept_points if self.partial is None else self.partial.points

    @property
    def errors(self) -> list[Check]:
        """Checks that say that the accuracies are wrong."""
        return [check for check in self.checks if check.result == "error"]

    @property
    def warnings(self) -> list[Check]:
        """Checks that say that the accuracies may mislead."""
        return [check for check in self.checks if check.result == "warning"]

    @property
    def record(self) -> EvaluationRecord | CurveRecord:
        """What NAME.json holds."""
        raise NotImplementedError

    def __getitem__(self, attack: str) -> Outcome:
        """Return the outcome of one attack."""
        outcomes = {outcome.attack: outcome for outcome in self.outcomes}
        if attack not in outcomes:
            raise InputError("attack-not-run", attack=attack, names=", ".join(outcomes))
        return outcomes[attack]

    def save(self, folder: str | Path, *, name: str | None = None) -> Path:
        """Write FOLDER/evaluation/NAME.json and .npz, which `sihg report FOLDER` shows; return NAME.json."""
        return self.write(Path(folder) / "evaluation", name or self.name)[0]

    def write(self, home: Path, name: str) -> list[Path]:
        """Write the record directly into a folder; return the files that a user may want to open."""
        stages = [
            (outcome.attack if stage is outcome else f"{outcome.attack}: {stage.attack}", stage)
            for outcome in self.outcomes
            for stage in (*outcome.stages, outcome)
        ]
        arrays = {"index": self.index.numpy(), "label": self.labels.numpy(), "attack": np.array([a for a, _ in stages])}
        for field in PER_SAMPLE:
            arrays[field] = torch.stack([getattr(stage, field) for _, stage in stages]).numpy()
        votes = [stage.wrong for _, stage in stages if stage.wrong is not None]
        if votes:
            arrays["wrong"] = torch.stack(votes).numpy()
        kept = [write_arrays(home / f"{name}.npz", arrays)]
        if self.points is not None:
            kept.append(home / f"{name}.points.npy")
            if self.partial is not None:
                self.partial.flush()
            if self.partial is None or kept[-1] != self.partial.points_path:
                buffer = io.BytesIO()
                np.save(buffer, self.points.numpy())
                write_bytes(kept[-1], buffer.getvalue())
        sums = {path.name: sha256_of_file(path) for path in kept}
        sealed = seal_record(msgspec.structs.replace(self.record, files=sums), self.fingerprint)
        record = write_record(home / f"{name}.json", sealed)
        if self.partial is not None:
            self.partial.remove()
        return [record, *kept[1:]]

    def __repr__(self) -> str:
        counts = f"warnings: {len(self.warnings)}, errors: {len(self.errors)}"
        return f"<{type(self).__name__}: {self._summary()}, {self.header.samples} samples, {counts}>"

    def _summary(self) -> str:
        raise NotImplementedError

    def _notes(self, rows: tuple[AttackRow, ...] | tuple[CurveRow, ...]) -> list[str]:
        lines = [f"note: {note}" for note in (*self.header.notes, *method_notes(self.header))]
        lines += [f"note: {vote_note(row)}" for row in rows if isinstance(row, CurveRow) and row.votes > 1]
        lines += [f"note: {row.attack}: {row.remark}" for row in rows if row.remark]
        lines += [f"{check.result}: {check.message} ({check.link})" for check in (*self.errors, *self.warnings)]
        lines.append(f"checks: {count_results(self.checks)}")
        return [*lines, *(f"not run: {reason}" for reason in explain_not_run(self.checks))]


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation(Findings):
    """Accuracy under attacks at one radius. `print` shows a table, `save` writes the record.

    Args:
        *: Those of Findings; `evaluate` gives them.
    Example:
        >>> import sihg
        >>> data = 0.9 * torch.eye(4), torch.arange(4)
        >>> evaluation = sihg.evaluate(torch.nn.Flatten(), data, eps="1/10", attacks="natural,fgsm")
        >>> evaluation
        <Evaluation: 100.00 % under natural, fgsm; linf, eps 0.1 = 25.5/255, 4 samples, warnings: 3, errors: 0>
        >>> [check.name for check in evaluation.warnings]
        ['weak attacks', 'few steps', 'no black box']
        >>> evaluation.accuracy, evaluation["fgsm"].broken.tolist(), evaluation.name
        (1.0, [False, False, False, False], 'Flatten_data_natural+fgsm_eps-0.1')
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
        """Return a row per attack, one for all attacks together if there are several, then those of proofs."""
        attacks = [outcome for outcome in self.outcomes if not outcome.proof]
        rows = [_attack_row(outcome) for outcome in attacks]
        if len(attacks) > 1:  # natural errors count too, which an attack may not look at
            costs = {name: sum(getattr(o, name) for o in attacks) for name in ("passes", "forwards", "seconds")}
            together = replace(attacks[0], attack="all", attacked=torch.ones_like(self.broken), broken=self.broken)
            votes = [outcome.wrong for outcome in attacks if outcome.wrong is not None]
            together.wrong = torch.stack(votes).amax(0) if votes else None
            rows.append(_attack_row(replace(together, **costs, remark="", stages=())))
        return (*rows, *(_attack_row(outcome) for outcome in self.outcomes if outcome.proof))

    @property
    def record(self) -> EvaluationRecord:
        """What NAME.json holds."""
        return EvaluationRecord(
            **msgspec.structs.asdict(self.header),
            eps=self.ball.eps,
            attacks=self.rows(),
            checks=self.checks,
            checks_seconds=self.checks_seconds,
            environment=self.environment,
        )

    def _summary(self) -> str:
        names = ", ".join(outcome.attack for outcome in self.outcomes)
        return f"{100 * self.accuracy:.2f} % under {names}; {self._attacker()}"

    def _attacker(self) -> str:
        target = f", targeted at {self.header.target}" if self.header.target else ""
        return describe_ball(self.ball) + target

    def __str__(self) -> str:
        about = f"({self._attacker()}, {len(self.broken)} samples)"
        several = self.header.votes > 1
        share = "not target" if self.header.target else "accuracy %"
        lines = [f"{'attack':<12} {share}   95 % interval   {'mean %  worst %   ' if several else ''}{about}"]
        for row in self.rows():
            interval = f"{100 * row.low:.2f} - {100 * row.high:.2f}"
            votes = "" if row.mean is None else f"{100 * row.mean:>6.2f}  {100 * (row.worst or 0):>7.2f}"
            lines.append(f"{row.attack:<12} {100 * row.accuracy:>10.2f}   {interval:<16}{votes}".rstrip())
        return "\n".join([*lines, *self._notes(self.rows())])


@dataclass(frozen=True, eq=False, repr=False)
class RadiusCurve(Findings):
    """Accuracy under attacks at growing radii. `print` shows a table, `plot` draws it, `save` writes the record.

    Args:
        *: Those of Findings; `robust_curve` gives them.
    Example:
        >>> import sihg
        >>> data = 0.9 * torch.eye(4), torch.arange(4)
        >>> curve = sihg.robust_curve(torch.nn.Flatten(), data, radii=[0, 0.3, 0.6], attacks="fgsm")
        >>> curve
        <RadiusCurve: fgsm at 3 radii from 0 to 0.6; linf, 4 samples, warnings: 3, errors: 0>
        >>> curve.accuracy("fgsm")
        (1.0, 1.0, 0.0)
    """

    def accuracy(self, attack: str) -> tuple[float, ...]:
        """Return the accuracy at each radius: the share of samples not broken at this radius or a smaller one."""
        return _curve_row(self[attack], self.radii).accuracy

    def rows(self) -> tuple[CurveRow, ...]:
        """Return a row per attack, with the accuracy at each radius and its 95 % interval."""
        return tuple(_curve_row(outcome, self.radii) for outcome in self.outcomes)

    @property
    def record(self) -> CurveRecord:
        """What NAME.json holds."""
        header = msgspec.structs.asdict(self.header)
        eps, environment = self.radii, self.environment
        return CurveRecord(**header, eps=eps, curves=self.rows(), checks=self.checks, environment=environment)

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Draw accuracy against the radius with its 95 % interval; save the figure if there is a path."""
        return draw_curves(self.rows(), self.radii, self.ball.norm, path)

    def _summary(self) -> str:
        names = ", ".join(outcome.attack for outcome in self.outcomes)
        ends = f"{len(self.radii)} radii from {self.radii[0]:g} to {self.radii[-1]:g}"
        return f"{names} at {ends}; {self.ball.norm}"

    def __str__(self) -> str:
        rows = self.rows()
        lines = ["  ".join([f"{'eps':<10}", *(f"{row.attack + ' %':>12}" for row in rows)])]
        for i, eps in enumerate(self.radii):
            lines.append("  ".join([f"{eps:<10.4g}", *(f"{100 * row.accuracy[i]:>12.2f}" for row in rows)]))
        return "\n".join([*lines, *self._notes(rows)])


def draw_curves(
    rows: Sequence[CurveRow], radii: Sequence[float], norm: str, path: str | Path | None, marker: str = "o"
) -> "Figure":
    """Draw accuracy against the radius, each with its 95 % interval; save the figure if there is a path."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    figure = Figure(layout="constrained")
    axes = figure.add_subplot()
    for row in rows:
        label = f"{row.attack} (at least)" if row.proof else row.attack
        (line,) = axes.plot(radii, row.accuracy, marker=marker, label=label)
        axes.fill_between(radii, row.low, row.high, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set(xlabel=f"radius of the attack ({norm})", ylabel="accuracy, with its 95 % interval")
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.legend()
    if path is not None:
        figure.savefig(path)
    return figure


def describe_ball(ball: Ball) -> str:
    """Describe the attacker; eps also in steps of 8-bit images where the values have a range of 1."""
    low, high = (0.0, 0.0) if ball.bounds is None else ball.bounds
    unit = ball.norm == "linf" and bool((torch.as_tensor(high) - torch.as_tensor(low) == 1).all())
    pixels = f" = {255 * ball.eps:.4g}/255" if unit else ""
    return f"{ball.norm}, eps {ball.eps:.4g}{pixels}"


def _attack_row(outcome: Outcome) -> AttackRow:
    n, held = len(outcome.broken), int((~outcome.broken).sum())
    low, high = wilson(held, n)
    return AttackRow(
        attack=outcome.attack,
        accuracy=held / n,
        low=low,
        high=high,
        samples=n,
        broken=n - held,
        passes=outcome.passes,
        forwards=outcome.forwards,
        seconds=outcome.seconds,
        passes_per_sample=outcome.passes / n,
        forwards_per_sample=outcome.forwards / n,
        proof=outcome.proof,
        remark=outcome.remark,
        attacked=None if bool(outcome.attacked.all()) else int(outcome.attacked.sum()),
        stages=tuple(_attack_row(stage) for stage in outcome.stages),
        votes=outcome.votes,
        mean=outcome.mean_accuracy,
        worst=outcome.worst_accuracy,
    )


def _curve_row(outcome: Outcome, radii: Sequence[float]) -> CurveRow:
    """Return the accuracy at each radius, after the last attack with that radius."""
    last = {stage.attack.partition(" ")[0]: stage for stage in outcome.stages or (outcome,)}
    stages, n = [last[radius_name(eps)] for eps in radii], len(outcome.broken)
    intervals = [wilson(n - int(stage.broken.sum()), n) for stage in stages]
    return CurveRow(
        attack=outcome.attack,
        accuracy=tuple(stage.accuracy for stage in stages),
        low=tuple(low for low, _ in intervals),
        high=tuple(high for _, high in intervals),
        passes=outcome.passes,
        forwards=outcome.forwards,
        seconds=outcome.seconds,
        proof=outcome.proof,
        remark=outcome.remark.rpartition(": ")[2] if outcome.proof else "",
        votes=outcome.votes,
        mean=tuple(stage.mean_accuracy for stage in stages if stage.mean_accuracy is not None),
        worst=tuple(stage.worst_accuracy for stage in stages if stage.worst_accuracy is not None),
        stages=tuple(_attack_row(stage) for stage in outcome.stages),
    )
