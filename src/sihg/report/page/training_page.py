"""Write the page of training runs: results, learning curves, attacks and settings, with the notes below its tables."""

from collections.abc import Sequence

from sihg.report.page.html import (
    DrawnFigure,
    PageTable,
    environment_texts,
    evaluation_notes,
    figure_parts,
    page_table,
    page_warnings,
    render,
)
from sihg.report.read.evaluations import Remark
from sihg.report.read.published import describe_departures, find_published
from sihg.report.read.results import find_results
from sihg.report.read.runs import Entry, TrainingRun, compare_settings, setting_text
from sihg.report.tables.table import Cell, Column, Table, count, radius_text
from sihg.report.tables.training_tables import TEST, training_table
from sihg.store.statistics import describe_spreads

FACTS = {"data": "data {}", "model": "model {}", "eps": "ε = {}", "norm": "{} ball", "seed": "seed {}"}
LEARNING = ("training_accuracy", "held_out_natural", "held_out_robust", "best_natural", "best_robust", "best_epoch")
MAX_ROWS = 12  # of evaluations that are not folded
PAPER_ATTACK = "pgd-20"  # by which the paper chose its best


def training_page(
    title: str,
    entries: Sequence[Entry],
    headline: tuple[Table, Sequence[Entry | None]],
    differences: Table,
    evaluations: Table,
    figures: Sequence[DrawnFigure],
    refresh: float | None,
) -> str:
    """Return the page as text; a browser loads it again after `refresh` seconds."""
    runs = [run for entry in entries for run in entry.trials]
    table, owners = headline
    colours = [owner.look.colour if owner else None for owner in owners]
    results, learning = _split_headline(table)
    colour_of = {run.name: entry.look.colour for entry in entries for run in entry.trials}
    marks = [colour_of[str(row[0])] for row in evaluations.rows]
    return render(
        "training.html",
        title=title,
        kicker="sihg, adversarial training",
        about=_about(entries, runs),
        refresh=None if refresh is None else max(1, round(refresh)),
        facts=_facts(entries, runs),
        warnings=page_warnings([(run.name, remark) for run in runs for remark in _remarks(run)]),
        not_run=page_warnings([(run.name, remark) for run in runs for remark in run.not_run]),
        results=page_table(results, "What every entry reached, and what it cost", colours),
        result_notes=[*_result_notes(entries), *_paper_notes(entries)],
        differences=page_table(differences, "Differences of the means", [""] * len(differences.rows)),
        learning=_learning_table(learning, colours),
        held_out_notes=_held_out_notes(entries),
        figure_parts=figure_parts(figures, "training"),
        trials=_trial_tables(entries),
        evaluations=page_table(evaluations, "Accuracy under every attack that was run", marks),
        max_rows=MAX_ROWS,
        settings=_settings_table(entries),
        common_settings={key: setting_text(value) for key, value in compare_settings(runs)[0].items()}
        if len(runs) > 1
        else {},
        environment=environment_texts([run.environment for run in runs]),
        configs=[{"name": run.name, "text": run.config} for run in runs],
    )


def _split_headline(table: Table) -> tuple[Table, Table]:
    """Split the headline: results on test samples with costs, and accuracy while training.

    Columns that are the same in all rows are left out: the page says them elsewhere. Without results on test samples,
    everything is in the first table.
    """
    keys = [column.key for column in table.columns]
    values = {key: {row[i] for row in table.rows} for i, key in enumerate(keys)}
    known = [key for key in ("data", "model", "norm", "eps") if len(values[key]) == 1]  # among the facts
    known += ["method"] if all(row[0] == row[1] for row in table.rows if not str(row[0]).startswith("paper: ")) else []
    known += ["trials"] if values["trials"] == {1} else []
    known += ["samples"] if len(values.get("samples", set()) - {None}) == 1 else []  # in a note
    shown = [key for key in keys if key not in known]
    if not any(key.startswith(TEST) for key in keys):
        return table.part(*shown), Table([], [])
    return table.part(*(key for key in shown if key not in LEARNING)), table.part("entry", *LEARNING)


def _learning_table(table: Table, colours: Sequence[str | None]) -> PageTable | None:
    """Show rows of the paper only if it has such numbers."""
    known = [i for i, row in enumerate(table.rows) if colours[i] or any(cell is not None for cell in row[1:])]
    rows = Table(table.columns, [table.rows[i] for i in known])
    return page_table(rows, "Accuracy while training, last and best so far", [colours[i] for i in known])


def _trial_tables(entries: Sequence[Entry]) -> list[PageTable | None]:
    """List every run if an entry has several: results, and accuracy while training if there are results."""
    if all(len(entry.trials) == 1 for entry in entries):
        return []
    table = training_table([run for entry in entries for run in entry.trials])
    colours = [entry.look.colour for entry in entries for _ in entry.trials]
    values = {column.key: {row[i] for row in table.rows} for i, column in enumerate(table.columns)}
    hidden = ["method", *(key for key in ("data", "model", "norm", "eps", "samples") if len(values.get(key, ())) == 1)]
    shown = [key for key in values if key not in hidden]
    learning = [key for key in shown if key in LEARNING] if any(key.startswith(TEST) for key in shown) else []
    results = table.part(*(key for key in shown if key not in learning))
    tables = [page_table(results, "What every run reached, and what it cost", colours)]
    caption = "Accuracy of every run while training, last and best so far"
    return tables + ([page_table(table.part("run", *learning), caption, colours)] if learning else [])


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


