"""What has to be said below the tables of training runs, so that nobody reads more into them than they hold."""

from collections.abc import Iterator, Sequence

from sihg.report.read.entries import Entry
from sihg.report.read.evaluations import ALL, PROVEN
from sihg.report.read.published import reported, unlike
from sihg.report.read.runs import TrainingRun, as_text
from sihg.report.tables.table import count
from sihg.report.tables.training_tables import results

PAPERS = "pgd-20"  # the attack by which the paper chose its best


def result_notes(entries: Sequence[Entry]) -> Iterator[str]:
    """On the results: what is averaged, over what, and what bounds what."""
    if any(len(entry.trials) > 1 for entry in entries):
        yield "Mean ± sample standard deviation over the trials, runs that differ in their seed alone."
    left_out = sum(len(entry.trials) - len(entry.counted) for entry in entries)
    if left_out:
        yield f"Of entries with finished trials, the {left_out} unfinished ones are left out."
    runs = {run.name: run for entry in entries for run in entry.counted}
    shown = [(name, one) for of_kind in results([*runs.values()]).values() for name, one in of_kind.items()]
    found = [one for _, one in shown]
    numbers = {one.samples for one in found if one.samples is not None}
    if len(numbers) == 1:
        yield f"On {count(numbers.pop(), 'test sample', 'test samples')}, never trained on."
    if any(one.attack == ALL for one in found):
        yield "all: what holds under every attack of one evaluation, sample by sample."
    yield from _best_notes([runs[name] for name in dict.fromkeys(n for n, one in shown if one.checkpoint == "best")])
    if any(one.rule == PROVEN for one in found):
        yield "proven: a lower bound; no attack within the ball breaks more. Attacks give upper bounds."


def _best_notes(runs: Sequence[TrainingRun]) -> Iterator[str]:
    """What chose the checkpoints called best: a note for each kind of choice, with the runs where there are both."""
    on_test = [run.name for run in runs if run.settings.get("validate_on") == "test"]
    others = [run.name for run in runs if run.name not in on_test]
    kinds = {"no test sample chose it": others, "test samples chose it, as in the paper": on_test}
    for chosen, names in kinds.items():
        if names:
            of = f" of {', '.join(names)}" if len(names) < len(runs) else ""
            yield f"(best){of}: the checkpoint with the best robust accuracy on the samples watched; {chosen}."


def held_out_notes(entries: Sequence[Entry]) -> Iterator[str]:
    """On the accuracies while training: the samples and the attack, and what the best was chosen on."""
    about = dict.fromkeys(
        (
            as_text(run.settings.get("validation")),
            str(run.settings.get("evaluate_with", "the run's attack")),
            run.settings.get("validate_on") == "test",
        )
        for entry in entries
        for run in entry.counted
        if run.best
    )
    for samples, attack, is_test in about:
        what = "test samples, as in the paper," if is_test else "training samples that were not trained on,"
        yield (
            f"Held-out: {samples} {what} attacked with {attack}. Best: the epoch with the best robust accuracy on "
            "these samples, measured on the same samples, so it flatters a little."
        )
    others = {str(run.settings.get("evaluate_with")) for entry in entries for run in entry.counted if run.best}
    if others - {PAPERS} and any((paper := reported(entry.settings)) and paper.best for entry in entries):
        yield f"The paper's best stand beside these, but are under {PAPERS}, on its whole test set."


def paper_notes(entries: Sequence[Entry]) -> Iterator[str]:
    """Where the paper's numbers stand, and in what the runs beside them differ from its settings."""
    beside = [(entry, paper) for entry in entries if (paper := reported(entry.settings))]
    shown = any(run.best for entry in entries for run in entry.trials)  # the columns that the paper's best stands in
    for cited, trials, best in dict.fromkeys(
        (paper.cited(best=shown), paper.trials, shown and bool(paper.best)) for _, paper in beside
    ):
        averaged = f"mean and deviation over {trials} trials" if trials else "quoted there"
        chosen = f"; its best was chosen by {PAPERS}" if best else ""
        yield (
            f"paper: {cited}; {averaged}, on the test set{chosen}. "
            "Which iterates of an attack count is not said there; here a sample is broken at any of them."
        )
    yield from unlike((entry.settings, paper) for entry, paper in beside)
