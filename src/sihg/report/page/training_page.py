"""Write the page of training runs: results, learning curves, attacks and settings."""

from collections.abc import Sequence

from sihg.report.page.html import environment_texts, render
from sihg.report.page.page_figures import DrawnFigure, figure_parts
from sihg.report.page.page_tables import PageTable, page_table, toggles
from sihg.report.page.page_warnings import page_warnings
from sihg.report.page.reproduction import run_commands
from sihg.report.page.training_notes import about, facts, held_out_notes, result_notes, results_caption, status
from sihg.report.read.evaluations import ALL, Remark
from sihg.report.read.runs import Entry, compare_settings, setting_text
from sihg.report.tables.compact import results_first
from sihg.report.tables.table import Cell, Column, Table
from sihg.report.tables.training_tables import TEST, training_table

LEARNING = ("training_accuracy", "held_out_natural", "held_out_robust", "best_natural", "best_robust", "best_epoch")
MAX_ROWS = 12  # of evaluations that are not folded


def training_page(
    title: str,
    entries: Sequence[Entry],
    headline: tuple[Table, Sequence[Entry | None]],
    differences: Table,
    evaluations: Table,
    figures: Sequence[DrawnFigure],
    latex: str,
    *,
    grid: str = "",
    refresh: float | None = None,
) -> str:
    """Return the page as text; a browser loads it again after `refresh` seconds. `grid` is the command of a grid."""
    runs = [run for entry in entries for run in entry.trials]
    table, owners = headline
    results, learning = _split_headline(table)
    entry_of = {run.name: entry for entry in entries for run in entry.trials}
    tested = [entry_of[str(row[0])] for row in evaluations.rows]
    names = {entry.name: [run.name for run in entry.trials] for entry in entries}
    warnings = [(run.name, remark) for run in runs for remark in (*map(Remark, run.warnings), *run.remarks)]
    return render(
        "training.html",
        title=title,
        kicker="sihg, adversarial training",
        about=about(entries, runs),
        refresh=None if refresh is None else max(1, round(refresh)),
        facts=facts(entries, runs),
        status=status(runs),
        toggles=toggles([entry.name for entry in entries], [entry.look.colour for entry in entries]),
        warnings=page_warnings(warnings, names),
        not_run=page_warnings([(run.name, remark) for run in runs for remark in run.not_run], names),
        results=_entry_table(results, results_caption(entries), owners),
        result_notes=result_notes(
            entries, has_all=any(column.key.startswith(f"{TEST}{ALL}") for column in results.columns)
        ),
        differences=page_table(differences, "Differences of the means", [""] * len(differences.rows)),
        latex=latex,
        learning=_learning_table(learning, owners),
        held_out_notes=held_out_notes(entries),
        figures=figure_parts(figures, "training"),
        trials=_trial_tables(entries),
        evaluations=page_table(
            evaluations,
            "Accuracy under every attack that was run. Passes: gradient passes per sample.",
            [entry.look.colour for entry in tested],
            entries=[entry.name for entry in tested],
        ),
        max_rows=MAX_ROWS,
        settings=_settings_table(entries),
        common_settings={key: setting_text(value) for key, value in compare_settings(runs)[0].items()}
        if len(runs) > 1
        else {},
        environment=environment_texts([run.environment for run in runs]),
        commands=run_commands(entries, grid),
        configs=[{"name": run.name, "text": run.config} for run in runs],
    )


def _split_headline(table: Table) -> tuple[Table, Table]:
    """Split the headline: results on test samples with costs, and accuracy while training.

    Columns that are the same in all rows are left out: the page says them elsewhere. Without results on test samples,
    everything is in the first table.
    """
    keys = [column.key for column in table.columns]
    values = {key: {row[i] for row in table.rows} for i, key in enumerate(keys)}
    known = [key for key in ("data", "model", "norm", "eps", "trials", "epochs") if len(values[key]) == 1]
    ours = [row for row in table.rows if not str(row[0]).startswith("paper: ")]
    known += ["method"] if len(ours) == 1 or all(row[0] == row[1] for row in ours) else []
    known += ["samples"] if len(values.get("samples", set()) - {None}) == 1 else []  # in the caption
    if not any(key.startswith(TEST) for key in keys):
        return results_first(table, known), Table([], [])
    return results_first(table, [*known, *LEARNING]), table.part("entry", *LEARNING)


def _entry_table(table: Table, caption: str, owners: Sequence[Entry | None]) -> PageTable | None:
    """Prepare a table with rows of entries; a row of published results belongs to the entry above it."""
    colours = [owner.look.colour if owner else None for owner in owners]
    names: list[str] = []
    for owner in owners:
        names.append(owner.name if owner else names[-1])
    return page_table(table, caption, colours, entries=names)


def _learning_table(table: Table, owners: Sequence[Entry | None]) -> PageTable | None:
    """Show rows of the paper only if it has such numbers."""
    known = [i for i, row in enumerate(table.rows) if owners[i] or any(cell is not None for cell in row[1:])]
    rows = Table(table.columns, [table.rows[i] for i in known])
    return _entry_table(rows, "Accuracy while training, last and best so far, in percent", [owners[i] for i in known])


def _trial_tables(entries: Sequence[Entry]) -> list[PageTable | None]:
    """List every run if an entry has several: results, and accuracy while training if there are results."""
    if all(len(entry.trials) == 1 for entry in entries):
        return []
    table = training_table([run for entry in entries for run in entry.trials])
    owners = [entry for entry in entries for _ in entry.trials]
    values = {column.key: {row[i] for row in table.rows} for i, column in enumerate(table.columns)}
    same = ("data", "model", "norm", "eps", "samples", "epochs")
    hidden = ["method", *(key for key in same if len(values.get(key, ())) == 1)]
    named = Table([table.columns[0]._replace(key="entry"), *table.columns[1:]], table.rows)
    learning = named.part("entry", *LEARNING) if any(key.startswith(TEST) for key in values) else Table([], [])
    results = results_first(named, [*hidden, *(LEARNING if learning.rows else ())])
    tables = [_entry_table(results, "What every run reached, and what it cost", owners)]
    caption = "Accuracy of every run while training, last and best so far"
    return tables + ([_entry_table(learning, caption, owners)] if learning.rows else [])


def _settings_table(entries: Sequence[Entry]) -> PageTable | None:
    """Compare the settings of entries; the longer list forms the rows."""
    different = compare_settings([entry.trials[0] for entry in entries])[1]
    seeds = [", ".join(setting_text(run.settings.get("seed")) for run in entry.trials) for entry in entries]
    different |= {"seed": [*seeds]} if len(set(seeds)) > 1 else {}
    names, colours = [entry.name for entry in entries], [entry.look.colour for entry in entries]
    rows: list[list[Cell]]
    if len(different) > len(entries):
        columns = [Column("setting", "setting"), *(Column(name, name, is_text=True) for name in names)]
        rows = [[key, *(setting_text(value) for value in values)] for key, values in different.items()]
        colours = [""] * len(rows)
    else:
        is_text = {key: any(isinstance(value, str | list) for value in values) for key, values in different.items()}
        columns = [Column("entry", "entry"), *(Column(key, key, is_text[key]) for key in different)]
        rows = [[name, *(setting_text(values[i]) for values in different.values())] for i, name in enumerate(names)]
    return page_table(Table(columns, rows), "Settings that differ", colours) if different else None
