"""Put training runs side by side: settings that differ, accuracy, means over seeds and their differences."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sihg.report.read.evaluations import PROVEN, Evaluation
from sihg.report.read.results import find_results
from sihg.report.read.runs import TrainingRun, compare_settings, group_trials
from sihg.report.tables.table import Cell, Column, Table, as_markdown, for_reading, radius_text, split_spreads
from sihg.report.tables.training_tables import SAMPLES, TEST, attack_heading, difference_table, entry_table
from sihg.store.schema import NOT_SET, MetricsRow
from sihg.store.statistics import describe_spreads

ABSENT = "-"


class Watched(msgspec.Struct, frozen=True):
    """Accuracy on held-out samples at an epoch; None if nothing was held out."""

    epoch: int | None = None
    natural: float | None = None
    robust: float | None = None


class AttackAccuracy(msgspec.Struct, frozen=True):
    """Accuracy on test samples under one attack, with its 95 % interval."""

    accuracy: float
    low: float
    high: float
    samples: int


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a comparison: `settings` are those that differ, `of` is the number of planned epochs."""

    run: str
    folder: str
    method: str
    ball: str  # of its evaluations, such as "l2, eps 1"
    epochs: int
    of: int | None
    settings: dict[str, object]
    last: Watched
    best: Watched
    evaluations: dict[str, AttackAccuracy]  # by attack
    passes: float | None
    seconds: float | None


