"""Make the tables of training runs: results and costs per entry and run, differences, and every evaluation."""

from collections.abc import Mapping, Sequence
from itertools import combinations

from sihg.parse import Value
from sihg.report.read.evaluations import ALL, Evaluation
from sihg.report.read.published import Published, find_published
from sihg.report.read.results import find_results
from sihg.report.read.runs import Entry, TrainingRun
from sihg.report.tables.table import PERCENT, Cell, Column, Table, cell_text, radius_text
from sihg.store.statistics import Spread, spread, welch

TEST, SAMPLES = "test ", "samples "  # begin the keys of accuracies on test samples, and of the numbers of samples
CLEAN = "natural"  # the evaluation without an attack, which tables for reading call clean
ABOUT = ("run", "method", "data", "model", "norm", "eps")
ALWAYS = (*ABOUT, "epochs", "training_accuracy", "passes", "seconds")  # columns that stay when they are empty
PAPER_BEST = {"natural": "best_natural", "pgd-20": "best_robust"}  # columns of the paper's best, chosen by PGD-20
NOT_TARGET = "not the target"  # what the share of a targeted attack is of
MAX_ALL_PAIRS = 6  # entries of which all pairs are compared


def training_table(runs: Sequence[TrainingRun]) -> Table:
    """Make a row per run; columns that no run can fill are left out."""
    tested = find_results(runs).columns
    columns = [
        Column("run", "run", is_text=True),
        Column("method", "method", is_text=True),
        Column("data", "data", is_text=True),
        Column("model", "model", is_text=True),
        Column("norm", "norm", is_text=True),
        Column("eps", "ε"),
        Column("epochs", "epochs"),
        Column("epochs_asked", "of"),
        Column("samples", "test samples"),
        *(column for name in tested for column in _test_columns(name)),
        Column("passes", "gradient passes per sample"),
        Column("seconds", "training seconds"),
        Column("training_accuracy", f"training{PERCENT}"),
        Column("held_out_natural", f"held-out clean, last{PERCENT}"),
        Column("held_out_robust", f"held-out robust, last{PERCENT}"),
        Column("best_natural", f"held-out clean, at best{PERCENT}"),
        Column("best_robust", f"held-out robust, best{PERCENT}"),
        Column("best_epoch", "best epoch"),
    ]
    rows = [
        [
            *_about(run),
            _samples(run.name, tested),
            *(cell for tests in tested.values() for cell in _test_cells(tests.get(run.name))),
            *([run.rows[-1].passes, run.rows[-1].seconds, run.rows[-1].accuracy] if run.rows else [None] * 3),
            *([run.last.natural, run.last.robust] if run.last else [None] * 2),
            *([run.best.natural, run.best.robust, run.best.epoch] if run.best else [None] * 3),
        ]
        for run in runs
    ]
    filled = [c.key for i, c in enumerate(columns) if c.key in ALWAYS or any(row[i] is not None for row in rows)]
    has_tests = [run.name for run in runs if any(run.name in tests for tests in tested.values())]
    one_size = all(_samples(name, tested) is not None for name in has_tests)
    hidden = {f"{SAMPLES}{name}" for name in tested} if one_size else {"samples"}
    hidden |= {"epochs_asked"} if all(run.planned_epochs == run.epochs for run in runs) else set()
    return Table(columns, rows).part(*(key for key in filled if key not in hidden))


