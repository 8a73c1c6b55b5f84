"""`sihg report`: draw the figures and the page of folders again."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sihg.cli.parse_numbers import number
from sihg.errors import InputError

Report = Callable[[Path], list[Path]]
OFTEN = 10.0  # seconds
EPILOG = """examples:
  sihg report runs/first
  sihg report runs
  sihg report runs --watch

The page is DIR/index.html, one file that needs nothing else. Of training runs, DIR/report has its tables as CSV,
Markdown and LaTeX (table: by entry, differences: by pair of entries, runs: by run, evaluations: by attack) and its
figures as SVG and PDF.
"""


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "report",
        help="draw the figures and the page of folders made by `sihg solve --out` or `sihg train --out`",
        description="Draw figures, tables and one HTML page from the records in a folder: of a solve, of a training "
        "run, or of several runs, whose folders lie in it. Runs that differ only in their seed are trials of an entry.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", type=Path, metavar="DIR", nargs="+", help="a folder; each gets a page of its own")
    parser.add_argument(
        "--watch",
        type=number,
        nargs="?",
        const=OFTEN,
        metavar="SECONDS",
        help=f"draw again while runs train, looking so often (default: every {OFTEN:g}), until Ctrl-C",
    )
    parser.add_argument(
        "--tensorboard",
        action="store_true",
        help="also write report/tensorboard, for `tensorboard --logdir`",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Draw, and say where the files are."""
    if args.watch is not None and args.tensorboard:
        raise InputError("--watch draws the page alone: leave out --tensorboard, or --watch")
    if args.watch is not None:
        return _watch(args.folders, args.watch)
    reports = [(_report(folder), folder) for folder in args.folders]
    if args.tensorboard:
        reports += [(_events, folder) for folder in args.folders if not _is_solve(folder)]
    for report, folder in reports:
        for path in report(folder):
            print(path)
    return 0


def _events(folder: Path) -> list[Path]:
    from sihg.report.tensorboard import write_events

    return write_events(folder)


def _watch(folders: list[Path], seconds: float) -> int:
    """Draw again and again."""
    from sihg.interrupt import interrupted_at_once
    from sihg.report.watch import follow

    if not 1 <= seconds < float("inf"):
        raise InputError(f"--watch {seconds:g} is too often or too rare: give seconds from 1 on")
    for folder in folders:
        if _is_solve(folder):
            raise InputError(f"{folder} is of a solve, which is finished: leave out --watch")
        if not folder.is_dir():
            _report(folder)  # says what it is instead
        print(f"watching {folder}, Ctrl-C ends: {folder / 'index.html'}", file=sys.stderr)
    with interrupted_at_once():
        follow(folders, seconds, lambda what: print(what, file=sys.stderr))
    return 0


def _report(folder: Path) -> Report:
    """What reports on such a folder, by what lies there."""
    from sihg.report.read.runs import run_folders
    from sihg.report.solve_report import report_solve
    from sihg.report.training_report import report_training

    if _is_solve(folder):
        return report_solve
    if run_folders(folder):
        return report_training
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "does not exist"
        raise InputError(f"{folder} {what}: give the folder of a `sihg solve --out` or `sihg train --out`")
    raise InputError(
        f"{folder} has no summary.json (of `sihg solve --out`), no config.toml (of `sihg train --out`) and no folder "
        "with one: give such a folder"
    )


def _is_solve(folder: Path) -> bool:
    return (folder / "summary.json").is_file()
