"""`sihg compare`: runs side by side."""

import argparse
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sihg.cli.terminal_table import drawn
from sihg.errors import InputError

if TYPE_CHECKING:
    from sihg.report.read.evaluations import Evaluation
    from sihg.report.read.runs import TrainingRun
    from sihg.report.tables.table import Table

    Tested = Mapping[str, Mapping[str, Evaluation]]  # by what was asked, then by run

EPILOG = """examples:
  sihg compare runs/pgd runs/msi-hg
  sihg compare runs/reproduce-digits/*-s0 --out runs/seed-0

Watched figures are those of the samples that `--validation` sets aside while training. Of the evaluations, those of the
run's own test samples within its own ball are shown, of the newest weights, as in the report; where there are several
of a kind, the one on most samples.
"""
ABSENT = "-"


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "compare",
        help="put runs side by side: settings that differ, evaluations, means over seeds and their differences",
        description="Put training runs side by side: the settings in which they differ, the last and the best "
        "figures while training, the evaluations; of runs that differ in their seed alone the means, and how far these "
        "are apart, with 95 % intervals by Welch's t; with --out, a page too.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="the folder of a run, or one with runs in it")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write figures, tables and a page there")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, print, and draw if asked to."""
    from sihg.report.page.training_page import compared
    from sihg.report.read.entries import entries
    from sihg.report.read.runs import read_runs
    from sihg.report.tables.differences import contrast_table
    from sihg.report.tables.table import flat
    from sihg.report.tables.training_tables import entry_table, results

    runs = read_runs(args.runs)
    means, owners = entry_table(entries(runs))
    differences = contrast_table(means, owners)
    several = any(owner and len(owner.trials) > 1 for owner in owners)
    differing = sorted(compared(runs)[1], key=lambda name: name != "method.name")
    tested = results(runs)
    rows = [_row(one, differing, tested) for one in runs]
    page = _page(args.runs, args.out) if args.out else None
    if args.json:
        over_seeds = {"means": _dicts(flat(means)) if several else [], "differences": _dicts(differences)}
        print(json.dumps({"runs": rows, **over_seeds, "report": page}, indent=1, allow_nan=False))
    else:
        print(_tables(rows, differing, tested))
        if several:
            print(_means(means))
        if differences.rows:
            print(_differences(differences))
    if page:
        print(f"report: {page}", file=sys.stderr)
    elif untested := [str(one.folder.path) for one in runs if not any(one.name in tests for tests in tested.values())]:
        print(f"next: sihg evaluate {shlex.join(untested)}", file=sys.stderr)
    else:
        print("for figures and a page: the same command with --out DIR", file=sys.stderr)
    return 0


def _row(one: "TrainingRun", differing: list[str], tested: "Tested") -> dict[str, Any]:
    cost = one.rows[-1] if one.rows else {}
    tests = {
        name: {key: getattr(of_kind[one.name], key) for key in ("accuracy", "low", "high", "samples")}
        for name, of_kind in tested.items()
        if one.name in of_kind
    }
    return {
        "run": one.name,
        "method": one.method,
        "epochs": one.epochs,
        "of": one.asked,
        "settings": {name: one.settings.get(name) for name in differing},
        "last": {key: one.last.get(key) for key in ("epoch", "natural", "robust")},
        "best": {key: one.best.get(key) for key in ("epoch", "natural", "robust")},
        "evaluations": tests,
        **{key: cost.get(key) for key in ("passes", "seconds")},
    }


def _tables(rows: list[dict[str, Any]], differing: list[str], tested: "Tested") -> str:
    from sihg.report.read.evaluations import PROVEN

    sizes = {test["samples"] for row in rows for test in row["evaluations"].values()}
    figures = [
        [
            row["run"],
            row["method"],
            str(row["epochs"]) if row["epochs"] == row["of"] else f"{row['epochs']} of {row['of']}",
            _both(row["last"]),
            _both(row["best"]) + (f" ({row['best']['epoch']:.0f})" if row["best"]["epoch"] else ""),
            *(_share(row["evaluations"].get(attack), alone=len(sizes) == 1) for attack in tested),
            *(ABSENT if row[key] is None else f"{row[key]:.1f}" for key in ("passes", "seconds")),
        ]
        for row in rows
    ]
    watched = ["watched %", "best % (epoch)"]
    headings = ["run", "method", "epochs", *watched, *(f"{attack} %" for attack in tested), "passes", "seconds"]
    samples = f"{next(iter(sizes))} test samples" if len(sizes) == 1 else "n test samples"
    about = "watched while training: natural / robust" + (f"; attacks: accuracy on {samples}" if sizes else "")
    shown = drawn(about, headings, figures)
    if any(test.rule == PROVEN for of_kind in tested.values() for test in of_kind.values()):
        shown += f"\n{PROVEN}: a lower bound; attacks give upper bounds"
    if not differing:
        return f"{shown}\nno setting differs" if len(rows) > 1 else shown
    return f"{shown}\n{_settings(rows, differing)}"


def _dicts(made: "Table") -> list[dict[str, Any]]:
    """The rows for JSON."""
    return [dict(zip([column.key for column in made.columns], row, strict=True)) for row in made.rows]


def _means(means: "Table") -> str:
    """Entries over their seeds."""
    from sihg.report.tables.training_tables import TEST, for_reading

    keys = [column.key for column in means.columns if column.key.startswith(TEST)]
    made = for_reading(means.part("entry", "trials", *keys, "passes", "seconds"))
    headings = [
        "entry",
        "n",
        *(c.heading for c in made.columns[2:-2]),
        "passes",
        "seconds",
    ]
    return drawn("mean ± deviation over the seeds", headings, [[str(cell) for cell in row] for row in made.rows])


def _differences(made: "Table") -> str:
    """How far entries are apart."""
    from sihg.report.tables.training_tables import for_reading

    headings = [column.heading for column in made.columns]
    rows = [[str(cell) for cell in row] for row in for_reading(made).rows]
    return drawn("differences of the means, with 95 % intervals (Welch)", headings, rows)


def _settings(rows: list[dict[str, Any]], differing: list[str]) -> str:
    """The settings that differ, the longer way down; those of several seeds once."""
    but_seed = [name for name in differing if name != "seed"]
    trials: dict[tuple[str, ...], list[str]] = {}  # the runs that differ in their seed alone
    for row in rows:
        trials.setdefault(tuple(_plain(row["settings"][name]) for name in but_seed or differing), []).append(row["run"])
    if len(trials) < len(rows):
        differing = but_seed
        runs = [names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more" for names in trials.values()]
        values = [list(own) for own in trials]
    else:
        runs = [row["run"] for row in rows]
        values = [[_plain(row["settings"][name]) for name in differing] for row in rows]
    if len(runs) > len(differing):
        headings, first = ["run", *differing], runs
    else:
        headings, first = ["setting", *runs], differing
        values = [list(column) for column in zip(*values, strict=True)]
    lines = [[name, *line] for name, line in zip(first, values, strict=True)]
    return drawn("settings that differ", headings, lines)


def _both(row: dict[str, Any]) -> str:
    return ABSENT if row["robust"] is None else f"{100 * row['natural']:.1f} / {100 * row['robust']:.1f}"


def _share(test: dict[str, Any] | None, *, alone: bool) -> str:
    if test is None:
        return ABSENT
    return f"{100 * test['accuracy']:.2f}" + ("" if alone else f" (n = {test['samples'] or '?'})")


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ABSENT if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _page(folders: list[Path], out: Path) -> str:
    from sihg.report.training_report import report_training

    if out.is_file():
        raise InputError(f"--out {out} is a file: give a folder to write in")
    report_training(folders, out)
    return str(out / "index.html")