def entry_table(entries: Sequence[Entry]) -> tuple[Table, list[Entry | None]]:
    """Make a row per entry, over its trials, followed by the paper's result; return also the entry of each row.

    The paper's result for a data set and a method is shown once; its row has no entry.
    """
    trial_table = training_table([run for entry in entries for run in entry.trials])
    row_of = {str(row[0]): row for row in trial_table.rows}
    keys = [column.key for column in trial_table.columns]
    rows: list[list[Cell]] = []
    owners: list[Entry | None] = []
    shown: set[tuple[str, str]] = set()  # data and method of the paper's rows
    for entry in entries:
        trials = [row_of[run.name] for run in entry.counted]
        cells = [_over_trials(key, [row[i] for row in trials]) for i, key in enumerate(keys)]
        if not _same_tests(keys, trials):  # the mean of all would be over other trials, or other attacks
            cells = [None if _is_all(key) else cell for key, cell in zip(keys, cells, strict=True)]
        rows.append([entry.name, *cells[1 : len(ABOUT)], len(trials), *cells[len(ABOUT) :]])
        owners.append(entry)
        paper = find_published(entry.settings)
        if paper and (about := (str(entry.settings["data"]), paper.name)) not in shown:
            shown.add(about)
            rows.append([f"paper: {paper.name}", *cells[1 : len(ABOUT)], *_paper_cells(paper, keys[len(ABOUT) :])])
            owners.append(None)
    first, *rest = trial_table.columns
    columns = [first._replace(key="entry", heading="entry"), *rest[: len(ABOUT) - 1]]
    return Table([*columns, Column("trials", "trials"), *rest[len(ABOUT) - 1 :]], rows), owners


def difference_table(headline: Table, owners: Sequence[Entry | None]) -> Table:
    """Make a row per attack and pair of entries with several trials: later minus earlier, and its 95 % interval.

    Entries with other data or another ball are not compared. If there are many, each is compared with the first only.
    `headline` and `owners` are those of `entry_table`.
    """
    columns = [
        Column("entry", "entry", is_text=True),
        Column("less", "minus", is_text=True),
        Column("attack", "attack", is_text=True),
        Column("difference", f"difference{PERCENT}"),
        Column("low", f"from{PERCENT}"),
        Column("high", f"to{PERCENT}"),
    ]
    rows: list[list[Cell]] = []
    for i, column in enumerate(headline.columns):
        if column.key.startswith(TEST) and not _is_all(column.key):  # ALL is close to the strongest attack
            known = [
                (owner, cell)
                for owner, cell in zip(owners, (row[i] for row in headline.rows), strict=True)
                if owner and isinstance(cell, Spread) and cell.deviation is not None
            ]
            pairs = combinations(known, 2) if len(known) <= MAX_ALL_PAIRS else [(known[0], pair) for pair in known[1:]]
            for (earlier, before), (later, after) in pairs:
                if _threat(earlier) == _threat(later):
                    rows.append([later.name, earlier.name, column.key.removeprefix(TEST), *welch(after, before)])
    return Table(columns, rows)


def evaluation_table(runs: Sequence[tuple[str, Sequence[Evaluation]]], heading: str = "run") -> Table:
    """Make a row per attack of each evaluation, of runs or records given by name."""
    targeted = {bool(evaluation.target) for _, found in runs for evaluation in found}
    share = NOT_TARGET if targeted == {True} else "accuracy"
    if len(targeted) > 1:
        share = f"{share}; targeted: {NOT_TARGET},"
    columns = [
        Column(heading, heading, is_text=True),
        Column("checkpoint", "checkpoint", is_text=True),
        Column("data", "data", is_text=True),
        Column("ball", "ball", is_text=True),
        Column("attack", "attack", is_text=True),
        Column("accuracy", f"{share}{PERCENT}"),
        Column("low", f"from{PERCENT}"),
        Column("high", f"to{PERCENT}"),
        Column("samples", "samples"),
        Column("passes", "gradient passes per sample"),
        Column("seconds", "seconds"),
        Column("rule", "broken at", is_text=True),
    ]
    rows = [[name, *_evaluation_cells(evaluation)] for name, found in runs for evaluation in found]
    return Table(columns, rows)


def attack_heading(name: str) -> str:
    """Return the heading of a column of accuracies; the one without an attack is called clean, as natural is a method.

    >>> attack_heading("natural (last)"), attack_heading("pgd-20")
    ('clean (last)', 'pgd-20')
    """
    return name.replace(CLEAN, "clean", 1) if name.startswith(CLEAN) else name