@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs side by side. `str()` gives the tables as Markdown.

    Args:
        runs: A row per run.
        attacks: The attacks, in the order of the report.
        means: A row per group of runs that differ only in their seed; without rows if each run is alone.
        differences: A row per attack and pair of groups: the difference of their means and its 95 % interval.
        notes: What to keep in mind when reading the tables.
    """

    runs: tuple[RunRow, ...]
    attacks: tuple[str, ...]
    means: Table
    differences: Table
    notes: tuple[str, ...]

    def tables(self) -> dict[str, Table]:
        """Return the tables for reading, by title."""
        tables = _run_table(self.runs, self.attacks)
        if self.runs[0].settings:
            tables["settings that differ"] = _settings_table(self.runs)
        if self.means.rows:
            keys = [column.key for column in self.means.columns if column.key.startswith((TEST, SAMPLES))]
            about = ["norm", "eps"] if _balls_differ(self.runs) else []
            means = for_reading(self.means.part("entry", *about, "trials", *keys, "passes", "seconds"))
            headings = {"trials": "n", "passes": "passes", "seconds": "seconds"}
            columns = [column._replace(heading=headings.get(column.key, column.heading)) for column in means.columns]
            tables[f"{self._shown()} over the seeds"] = Table(columns, means.rows)
        if self.differences.rows:
            tables["differences of the means, with 95 % intervals (Welch)"] = for_reading(self.differences)
        return tables

    def _shown(self) -> str:
        """Say what the table of means shows."""
        place = [column.key for column in self.means.columns].index("trials")
        return describe_spreads(n for row in self.means.rows if isinstance(n := row[place], int))

    def as_dict(self) -> dict[str, list[object]]:
        """Return all numbers as plain values, for JSON."""
        rows = {"means": split_spreads(self.means), "differences": self.differences}
        return {
            "runs": [msgspec.to_builtins(run) for run in self.runs],
            **{
                name: [dict(zip([c.key for c in table.columns], row, strict=True)) for row in table.rows]
                for name, table in rows.items()
            },
        }

    def __str__(self) -> str:
        parts = [f"{title}\n\n{as_markdown(table)}" for title, table in self.tables().items()]
        return "\n".join([*parts, *self.notes])


def compare_runs(runs: Sequence[TrainingRun], shown: Callable[[Path], str] = str) -> Comparison:
    """Compare runs that were read; `shown` gives the text for a path."""
    means, owners = entry_table(group_trials(runs))
    several = any(owner and len(owner.trials) > 1 for owner in owners)
    differing = sorted(compare_settings(runs)[1], key=lambda name: name != "method.name")
    results = find_results(runs)
    rows = []
    for run in runs:
        tests = results.of_run(run.name)
        rows.append(
            RunRow(
                run=run.name,
                folder=shown(run.folder.path),
                method=run.method,
                ball=_ball(run, tests.values()),
                epochs=run.epochs,
                of=run.planned_epochs,
                settings={name: run.settings.get(name) for name in differing},
                last=_watched(run.last),
                best=_watched(run.best),
                evaluations={
                    a: AttackAccuracy(test.accuracy, test.low, test.high, test.samples) for a, test in tests.items()
                },
                passes=run.rows[-1].passes if run.rows else None,
                seconds=run.rows[-1].seconds if run.rows else None,
            )
        )
    notes = ["no setting differs"] if len(runs) > 1 and not differing else []
    said = [(run.name, text) for run in runs for text in (*run.warnings, *(remark.text for remark in run.remarks))]
    notes += [f"{name}: {text}" for name, text in said if "edited on purpose" in text]
    notes += results.notes
    if any(test.rule == PROVEN for of_runs in results.columns.values() for test in of_runs.values()):
        notes.append(f"{PROVEN}: a lower bound; attacks give upper bounds")
    over_seeds = means if several else Table(means.columns, [])
    return Comparison(tuple(rows), tuple(results.columns), over_seeds, difference_table(means, owners), tuple(notes))


def _ball(run: TrainingRun, tests: Iterable[Evaluation]) -> str:
    """Say within which ball the attacks shown of a run were made; without any, in which it was trained."""
    within = [_ball_text(test.norm, test.eps, bounded=test.bounded) for test in tests if test.attack != "natural"]
    if within:
        return " / ".join(dict.fromkeys(within))
    bounded = run.settings.get("bounds") != NOT_SET
    return _ball_text(run.settings.get("norm", ABSENT), run.settings.get("eps", ABSENT), bounded=bounded)


def _ball_text(norm: object, eps: object, *, bounded: bool) -> str:
    radius = radius_text(eps) if isinstance(eps, int | float) else eps
    return f"{norm}, eps {radius}" + ("" if bounded else ", without bounds")


def _balls_differ(runs: Sequence[RunRow]) -> bool:
    return len({run.ball for run in runs}) > 1


def _watched(row: MetricsRow | None) -> Watched:
    return Watched() if row is None else Watched(row.epoch, row.natural, row.robust)


def _run_table(runs: Sequence[RunRow], attacks: Sequence[str]) -> dict[str, Table]:
    sizes = {test.samples for run in runs for test in run.evaluations.values()}
    differ = _balls_differ(runs)
    headings = [
        "run",
        "method",
        *(["ball"] if differ else []),
        "epochs",
        "watched %",
        "best % (epoch)",
        *(f"{attack_heading(attack)} %" for attack in attacks),
    ]
    rows: list[list[Cell]] = [
        [
            run.run,
            run.method,
            *([run.ball] if differ else []),
            str(run.epochs) if run.epochs == run.of else f"{run.epochs} of {run.of}",
            _both(run.last),
            _both(run.best) + (f" ({run.best.epoch})" if run.best.epoch else ""),
            *(_share(run.evaluations.get(attack), with_size=len(sizes) > 1) for attack in attacks),
            *(ABSENT if cost is None else f"{cost:.1f}" for cost in (run.passes, run.seconds)),
        ]
        for run in runs
    ]
    samples = f"{next(iter(sizes))} test samples" if len(sizes) == 1 else "n test samples"
    title = "watched while training: clean / robust" + (f"; attacks: accuracy on {samples}" if sizes else "")
    return {title: Table([Column(text, text) for text in [*headings, "passes", "seconds"]], rows)}


def _settings_table(runs: Sequence[RunRow]) -> Table:
    """Show the settings that differ, the longer list downwards; runs that differ only in their seed once."""
    names = list(runs[0].settings)
    but_seed = [name for name in names if name != "seed"] or names
    groups: dict[tuple[str, ...], list[str]] = {}
    for run in runs:
        groups.setdefault(tuple(_text(run.settings[name]) for name in but_seed), []).append(run.run)
    if len(groups) < len(runs):
        names = but_seed
        first = [found[0] if len(found) == 1 else f"{found[0]} and {len(found) - 1} more" for found in groups.values()]
        values = [list(own) for own in groups]
    else:
        first = [run.run for run in runs]
        values = [[_text(run.settings[name]) for name in names] for run in runs]
    headings = ["run", *names]
    if len(first) <= len(names):
        headings, first = ["setting", *first], names
        values = [list(column) for column in zip(*values, strict=True)]
    rows: list[list[Cell]] = [[name, *line] for name, line in zip(first, values, strict=True)]
    return Table([Column(text, text) for text in headings], rows)


def _both(watched: Watched) -> str:
    if watched.robust is None or watched.natural is None:
        return ABSENT
    return f"{100 * watched.natural:.1f} / {100 * watched.robust:.1f}"


def _share(test: AttackAccuracy | None, *, with_size: bool) -> str:
    if test is None:
        return ABSENT
    return f"{100 * test.accuracy:.2f}" + (f" (n = {test.samples})" if with_size else "")


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ABSENT if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
