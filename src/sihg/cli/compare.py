"""`sihg compare`: runs side by side."""

import argparse
import json
import shlex
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sihg.cli.accuracy_table import drawn
from sihg.errors import InputError

if TYPE_CHECKING:
    from sihg.report.evaluated import Evaluation
    from sihg.report.trained import TrainingRun

EPILOG = """examples:
  sihg compare runs/pgd runs/msi-hg
  sihg compare runs/reproduce-digits/*-s0 --out runs/seed-0

Held-out figures are those that training watched. Of the evaluations, those of the run's own test samples within its own
ball are shown, of the newest weights; where there are several of an attack, the one on most samples.
"""
ABSENT = "-"


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "compare",
        help="put runs side by side: settings that differ, held-out figures, evaluations",
        description="Put training runs side by side: the settings in which they differ, the last and the best held-out "
        "figures, the evaluations; with --out, a page too.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="the folder of a run, or one with runs in it")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write figures, tables and a page there")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, print, and draw if asked to."""
    from sihg.report.trained import read_run, run_folders

    folders = list(dict.fromkeys(folder for path in args.runs for folder in run_folders(path) or [path]))
    runs = _named(folders, [read_run(folder) for folder in folders])
    differing = differences([one.settings for one in runs])
    attacks = list(dict.fromkeys(name for one in runs for name in _tested(one)))
    rows = [_row(one, differing) for one in runs]
    page = _page(folders, args.out) if args.out else None
    if args.json:
        print(json.dumps({"runs": rows, "report": page}, indent=1, allow_nan=False))
    else:
        print(_tables(rows, differing, attacks))
    if page:
        print(f"report: {page}", file=sys.stderr)
    elif untested := [str(folder) for folder, one in zip(folders, runs, strict=True) if not _tested(one)]:
        print(f"next: sihg evaluate {shlex.join(untested)}", file=sys.stderr)
    else:
        print("for figures and a page: the same command with --out DIR", file=sys.stderr)
    return 0


def differences(settings: list[Mapping[str, Any]]) -> list[str]:
    """The names of the settings that are not the same in all runs, the method first."""
    every = list(dict.fromkeys(name for one in settings for name in one))
    found = [name for name in every if len({repr(one.get(name)) for one in settings}) > 1]
    return sorted(found, key=lambda name: name != "method.name")


def _named(folders: list[Path], runs: "list[TrainingRun]") -> "list[TrainingRun]":
    """Each by the name of its folder, or by its path where two have one name."""
    counts = Counter(one.name for one in runs)
    return [
        one if counts[one.name] == 1 else replace(one, name=str(folder))
        for folder, one in zip(folders, runs, strict=True)
    ]


def _tested(one: "TrainingRun") -> "dict[str, Evaluation]":
    """The evaluation to show for each attack."""
    found: dict[str, Evaluation] = {}
    for test in one.evaluations:
        now = test.is_own and not test.older and test.split in ("test", "") and test.checkpoint in ("last", "")
        if not now or test.attack == "all":
            continue
        name = test.attack if test.rule != "last iterate" or test.attack == "natural" else f"{test.attack} (end)"
        if name not in found or (found[name].samples or 0) < (test.samples or 0):
            found[name] = test
    return found


def _row(one: "TrainingRun", differing: list[str]) -> dict[str, Any]:
    cost = one.rows[-1] if one.rows else {}
    tests = {
        name: {key: getattr(test, key) for key in ("accuracy", "low", "high", "samples")}
        for name, test in _tested(one).items()
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


def _tables(rows: list[dict[str, Any]], differing: list[str], attacks: list[str]) -> str:
    sizes = {test["samples"] for row in rows for test in row["evaluations"].values()}
    figures = [
        [
            row["run"],
            row["method"],
            str(row["epochs"]) if row["epochs"] == row["of"] else f"{row['epochs']} of {row['of']}",
            _both(row["last"]),
            _both(row["best"]) + (f" ({row['best']['epoch']:.0f})" if row["best"]["epoch"] else ""),
            *(_share(row["evaluations"].get(attack), alone=len(sizes) == 1) for attack in attacks),
            *(ABSENT if row[key] is None else f"{row[key]:.1f}" for key in ("passes", "seconds")),
        ]
        for row in rows
    ]
    held = ["held out %", "best % (epoch)"]
    headings = ["run", "method", "epochs", *held, *(f"{attack} %" for attack in attacks), "passes", "seconds"]
    tested = f"{next(iter(sizes))} test samples" if len(sizes) == 1 else "n test samples"
    about = "held out: natural / robust" + (f"; attacks: accuracy on {tested}" if sizes else "")
    shown = drawn(about, headings, figures)
    if not differing:
        return f"{shown}\nno setting differs" if len(rows) > 1 else shown
    settings = [[name, *(_plain(row["settings"][name]) for row in rows)] for name in differing]
    return shown + "\n" + drawn("settings that differ", ["setting", *(row["run"] for row in rows)], settings)


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
    from sihg.report.training import report_training

    if out.is_file():
        raise InputError(f"--out {out} is a file: give a folder to write in")
    report_training(folders, out)
    return str(out / "index.html")