def _over_trials(key: str, cells: Sequence[Cell]) -> Cell:
    """Average a measured number over trials; list the different values of anything else."""
    if key not in (*ABOUT, "epochs", "epochs_asked") and not key.startswith("samples"):
        return spread([cell if isinstance(cell, int | float) else None for cell in cells])
    known = [cell for cell in cells if cell is not None] if key.startswith(SAMPLES) else cells
    different = list(dict.fromkeys(known)) or [None]
    return different[0] if len(different) == 1 else " / ".join(cell_text(cell) for cell in different)


def _same_tests(keys: Sequence[str], trials: Sequence[Sequence[Cell]]) -> bool:
    """Whether all trials have figures in the same columns, so that their means are over the same trials."""
    places = [i for i, key in enumerate(keys) if key.startswith(TEST)]
    return len({tuple(row[i] is None for i in places) for row in trials}) == 1


def _is_all(key: str) -> bool:
    """Whether a column is about all attacks together."""
    name = key.removeprefix(TEST).removeprefix(SAMPLES)
    return key != name and name.partition(" (")[0] == ALL


def _paper_cells(paper: Published, keys: Sequence[str]) -> list[Cell]:
    cells: dict[str, Cell] = {f"{TEST}{attack}": value for attack, value in paper.final.items()}
    cells |= {f"{TEST}{attack} (last)": value for attack, value in paper.final.items()}
    cells |= {PAPER_BEST[attack]: value for attack, value in paper.best.items()}
    epochs = paper.recipe.get("epochs")
    cells["epochs"] = epochs if isinstance(epochs, int) else None
    return [paper.trials, *(cells.get(key) for key in keys)]


def _about(run: TrainingRun) -> list[Cell]:
    eps = run.settings.get("eps")
    return [
        run.name,
        run.method,
        *(str(run.settings.get(key, "—")) for key in ("data", "model", "norm")),
        float(eps) if isinstance(eps, int | float) else None,
        run.epochs,
        run.planned_epochs,
    ]


def _threat(entry: Entry) -> list[Value | None]:
    """Return the settings that must be the same for accuracies to be comparable."""
    return [entry.settings.get(key) for key in ("data", "eps", "norm", "bounds")]


def _test_columns(name: str) -> list[Column]:
    accuracy = Column(f"{TEST}{name}", f"{attack_heading(name)}{PERCENT}")
    return [accuracy, Column(f"{SAMPLES}{name}", f"samples of {name}", size_of=accuracy.key)]


def _test_cells(evaluation: Evaluation | None) -> list[Cell]:
    return [None, None] if evaluation is None else [evaluation.accuracy, evaluation.samples]


def _samples(run: str, tested: Mapping[str, Mapping[str, Evaluation]]) -> int | None:
    """Return the number of samples of all tests of a run; None if they differ."""
    numbers = {tests[run].samples for tests in tested.values() if run in tests}
    return numbers.pop() if len(numbers) == 1 else None


def _evaluation_cells(evaluation: Evaluation) -> list[Cell]:
    is_attack, older = evaluation.attack != "natural", evaluation.older
    ball = f"{evaluation.norm} {radius_text(evaluation.eps)}" + ("" if evaluation.bounded else " without bounds")
    return [
        f"{evaluation.checkpoint} (older: {older})" if older else evaluation.checkpoint,
        f"{evaluation.data} {evaluation.split}".strip(),
        ball if is_attack else None,
        f"{evaluation.attack} of {evaluation.among}" if evaluation.among else evaluation.attack,
        *(evaluation.accuracy, evaluation.low, evaluation.high),
        *(evaluation.samples, evaluation.passes, evaluation.seconds),
        "; ".join(filter(None, [evaluation.rule if is_attack or evaluation.target else "", evaluation.how])) or None,
    ]
