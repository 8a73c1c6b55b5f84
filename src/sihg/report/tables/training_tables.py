"""The tables of training runs: what entries and their trials reached and what they cost, and every evaluation."""

from collections.abc import Mapping, Sequence
from html import escape

from sihg.report.read.entries import Entry
from sihg.report.read.evaluations import ALL, PROVEN, Evaluation
from sihg.report.read.published import Reported, reported
from sihg.report.read.runs import TrainingRun
from sihg.report.tables.table import Cell, Column, Table, read, spread_text
from sihg.store.statistics import Spread, spread

PERCENT = "\N{NO-BREAK SPACE}%"
TEST = "test "  # what keys of accuracies on test samples begin with
ABOUT = ("run", "method", "data", "model", "eps")
CORE = (*ABOUT, "epochs", "training_accuracy", "passes", "seconds")
ORDER = ("natural", "pgd-20", "pgd-50-10", "standard")  # of the headline's attacks; then others, all, what is proven
BEST = {"natural": "best_natural", "pgd-20": "best_robust"}  # the paper's best, which it chose by PGD-20


def training_table(runs: Sequence[TrainingRun]) -> Table:
    """A row for each run; columns that no run can fill are left out."""
    tested = results(runs)
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
        Column("passes", "gradient passes a sample"),
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
            *(cell for tests in tested.values() for cell in _test(tests.get(run.name))),
            *_cost(run),
            *_learnt(run),
        ]
        for run in runs
    ]
    made = Table(columns, rows)
    filled = [c.key for i, c in enumerate(columns) if c.key in CORE or any(row[i] is not None for row in rows)]
    alike = all(_samples(run.name, tested) is not None for run in runs if any(run.name in t for t in tested.values()))
    apart = {"samples"} if not alike else {f"samples {name}" for name in tested}
    apart |= {"epochs_asked"} if all(run.asked == run.epochs for run in runs) else set()
    return made.part(*(key for key in filled if key not in apart))


def entry_table(entries: Sequence[Entry]) -> tuple[Table, list[Entry | None]]:
    """A row for each entry, over its trials, and what the paper reports below its first; of which entry each row is."""
    made = training_table([run for entry in entries for run in entry.trials])
    place = {str(row[0]): row for row in made.rows}
    keys = [column.key for column in made.columns]
    rows: list[list[Cell]] = []
    owners: list[Entry | None] = []
    told: set[tuple[Cell, str]] = set()  # data and method
    for entry in entries:
        trials = [place[run.name] for run in entry.counted]
        cells = [_over(key, [row[i] for row in trials]) for i, key in enumerate(keys)]
        rows.append([entry.name, *cells[1 : len(ABOUT)], len(trials), *cells[len(ABOUT) :]])
        owners.append(entry)
        paper = reported(entry.settings)
        if paper and (entry.settings["data"], paper.name) not in told:
            told.add((entry.settings["data"], paper.name))
            rows.append([f"paper: {paper.name}", *cells[1 : len(ABOUT)], *_of_paper(paper, keys[len(ABOUT) :])])
            owners.append(None)
    first, *rest = made.columns
    columns = [first._replace(key="entry", heading="entry"), *rest[: len(ABOUT) - 1]]
    return Table([*columns, Column("trials", "trials"), *rest[len(ABOUT) - 1 :]], rows), owners


def _over(key: str, cells: Sequence[Cell]) -> Cell:
    """The cells of an entry's trials as one: what is measured has a mean, the rest is the same or listed."""
    if key not in (*ABOUT, "epochs", "epochs_asked") and not key.startswith("samples"):
        return spread([cell if isinstance(cell, int | float) else None for cell in cells])
    different = list(dict.fromkeys(cells))
    return different[0] if len(different) == 1 else " / ".join(read(cell) for cell in different)


def _of_paper(paper: Reported, keys: Sequence[str]) -> list[Cell]:
    said: dict[str, Cell] = {_last(attack): value for attack, value in paper.final.items()}
    said |= {f"{_last(attack)} (last)": value for attack, value in paper.final.items()}
    said |= {BEST[attack]: value for attack, value in paper.best.items()}
    said["epochs"] = paper.recipe.get("epochs")
    return [paper.trials, *(said.get(key) for key in keys)]


def _last(attack: str) -> str:
    return f"{TEST}{attack}"


def evaluation_table(runs: Sequence[TrainingRun]) -> Table:
    """A row for each attack in each evaluation of each run."""
    columns = [
        Column("run", "run", is_text=True),
        Column("checkpoint", "checkpoint", is_text=True),
        Column("data", "data", is_text=True),
        Column("ball", "ball", is_text=True),
        Column("attack", "attack", is_text=True),
        Column("accuracy", f"accuracy{PERCENT}"),
        Column("low", f"from{PERCENT}"),
        Column("high", f"to{PERCENT}"),
        Column("samples", "samples"),
        Column("passes", "gradient passes a sample"),
        Column("seconds", "seconds"),
        Column("rule", "broken at", is_text=True),
    ]
    rows = [[run.name, *_evaluated(one)] for run in runs for one in run.evaluations]
    return Table(columns, rows)


def for_reading(made: Table) -> Table:
    """The table with its numbers as people read them: percent, and 8/255."""
    return Table(
        made.columns,
        [[reading(cell, column) for cell, column in zip(row, made.columns, strict=True)] for row in made.rows],
    )