def _about(entries: Sequence[Entry], runs: Sequence[TrainingRun]) -> str:
    model, data = (entries[0].settings.get(key, "unknown") for key in ("model", "data"))
    if len(entries) == 1:
        trials = f", {len(runs)} trials" if len(runs) > 1 else ""
        return f"{entries[0].method} training of {model} on {data}{trials}."
    return "Training runs side by side: accuracy on unchanged samples, and under attack within the ball."


def _facts(entries: Sequence[Entry], runs: Sequence[TrainingRun]) -> list[str]:
    facts = [count(len(entries), "entry", "entries")] if len(entries) < len(runs) else []
    facts += [count(len(runs), "run", "runs")]
    for key, form in FACTS.items():
        values = [run.settings[key] for run in runs if key in run.settings]
        if values and all(value == values[0] for value in values):
            value = values[0]
            text = radius_text(value) if key == "eps" and isinstance(value, int | float) else setting_text(value)
            facts.append(form.format(text))
    return facts


def _remarks(run: TrainingRun) -> list[Remark]:
    remarks = []
    if not run.is_finished:
        epochs = count(run.planned_epochs or 0, "epoch", "epochs")
        remarks.append(Remark(f"{run.epochs} of {epochs} done so far: `sihg resume` continues the run"))
    older = sorted({evaluation.older for evaluation in run.evaluations if evaluation.older})
    if older:
        outdated = f"{', '.join(older)} was evaluated, but the run has trained on since"
        remarks.append(Remark(f"{outdated}, so this evaluation is not a result: evaluate the run again"))
    return [*remarks, *map(Remark, run.warnings), *run.remarks]


# ---- notes below the tables


def _result_notes(entries: Sequence[Entry]) -> list[str]:
    """Say what is averaged, over which samples, and which numbers are bounds."""
    notes = []
    if any(len(entry.trials) > 1 for entry in entries):
        averaged = describe_spreads(len(entry.counted) for entry in entries)
        notes.append(f"{averaged.capitalize()} over the trials: runs that differ only in their seed.")
    if unfinished := sum(len(entry.trials) - len(entry.counted) for entry in entries):
        notes.append(f"{count(unfinished, 'unfinished trial is', 'unfinished trials are')} left out.")
    runs = {run.name: run for entry in entries for run in entry.trials}
    results = find_results([*runs.values()])
    shown = [(runs[name], found) for of_runs in results.columns.values() for name, found in of_runs.items()]
    sizes = {evaluation.samples for _, evaluation in shown}
    if len(sizes) == 1:
        notes.append(f"On {count(sizes.pop(), 'test sample', 'test samples')}, never trained on.")
    notes += [*results.notes, *evaluation_notes([evaluation for _, evaluation in shown])]
    return notes + _best_notes(list(dict.fromkeys(run for run, evaluation in shown if evaluation.checkpoint == "best")))


def _best_notes(runs: Sequence[TrainingRun]) -> list[str]:
    """Say on which samples the checkpoints called best were chosen."""
    on_test = [run.name for run in runs if run.settings.get("validate_on") == "test"]
    others = [run.name for run in runs if run.name not in on_test]
    notes = []
    for chosen, names in {"not on test samples": others, "on test samples, as in the paper": on_test}.items():
        if names:
            of = f" of {', '.join(names)}" if len(names) < len(runs) else ""
            notes.append(f"(best){of}: the checkpoint with the best held-out robust accuracy, chosen {chosen}.")
    return notes


def _held_out_notes(entries: Sequence[Entry]) -> list[str]:
    """Say on which samples and with which attack accuracy was measured while training."""
    runs = [run for entry in entries for run in entry.counted if run.best]
    notes = ["Training: accuracy in the last epoch on the training samples, perturbed as the method trains on them."]
    for samples, attack, on_test in dict.fromkeys(
        (
            setting_text(run.settings.get("validation")),
            str(run.settings.get("evaluate_with", "the run's attack")),
            run.settings.get("validate_on") == "test",
        )
        for run in runs
    ):
        what = "test samples, as in the paper," if on_test else "training samples that were not trained on,"
        notes.append(
            f"Held-out: {samples} {what} attacked with {attack}. Best: the epoch with the best robust accuracy on "
            "these samples. It is measured on the samples that chose it, so it is slightly optimistic."
        )
    others = {str(run.settings.get("evaluate_with")) for run in runs} - {PAPER_ATTACK}
    if others and any((paper := find_published(entry.settings)) and paper.best for entry in entries):
        notes.append(f"The paper's best numbers are under {PAPER_ATTACK}, on its whole test set.")
    return notes


def _paper_notes(entries: Sequence[Entry]) -> list[str]:
    """Say where the paper's numbers are printed, and how the settings of the runs differ from its own."""
    found = [(entry.settings, paper) for entry in entries if (paper := find_published(entry.settings))]
    with_best = any(run.best for entry in entries for run in entry.trials)
    notes = []
    for citation, trials, has_best in dict.fromkeys(
        (paper.citation(best=with_best), paper.trials, with_best and bool(paper.best)) for _, paper in found
    ):
        averaged = f"mean and deviation over {trials} trials" if trials else "quoted there"
        chosen = f"; its best was chosen by {PAPER_ATTACK}" if has_best else ""
        notes.append(
            f"paper: {citation}; {averaged}, on the test set{chosen}. The paper does not say which iterates of an "
            "attack count; here, a sample is broken if any iterate is misclassified."
        )
    return [*notes, *describe_departures(found)]
