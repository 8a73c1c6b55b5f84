"""The tables of training runs: what they reached and what they cost, and every evaluation."""

from collections.abc import Sequence
from html import escape

from sihg.report.table import Cell, Column, Table, read
from sihg.report.trained import PROVEN, Evaluation, TrainingRun

CORE = ("run", "method", "data", "model", "eps", "epochs", "training_accuracy", "passes", "seconds")


def training_table(runs: Sequence[TrainingRun]) -> Table:
    """A row for each run; columns that no run can fill are left out."""
    tested = _tested(runs)
    columns = [
        Column("run", "run", is_text=True),
        Column("method", "method", is_text=True),
        Column("data", "data", is_text=True),
        Column("model", "model", is_text=True),
        Column("eps", "ε"),
        Column("epochs", "epochs"),
        Column("epochs_asked", "of"),
        Column("training_accuracy", "training\N{NO-BREAK SPACE}%"),
        Column("held_out_natural", "held-out natural\N{NO-BREAK SPACE}%"),
        Column("held_out_robust", "held-out robust\N{NO-BREAK SPACE}%"),
        Column("best_natural", "natural at best\N{NO-BREAK SPACE}%"),
        Column("best_robust", "best robust\N{NO-BREAK SPACE}%"),
        Column("best_epoch", "best epoch"),
        *(column for name in tested for column in _test_columns(name)),
        Column("passes", "gradient passes a sample"),
        Column("seconds", "seconds"),
    ]
    made = Table(
        columns,
        [
            [*_row(run), *(c for tests in tested.values() for c in _test(tests.get(run.name))), *_cost(run)]
            for run in runs
        ],
    )
    filled = [c.key for i, c in enumerate(columns) if c.key in CORE or any(row[i] is not None for row in made.rows)]
    for name, tests in tested.items():
        if len({one.samples for one in tests.values()}) == 1 and f"samples {name}" in filled:
            filled.remove(f"samples {name}")  # the same for all runs
    if all(run.asked == run.epochs for run in runs):
        filled.remove("epochs_asked")
    return made.part(*filled)


def evaluation_table(runs: Sequence[TrainingRun]) -> Table:
    """A row for each attack in each evaluation of each run."""
    columns = [
        Column("run", "run", is_text=True),
        Column("checkpoint", "checkpoint", is_text=True),
        Column("data", "data", is_text=True),
        Column("ball", "ball", is_text=True),
        Column("attack", "attack", is_text=True),
        Column("accuracy", "accuracy\N{NO-BREAK SPACE}%"),
        Column("low", "from\N{NO-BREAK SPACE}%"),
        Column("high", "to\N{NO-BREAK SPACE}%"),
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
    if not isinstance(cell, float):
        return read(cell)
    if column.heading.endswith("%"):
        return f"{100 * cell:.1f}"
    if column.key == "eps":
        return radius(cell)
    return f"{cell:,.0f}" if cell >= 100 else read(cell)


def rich_reading(cell: Cell, column: Column) -> str:
    """A cell in HTML, with its value for machines."""
    text = escape(reading(cell, column))
    return f'<data value="{cell!r}">{text}</data>' if isinstance(cell, int | float) else text


def radius(eps: float) -> str:
    """The radius of a ball: as k/255 where it is one and no short decimal either."""
    k = round(255 * eps)
    if k and abs(255 * eps - k) < 1e-6 and len(f"{eps:.9g}") > 5:
        return f"{k}/255"
    return f"{eps:.6g}"


def _row(run: TrainingRun) -> list[Cell]:
    eps = run.settings.get("eps")
    best = run.best.get("epoch")
    return [
        run.name,
        run.method,
        *(str(run.settings.get(key, "—")) for key in ("data", "model")),
        float(eps) if isinstance(eps, int | float) else None,
        run.epochs,
        run.asked,
        run.rows[-1]["accuracy"] if run.rows else None,
        run.last.get("natural"),
        run.last.get("robust"),
        run.best.get("natural"),
        run.best.get("robust"),
        None if best is None else int(best),
    ]


def _test_columns(name: str) -> list[Column]:
    return [Column(f"test {name}", f"test {name}\N{NO-BREAK SPACE}%"), Column(f"samples {name}", f"samples of {name}")]


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
        one.attack,
        *(one.accuracy, one.low, one.high, one.samples, one.passes, one.seconds),
        one.rule if is_attack else None,
    ]


def _tested(runs: Sequence[TrainingRun]) -> dict[str, dict[str, Evaluation]]:
    """Evaluations on the run's own test samples within its own ball, by what was asked, then by run.

    Checkpoints are named where several were tested; one that the run has gone on from is not its result. Of several
    evaluations of a kind, the one on most samples counts.
    """
    kept: dict[tuple[str, str, str], dict[str, Evaluation]] = {}
    for run in runs:
        for one in run.evaluations:
            if one.is_own and not one.older and one.split in ("test", ""):
                rule = one.rule if one.rule in ("last iterate", PROVEN) and one.attack != "natural" else ""
                of_kind = kept.setdefault((one.attack, one.checkpoint, rule), {})
                if run.name not in of_kind or (of_kind[run.name].samples or 0) < (one.samples or 0):
                    of_kind[run.name] = one
    several = len({checkpoint for _, checkpoint, _ in kept}) > 1
    named = {}
    for (attack, checkpoint, rule), of_kind in kept.items():
        apart = ", ".join(part for part in (checkpoint if several else "", rule) if part)
        named[f"{attack} ({apart})" if apart else attack] = of_kind
    return named
