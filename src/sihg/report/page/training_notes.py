"""Write what stands beside the tables of training runs: facts, captions, and notes on samples and the paper."""

from collections.abc import Sequence

from sihg.report.page.html import evaluation_notes
from sihg.report.read.evaluations import ALL, Evaluation
from sihg.report.read.published import describe_departures, find_published
from sihg.report.read.results import find_results
from sihg.report.read.runs import Entry, TrainingRun, setting_text
from sihg.report.tables.table import count, radius_text
from sihg.store.statistics import describe_spreads

FACTS = {"data": "data {}", "model": "model {}", "eps": "ε = {}", "norm": "{} ball", "seed": "seed {}"}
PAPER_ATTACK = "pgd-20"  # by which the paper chose its best


def about(entries: Sequence[Entry], runs: Sequence[TrainingRun]) -> str:
    """Say in a sentence what the page shows."""
    model, data = (entries[0].settings.get(key, "unknown") for key in ("model", "data"))
    if len(entries) == 1:
        trials = f", {len(runs)} trials" if len(runs) > 1 else ""
        return f"{entries[0].method} training of {model} on {data}{trials}."
    return "Training runs side by side: accuracy on clean samples, and under attack within the ball (robust)."


def facts(entries: Sequence[Entry], runs: Sequence[TrainingRun]) -> list[str]:
    """List what all runs share."""
    found = [count(len(entries), "entry", "entries")] if len(entries) < len(runs) else []
    found += [count(len(runs), "run", "runs")]
    for key, form in FACTS.items():
        values = [run.settings[key] for run in runs if key in run.settings]
        if values and all(value == values[0] for value in values):
            value = values[0]
            text = radius_text(value) if key == "eps" and isinstance(value, int | float) else setting_text(value)
            found.append(form.format(text))
    epochs = {run.epochs for run in runs}
    return found + ([count(epochs.pop(), "epoch", "epochs")] if len(epochs) == 1 else [])


def status(runs: Sequence[TrainingRun]) -> list[str]:
    """Say which runs are not finished, and which results are not of their newest weights."""
    lines = [
        f"{run.name}: {run.epochs} of {count(run.planned_epochs or 0, 'epoch', 'epochs')} done so far: "
        "`sihg resume` continues the run"
        for run in runs
        if not run.is_finished
    ]
    for run in runs:
        if older := sorted({evaluation.older for evaluation in run.evaluations if evaluation.older}):
            outdated = f"{run.name}: {', '.join(older)} was evaluated, but the run has trained on since"
            lines.append(f"{outdated}, so this evaluation is not a result: evaluate the run again")
    return lines


def results_caption(entries: Sequence[Entry]) -> str:
    """Say on how many samples the results are, over how many trials, and what the numbers in brackets are."""
    tested = _shown_evaluations(entries)
    sizes = {evaluation.samples for _, evaluation in tested}
    parts = ["Accuracy in percent"] if tested else ["Accuracy while training, in percent"]
    if len(sizes) == 1:
        parts.append(f" on {count(sizes.pop(), 'test sample', 'test samples')}, never trained on")
    trials = {len(entry.counted) for entry in entries}
    if max(trials) > 1:
        each = f" over {trials.copy().pop()} trials" if len(trials) == 1 else " over the trials"
        parts.append(f"; {describe_spreads(len(entry.counted) for entry in entries)}{each} with other seeds")
    return f"{''.join(parts)}. Passes: gradient passes per training sample. Seconds: of training."


def result_notes(entries: Sequence[Entry], *, has_all: bool) -> list[str]:
    """Say which trials are left out, which numbers are bounds, and how the paper's were made.

    `has_all` says whether the table has a column for all attacks together.
    """
    notes = []
    if unfinished := sum(len(entry.trials) - len(entry.counted) for entry in entries):
        notes.append(f"{count(unfinished, 'unfinished trial is', 'unfinished trials are')} left out.")
    shown = _shown_evaluations(entries)
    results = find_results([run for entry in entries for run in entry.trials])
    explained = [evaluation for _, evaluation in shown if has_all or evaluation.attack != ALL]
    notes += [*results.notes, *evaluation_notes(explained)]
    notes += _best_notes(list(dict.fromkeys(run for run, evaluation in shown if evaluation.checkpoint == "best")))
    return [*notes, *_paper_notes(entries)]


def _shown_evaluations(entries: Sequence[Entry]) -> list[tuple[TrainingRun, Evaluation]]:
    runs = {run.name: run for entry in entries for run in entry.trials}
    results = find_results([*runs.values()])
    return [(runs[name], found) for of_runs in results.columns.values() for name, found in of_runs.items()]


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


def held_out_notes(entries: Sequence[Entry]) -> list[str]:
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
