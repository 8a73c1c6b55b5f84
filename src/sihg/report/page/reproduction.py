"""Say by which commands the results of a page can be made again."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from sihg.report.read.evaluations import Evaluation, RadiusCurve
from sihg.report.read.runs import Entry, TrainingRun
from sihg.store.answers import AnyRecord
from sihg.store.schema import CurveRecord, EvaluationRecord

ALL_ROWS = "all"  # the row that is not an attack of its own
MAX_RUNS = 3  # of which each has its own lines


def run_commands(entries: Sequence[Entry], grid: str = "") -> str:
    """Return the commands that make these runs again; `grid` is the `sihg reproduce` that made the folder."""
    if grid:
        return grid
    runs = [run for entry in entries for run in entry.trials]
    lines = []
    for run in runs[:MAX_RUNS]:
        name = shlex.quote(run.name)
        config = "config.toml" if len(runs) == 1 else shlex.quote(f"{run.name}/config.toml")
        lines += [f"sihg train --config {config} --out {name}", *_evaluations(run, name)]
    if len(runs) > MAX_RUNS:
        lines.append(f"# and in the same way the other {len(runs) - MAX_RUNS} runs, with their config.toml below")
    return "\n".join(lines)


def _evaluations(run: TrainingRun, name: str) -> list[str]:
    by_record: dict[Path, list[Evaluation]] = {}
    for evaluation in run.evaluations:
        if evaluation.attack != ALL_ROWS and evaluation.rule != "proven":
            by_record.setdefault(evaluation.source, []).append(evaluation)
    lines = []
    for found in by_record.values():
        attacks = ",".join(dict.fromkeys(evaluation.attack for evaluation in found))
        lines.append(f"sihg evaluate {name} --attacks {shlex.quote(attacks)}{_which(found[0])}")
    for curve in run.radii:
        attack = shlex.quote(curve.attack)
        lines.append(f"sihg evaluate {name} --attacks {attack} --curve {_radii(curve)}{_which(curve)}")
    return lines


def _which(found: Evaluation | RadiusCurve) -> str:
    """Return the flags for the checkpoint and the samples, where they are not the usual ones."""
    checkpoint = f" --checkpoint {found.checkpoint}" if found.checkpoint == "best" else ""
    return checkpoint + (f" --samples {found.samples}" if found.samples < found.sample_set.of else "")


def _radii(curve: RadiusCurve) -> str:
    return f"{curve.eps[0]:g}:{curve.eps[-1]:g}:{len(curve.eps)}"


def evaluation_commands(records: Mapping[Path, AnyRecord]) -> str:
    """Return the commands that make records of models from elsewhere again, without the flags that load the model."""
    lines = []
    for record in records.values():
        eps = f" --eps {record.eps:g}" if isinstance(record.eps, float) else ""
        ball = f"--norm {shlex.quote(record.norm)}{eps}"
        samples = f" --samples {record.samples} --seed {record.seed}" if record.samples < record.of else ""
        about = f"sihg evaluate MODEL --data {shlex.quote(record.data)} {ball}{samples}"
        if isinstance(record, EvaluationRecord):
            attacks = [row.attack for row in record.attacks if row.attack != ALL_ROWS and not row.proof]
            lines.append(f"{about} --attacks {shlex.quote(','.join(attacks))}")
        elif isinstance(record, CurveRecord) and record.curves:
            attacks = list(dict.fromkeys(row.attack for row in record.curves if not row.proof))
            radii = f"{record.eps[0]:g}:{record.eps[-1]:g}:{len(record.eps)}"
            lines.append(f"{about} --attacks {shlex.quote(','.join(attacks))} --curve {radii}")
    return "\n".join(lines)
