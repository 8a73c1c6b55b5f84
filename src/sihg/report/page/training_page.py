"""The page of training runs: what they reached, how they learnt, what breaks them, and with which settings."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from sihg.report.page.html import (
    Drawn,
    document,
    facts_list,
    figures_grid,
    folded,
    note,
    pairs_list,
    rich_table,
    warnings_box,
)
from sihg.report.read.entries import Entry
from sihg.report.read.runs import TrainingRun, as_text
from sihg.report.tables.notes import held_out_notes, paper_notes, result_notes
from sihg.report.tables.table import Column, Table, count
from sihg.report.tables.training_tables import TEST, evaluation_table, radius, rich_reading, training_table

LEARNT = ("training_accuracy", "held_out_natural", "held_out_robust", "best_natural", "best_robust", "best_epoch")
MANY = 12  # rows of evaluations that are shown at once
PARTS = {  # of the figures: heading, and what is said of all of them
    "learning": ("", ""),
    "attacks": ("Under attack", ""),
    "gallery": (
        "What breaks the models",
        "A test sample of each class, one that the attack breaks if there is such, at the point that it found. "
        "Perturbations are scaled to the largest value of the figure, zero in the middle of the colours; what is read "
        "wrongly is red.",
    ),
    "memory": ("Memory of perturbations", ""),
}


def page(
    title: str,
    entries: Sequence[Entry],
    headline: tuple[Table, Sequence[Entry | None]],
    differences: Table,
    figures: Sequence[Drawn],
    refresh: float | None,
) -> str:
    """The page as text."""
    runs = [run for entry in entries for run in entry.trials]
    made, owners = headline
    marks = [owner.look.colour if owner else None for owner in owners]
    results, learnt = _headlines(made)
    parts = [
        facts_list(_facts(entries, runs)),
        warnings_box((run.name, text) for run in runs for text in _warnings(run)),
        "<h2>Results</h2>",
        rich_table(results, "What every entry reached, and what it cost", marks, rich_reading),
        *(note(text) for text in (*result_notes(entries), *paper_notes(entries))),
        *_differences(differences),
        *_learning(learnt, marks, entries),
        *_figures(figures),
        *_trials(entries),
        *_evaluations(entries),
        *_settings(entries),
        '<div class="columns">',
        pairs_list("Settings of all runs", compared(runs)[0] if len(runs) > 1 else {}),
        pairs_list("Environment", _environment(runs)),
        "</div>",
        "<h2>To reproduce</h2>",
        *(_config(run, is_open=len(runs) == 1) for run in runs),
        note("The tables are also in report/ as CSV, Markdown and LaTeX, the figures as SVG and PDF."),
    ]
    return document(title, "sihg, adversarial training", _about(entries, runs), parts, refresh)


def compared(runs: Sequence[TrainingRun]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The settings that all runs share, and those in which they differ, run by run (None: not set)."""
    every = {key: [run.settings.get(key) for run in runs] for run in runs for key in run.settings}
    common = {key: values[0] for key, values in every.items() if all(value == values[0] for value in values)}
    return common, {key: values for key, values in every.items() if key not in common}


def _headlines(made: Table) -> tuple[Table, Table]:
    """The results on test samples with their costs, and what was seen while training; without what all rows share.

    Without results on test samples, all is in the first.
    """
    keys = [column.key for column in made.columns]
    values = {key: {row[i] for row in made.rows} for i, key in enumerate(keys)}
    told = [key for key in ("data", "model", "eps") if len(values[key]) == 1]  # among the facts above
    told += ["method"] if all(row[0] == row[1] for row in made.rows if not str(row[0]).startswith("paper: ")) else []
    told += ["trials"] if values["trials"] == {1} else []
    told += ["samples"] if len(values.get("samples", set()) - {None}) == 1 else []  # in a note below
    shown = [key for key in keys if key not in told]
    if not any(key.startswith(TEST) for key in keys):
        return made.part(*shown), made.part()
    return made.part(*(key for key in shown if key not in LEARNT)), made.part("entry", *LEARNT)


def _differences(made: Table) -> list[str]:
    """How far entries are apart, for those who ask."""
    if not made.rows:
        return []
    drawn = rich_table(made, "Differences of the means", [""] * len(made.rows), rich_reading)
    about = note(
        "Over the trials, with 95 % intervals by Welch's t; an interval that holds 0 does not tell which is better. Of "
        "many intervals, one in twenty misses."
    )
    return [folded("Differences of the means", drawn + about)]


def _learning(learnt: Table, marks: Sequence[str | None], entries: Sequence[Entry]) -> list[str]:
    """The table of what was seen while training; rows of the paper only where it has such numbers."""
    notes = [note(text) for text in held_out_notes(entries)]
    if not learnt.columns:
        return notes
    known = [i for i, row in enumerate(learnt.rows) if marks[i] or any(cell is not None for cell in row[1:])]
    some = Table(learnt.columns, [learnt.rows[i] for i in known])
    drawn = rich_table(some, "Accuracy while training, last and best so far", [marks[i] for i in known], rich_reading)
    return ["<h2>While training</h2>", drawn, *notes]