def reading(cell: Cell, column: Column) -> str:
    """A cell as people read it."""
    if isinstance(cell, Spread):
        if cell.deviation == 0 and not column.heading.endswith("%"):  # a cost that is the same for all trials
            cell = cell._replace(deviation=None)
        if cell.deviation is None:
            return spread_text(cell, _number(cell.mean, column), "")
        if column.heading.endswith("%"):
            return spread_text(cell, _number(cell.mean, column), _number(cell.deviation, column))
        places = 0 if cell.mean >= 100 else 1 if cell.mean >= 10 else 2  # of both alike
        return spread_text(cell, f"{cell.mean:,.{places}f}", f"{cell.deviation:,.{places}f}")
    return _number(cell, column) if isinstance(cell, float) else read(cell)


def _number(value: float, column: Column) -> str:
    if column.heading.endswith("%"):
        return f"{100 * value:.2f}"
    if column.key == "eps":
        return radius(value)
    return f"{value:,.0f}" if value >= 100 else read(value)


def rich_reading(cell: Cell, column: Column) -> str:
    """A cell in HTML, with its value for machines."""
    text = escape(reading(cell, column))
    value = cell.mean if isinstance(cell, Spread) else cell
    return f'<data value="{value!r}">{text}</data>' if isinstance(value, int | float) else text


def radius(eps: float) -> str:
    """The radius of a ball: as k/255 where it is one and no short decimal either."""
    k = round(255 * eps)
    if k and abs(255 * eps - k) < 1e-6 and len(f"{eps:.9g}") > 5:
        return f"{k}/255"
    return f"{eps:.6g}"


def _about(run: TrainingRun) -> list[Cell]:
    eps = run.settings.get("eps")
    return [
        run.name,
        run.method,
        *(str(run.settings.get(key, "—")) for key in ("data", "model")),
        float(eps) if isinstance(eps, int | float) else None,
        run.epochs,
        run.asked,
    ]


def _learnt(run: TrainingRun) -> list[Cell]:
    best = run.best.get("epoch")
    return [
        run.rows[-1]["accuracy"] if run.rows else None,
        *(row.get(key) for row in (run.last, run.best) for key in ("natural", "robust")),
        None if best is None else int(best),
    ]


def _test_columns(name: str) -> list[Column]:
    return [Column(f"{TEST}{name}", f"{name}{PERCENT}"), Column(f"samples {name}", f"samples of {name}")]


def _samples(run: str, tested: Mapping[str, Mapping[str, Evaluation]]) -> int | None:
    """The number of samples of all tests of a run; None where they differ."""
    numbers = {tests[run].samples for tests in tested.values() if run in tests}
    return numbers.pop() if len(numbers) == 1 else None


def _test(one: Evaluation | None) -> list[Cell]:
    return [None, None] if one is None else [one.accuracy, one.samples]


def _cost(run: TrainingRun) -> list[Cell]:
    return [run.rows[-1][key] if run.rows else None for key in ("passes", "seconds")]


def _evaluated(one: Evaluation) -> list[Cell]:
    is_attack = one.attack != "natural"
    ball = " ".join([one.norm, "" if one.eps is None else radius(one.eps), "" if one.bounded else "without bounds"])
    return [
        f"{one.checkpoint} (older: {one.older})" if one.older else one.checkpoint,
        f"{one.data} {one.split}".strip(),
        " ".join(ball.split()) if is_attack else None,
        f"{one.attack} of {one.among}" if one.among else one.attack,
        *(one.accuracy, one.low, one.high, one.samples, one.passes, one.seconds),
        one.rule if is_attack else None,
    ]


def results(runs: Sequence[TrainingRun]) -> dict[str, dict[str, Evaluation]]:
    """Evaluations on the run's own test samples within its own ball, by what was asked, then by run.

    Checkpoints are named where several were tested; one that the run has gone on from is not its result. Of several
    evaluations of a kind, the one on most samples counts, of these the one that broke most.
    """
    kept: dict[tuple[str, str, str], dict[str, Evaluation]] = {}
    for run in runs:
        for one in run.evaluations:
            if one.is_result:
                rule = one.rule if one.rule in ("last iterate", PROVEN) and one.attack != "natural" else ""
                of_kind = kept.setdefault((one.attack, one.checkpoint, rule), {})
                if run.name not in of_kind or _weight(one) > _weight(of_kind[run.name]):
                    of_kind[run.name] = one
    several = len({checkpoint for _, checkpoint, _ in kept}) > 1
    named = {}
    for (attack, checkpoint, rule), of_kind in sorted(kept.items(), key=lambda pair: _order(*pair[0])):
        apart = ", ".join(part for part in (checkpoint if several else "", rule) if part)
        named[f"{attack} ({apart})" if apart else attack] = of_kind
    return named


def _weight(one: Evaluation) -> tuple[int, float]:
    return one.samples or 0, -one.accuracy


def _order(attack: str, checkpoint: str, rule: str) -> tuple[bool, str, int]:
    """The last checkpoint first; within one, the attacks as in the paper, what is proven at the end."""
    rank = ORDER.index(attack) if attack in ORDER else len(ORDER) + (attack == ALL) + 2 * (rule == PROVEN)
    return checkpoint != "last", checkpoint, rank
