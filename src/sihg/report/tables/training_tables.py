"""Make the tables of training runs: results and costs per entry and run, differences, and every evaluation."""

from collections.abc import Mapping, Sequence
from itertools import combinations

from sihg.parse import Value
from sihg.report.read.evaluations import ALL, PROVEN, Evaluation
from sihg.report.read.published import Published, find_published
from sihg.report.read.runs import Entry, TrainingRun
from sihg.report.tables.table import PERCENT, Cell, Column, Table, cell_text, radius_text
from sihg.store.statistics import Spread, spread, welch

TEST = "test "  # keys of accuracies on test samples begin with it
ABOUT = ("run", "method", "data", "model", "eps")
ALWAYS = (*ABOUT, "epochs", "training_accuracy", "passes", "seconds")  # columns that stay when they are empty
ATTACK_ORDER = ("natural", "pgd-20", "pgd-50-10", "standard")  # then other attacks, ALL, and proofs
PAPER_BEST = {"natural": "best_natural", "pgd-20": "best_robust"}  # columns of the paper's best, chosen by PGD-20
MAX_ALL_PAIRS = 6  # entries of which all pairs are compared


def training_table(runs: Sequence[TrainingRun]) -> Table:
    """Make a row per run; columns that no run can fill are left out."""
    tested = find_results(runs)
    columns = [
        Column("run", "run", is_text=True),
        Column("method", "method", is_text=True),
        Column("data", "data", is_text=True),
        Column("model", "model", is_text=True),
        Column("eps", "ε"),
        Column("epochs", "epochs"),
        Column("epochs_asked", "of"),
        Column("samples", "test samples"),
        *(column for name in tested for column in _test_columns(name)),
        Column("passes", "gradient passes per sample"),
        Column("seconds", "training seconds"),
        Column("training_accuracy", f"training{PERCENT}"),
        Column("held_out_natural", f"held-out natural, last{PERCENT}"),
        Column("held_out_robust", f"held-out robust, last{PERCENT}"),
        Column("best_natural", f"held-out natural, at best{PERCENT}"),
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
    hidden = {f"samples {name}" for name in tested} if one_size else {"samples"}
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
        if column.key.startswith(TEST) and column.key != f"{TEST}{ALL}":  # ALL is close to the strongest attack
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
    columns = [
        Column(heading, heading, is_text=True),
        Column("checkpoint", "checkpoint", is_text=True),
        Column("data", "data", is_text=True),
        Column("ball", "ball", is_text=True),
        Column("attack", "attack", is_text=True),
        Column("accuracy", f"accuracy{PERCENT}"),
        Column("low", f"from{PERCENT}"),
        Column("high", f"to{PERCENT}"),
        Column("samples", "samples"),
        Column("passes", "gradient passes per sample"),
        Column("seconds", "seconds"),
        Column("rule", "broken at", is_text=True),
    ]
    rows = [[name, *_evaluation_cells(evaluation)] for name, found in runs for evaluation in found]
    return Table(columns, rows)


def find_results(runs: Sequence[TrainingRun]) -> dict[str, dict[str, Evaluation]]:
    """Select evaluations by attack, then run: newest weights, the run's own test samples and its own ball.

    Checkpoints are named if several were tested. Of several evaluations of a kind, the one on most samples counts; of
    these, the one that broke most.
    """
    kept: dict[tuple[str, str, str], dict[str, Evaluation]] = {}
    for run in runs:
        for evaluation in run.evaluations:
            if evaluation.is_result:
                is_named = evaluation.rule in ("last iterate", PROVEN) and evaluation.attack != "natural"
                kind = (evaluation.attack, evaluation.checkpoint, evaluation.rule if is_named else "")
                of_kind = kept.setdefault(kind, {})
                if run.name not in of_kind or _weight(evaluation) > _weight(of_kind[run.name]):
                    of_kind[run.name] = evaluation
    several = len({checkpoint for _, checkpoint, _ in kept}) > 1
    named = {}
    for (attack, checkpoint, rule), of_kind in sorted(kept.items(), key=lambda pair: _rank(*pair[0])):
        details = ", ".join(part for part in (checkpoint if several else "", rule) if part)
        named[f"{attack} ({details})" if details else attack] = of_kind
    return named


def _over_trials(key: str, cells: Sequence[Cell]) -> Cell:
    """Average a measured number over trials; list the different values of anything else."""
    if key not in (*ABOUT, "epochs", "epochs_asked") and not key.startswith("samples"):
        return spread([cell if isinstance(cell, int | float) else None for cell in cells])
    different = list(dict.fromkeys(cells))
    return different[0] if len(different) == 1 else " / ".join(cell_text(cell) for cell in different)


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
        *(str(run.settings.get(key, "—")) for key in ("data", "model")),
        float(eps) if isinstance(eps, int | float) else None,
        run.epochs,
        run.planned_epochs,
    ]


def _threat(entry: Entry) -> list[Value | None]:
    """Return the settings that must be the same for accuracies to be comparable."""
    return [entry.settings.get(key) for key in ("data", "eps", "norm", "bounds")]


def _test_columns(name: str) -> list[Column]:
    return [Column(f"{TEST}{name}", f"{name}{PERCENT}"), Column(f"samples {name}", f"samples of {name}")]


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
        "; ".join(filter(None, [evaluation.rule if is_attack else "", evaluation.how])) or None,
    ]


def _weight(evaluation: Evaluation) -> tuple[int, float]:
    return evaluation.samples, -evaluation.accuracy


def _rank(attack: str, checkpoint: str, rule: str) -> tuple[bool, str, int]:
    """Sort the last checkpoint first; within one, the attacks as in the paper and proofs at the end."""
    others = len(ATTACK_ORDER) + (attack == ALL) + 2 * (rule == PROVEN)
    return checkpoint != "last", checkpoint, ATTACK_ORDER.index(attack) if attack in ATTACK_ORDER else others