def _figures(figures: Sequence[Drawn]) -> Iterable[str]:
    """The figures, part by part."""
    done = 0
    for part, (heading, about) in PARTS.items():
        mine = [figure for figure in figures if figure.part == part]
        if mine:
            yield f"<h2>{escape(heading)}</h2>" if heading else ""
            yield note(about)
            yield figures_grid(mine, done, {"learning": "", "gallery": "gallery"}.get(part, "wide"))
            done += len(mine)


def _about(entries: Sequence[Entry], runs: Sequence[TrainingRun]) -> str:
    model, data = (entries[0].settings.get(key, "unknown") for key in ("model", "data"))
    if len(runs) == 1:
        return f"{runs[0].method} training of {model} on {data}."
    if len(entries) == 1:
        return f"{entries[0].method} training of {model} on {data}, {len(runs)} trials."
    return "Training runs beside each other: accuracy on samples as they are, and under attack within the ball."


def _facts(entries: Sequence[Entry], runs: Sequence[TrainingRun]) -> list[str]:
    def one(key: str, form: str) -> list[str]:
        values = {as_text(run.settings.get(key)) for run in runs if key in run.settings}
        return [form.format(values.pop())] if len(values) == 1 else []

    radii = [run.settings.get("eps") for run in runs]
    eps = radii[0] if all(one == radii[0] for one in radii) else None
    return [
        *([count(len(entries), "entry", "entries")] if len(entries) < len(runs) else []),
        count(len(runs), "run", "runs"),
        *one("data", "data {}"),
        *one("model", "model {}"),
        *([f"ε = {radius(eps)}"] if isinstance(eps, int | float) else []),
        *one("norm", "{} ball"),
        *one("seed", "seed {}"),
    ]


def _warnings(run: TrainingRun) -> list[str]:
    return [*_unfinished(run), *_outdated(run), *run.warnings, *run.doubts]


def _unfinished(run: TrainingRun) -> list[str]:
    if run.asked is None or run.is_finished:
        return []
    return [f"{run.epochs} of {count(run.asked, 'epoch', 'epochs')} done so far: `sihg resume` goes on with the run"]


def _outdated(run: TrainingRun) -> list[str]:
    older = sorted({one.older for one in run.evaluations if one.older})
    if not older:
        return []
    return [f"the run went on after {', '.join(older)} was evaluated, which is not in its results: evaluate it again"]


def _trials(entries: Sequence[Entry]) -> list[str]:
    """Every run, where entries have several."""
    if all(len(entry.trials) == 1 for entry in entries):
        return []
    made = training_table([run for entry in entries for run in entry.trials])
    colours = [entry.look.colour for entry in entries for _ in entry.trials]
    told = ("method", "data", "model", "eps", "samples")
    keys = [c.key for i, c in enumerate(made.columns) if c.key not in told or len({row[i] for row in made.rows}) > 1]
    keys = [key for key in keys if key != "method"]  # that of the entry
    drawn = rich_table(made.part(*keys), "What every run reached, and what it cost", colours, rich_reading)
    return ["<h2>The trials</h2>", drawn]


def _evaluations(entries: Sequence[Entry]) -> list[str]:
    made = evaluation_table([run for entry in entries for run in entry.trials])
    if not made.rows:
        return []
    colours = [entry.look.colour for entry in entries for run in entry.trials for _ in run.evaluations]
    drawn = rich_table(made, "The accuracy under every attack that was run", colours, rich_reading)
    long = len(made.rows) > MANY
    return ["<h2>Evaluations</h2>", folded(f"All {len(made.rows)} of them", drawn) if long else drawn]


def _settings(entries: Sequence[Entry]) -> list[str]:
    """The settings in which entries differ; their seeds are those of their trials."""
    different = compared([entry.trials[0] for entry in entries])[1]
    different |= {"seed": [_seeds(entry) for entry in entries]} if len({_seeds(entry) for entry in entries}) > 1 else {}
    if not different:
        return []
    names, values = [entry.name for entry in entries], list(different.values())
    if len(different) > len(entries):  # the longer way down
        columns = [Column("setting", "setting"), *(Column(name, name, is_text=True) for name in names)]
        rows = [[key, *map(as_text, row)] for key, row in different.items()]
        colours = [""] * len(rows)
    else:
        columns = [
            Column("entry", "entry"),
            *(Column(key, key, is_text=_has_text(different[key])) for key in different),
        ]
        rows = [[name, *(as_text(row[i]) for row in values)] for i, name in enumerate(names)]
        colours = [entry.look.colour for entry in entries]
    return ["<h2>Settings that differ</h2>", rich_table(Table(columns, rows), "Settings that differ", colours)]


def _seeds(entry: Entry) -> str:
    return ", ".join(as_text(run.settings.get("seed")) for run in entry.trials)


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
    return folded(f"{run.name}/config.toml", text)
