"""The page of training runs: what they reached, how they learnt, and with which settings."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from sihg.report.page import (
    Drawn,
    as_text,
    count,
    document,
    facts_list,
    figures_grid,
    pairs_list,
    rich_table,
    warnings_box,
)
from sihg.report.style import looks
from sihg.report.table import Column, Table
from sihg.report.trained import TrainingRun
from sihg.report.training_table import evaluation_table, radius, rich_reading


def page(title: str, runs: Sequence[TrainingRun], made: Table, figures: Sequence[Drawn]) -> str:
    """The page as text."""
    colours = [look.colour for look in looks([run.method for run in runs])]
    of_run = {run.name: colour for run, colour in zip(runs, colours, strict=True)}
    common, different = compared(runs)
    parts = [
        facts_list(_facts(runs)),
        warnings_box((run.name, text) for run in runs for text in (*_unfinished(run), *_outdated(run), *run.warnings)),
        "<h2>Results</h2>",
        rich_table(_headline(made), "What every run reached, and what it cost", colours, rich_reading),
        figures_grid(figures),
        *_evaluations(runs, of_run),
        *_differences(runs, different, colours),
        '<div class="columns">',
        pairs_list("Settings of all runs", common if len(runs) > 1 else {}),
        pairs_list("Environment", _environment(runs)),
        "</div>",
        "<h2>To reproduce</h2>",
        *(_config(run, is_open=len(runs) == 1) for run in runs),
    ]
    return document(title, "sihg train", _about(runs), parts)


def compared(runs: Sequence[TrainingRun]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The settings that all runs share, and those in which they differ, run by run (None: not set)."""
    every = {key: [run.settings.get(key) for run in runs] for run in runs for key in run.settings}
    common = {key: values[0] for key, values in every.items() if all(value == values[0] for value in values)}
    return common, {key: values for key, values in every.items() if key not in common}


def _headline(made: Table) -> Table:
    """The table without what is the same for all runs and stands among the facts above it."""
    shared = [
        column.key
        for i, column in enumerate(made.columns)
        if column.key in ("data", "model", "eps") and len({row[i] for row in made.rows}) == 1
    ]
    return made.part(*(column.key for column in made.columns if column.key not in shared))


def _about(runs: Sequence[TrainingRun]) -> str:
    if len(runs) == 1:
        run = runs[0]
        model, data = (run.settings.get(key, "unknown") for key in ("model", "data"))
        return f"{run.method} training of {model} on {data}."
    return "Training runs beside each other: accuracy on samples as they are, and under attack within the ball."


def _facts(runs: Sequence[TrainingRun]) -> list[str]:
    def one(key: str, form: str) -> list[str]:
        values = {as_text(run.settings.get(key)) for run in runs if key in run.settings}
        return [form.format(values.pop())] if len(values) == 1 else []

    radii = [run.settings.get("eps") for run in runs]
    eps = radii[0] if all(one == radii[0] for one in radii) else None
    return [
        count(len(runs), "run", "runs"),
        *one("data", "data {}"),
        *one("model", "model {}"),
        *([f"ε = {radius(eps)}"] if isinstance(eps, int | float) else []),
        *one("norm", "{} ball"),
        *one("seed", "seed {}"),
    ]


def _unfinished(run: TrainingRun) -> list[str]:
    if run.asked is None or run.epochs >= run.asked:
        return []
    return [f"{run.epochs} of {count(run.asked, 'epoch', 'epochs')} done so far: `sihg resume` goes on with the run"]


def _outdated(run: TrainingRun) -> list[str]:
    older = sorted({one.older for one in run.evaluations if one.older})
    if not older:
        return []
    return [f"the run went on after {', '.join(older)} was evaluated, which is not in its results: evaluate it again"]


def _evaluations(runs: Sequence[TrainingRun], of_run: Mapping[str, str]) -> list[str]:
    made = evaluation_table(runs)
    if not made.rows:
        return []
    colours = [of_run[str(row[0])] for row in made.rows]
    return [
        "<h2>Evaluations</h2>",
        rich_table(made, "The accuracy under every attack that was run", colours, rich_reading),
    ]


def _differences(runs: Sequence[TrainingRun], different: Mapping[str, list[Any]], colours: Sequence[str]) -> list[str]:
    if not different:
        return []
    columns = [
        Column("run", "run"),
        *(Column(key, key, is_text=_has_text(values)) for key, values in different.items()),
    ]
    rows = [[run.name, *(as_text(values[i]) for values in different.values())] for i, run in enumerate(runs)]
    return ["<h2>Settings that differ</h2>", rich_table(Table(columns, rows), "Settings that differ", colours)]


def _has_text(values: Sequence[Any]) -> bool:
    return any(isinstance(value, str | list) for value in values)


def _environment(runs: Sequence[TrainingRun]) -> dict[str, str]:
    """What the runs were made with; several values where they differ."""
    every: dict[str, dict[str, None]] = {}
    for run in runs:
        for key, value in run.environment.items():
            every.setdefault(key, {})[as_text(value)] = None
    return {key: " / ".join(values) for key, values in every.items()}


def _config(run: TrainingRun, *, is_open: bool) -> str:
    """The config of a run, folded where there are several."""
    text = f"<pre><code>{escape(run.config)}</code></pre>"
    if is_open:
        return f"<p>All settings of the run, its <code>config.toml</code>:</p>{text}"
    return f"<details><summary>{escape(run.name)}/config.toml</summary>{text}</details>"
