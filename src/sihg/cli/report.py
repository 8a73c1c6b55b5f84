"""`sihg report`: draw the figures and the page of folders of results."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from sihg.cli.common import print_warnings_of
from sihg.cli.terminal import say, show
from sihg.errors import InputError
from sihg.parse import parse_number

DEFAULT_SECONDS = 10.0
EPILOG = """examples:
  sihg report runs/first
  sihg report runs
  sihg report runs --watch
  sihg report runs --log tensorboard

The page is DIR/index.html, one file that needs nothing else. For training runs, DIR/report has the tables as CSV,
Markdown and LaTeX (table: per entry, differences: per pair of entries, runs: per run, evaluations: per attack) and the
figures as SVG and PDF.
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", summary: str) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "report",
        help=summary,
        description="Draw figures, tables and one HTML page from the records in a folder: of a training run, of "
        "several runs inside it, of evaluations (`sihg evaluate --out`, or saved from Python), or of a solve. Runs "
        "that differ only in their seed are trials of one entry.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", type=Path, metavar="DIR", nargs="+", help="a folder; each gets its own page")
    parser.add_argument(
        "--watch",
        type=parse_number,
        nargs="?",
        const=DEFAULT_SECONDS,
        metavar="SECONDS",
        help=f"draw again while runs train, checking every SECONDS (default: {DEFAULT_SECONDS:g}), until Ctrl-C",
    )
    parser.add_argument(
        "--log",
        action="append",
        default=[],
        metavar="A,B",
        help="also send the records of training runs to tensorboard, wandb, mlflow or trackio",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Draw, and print the files written."""
    if args.watch is not None and args.log:
        raise InputError("watch-with-log")
    if args.watch is not None:
        return _watch(args.folders, args.watch)
    from sihg.loggers import check_names, split_names
    from sihg.report import report

    names = split_names(args.log)
    check_names(names)
    files = report(args.folders)
    for file in files:
        show(file)
    say(f"look at {', '.join(str(file) for file in files if file.name == 'index.html')}")
    if names:
        _send(args.folders, names)
    return 0


def _send(folders: list[Path], names: Sequence[str]) -> None:
    """Send the records of the training runs in the folders to loggers."""
    from sihg.loggers import LoggerWarning, replay
    from sihg.report.read.runs import run_folders
    from sihg.store.run_folder import RunFolder

    with print_warnings_of(LoggerWarning):
        for run in (run for folder in folders for run in run_folders(folder)):
            replay(RunFolder.open(run), names)
            say(f"sent to {', '.join(names)}: {run}")


def _watch(folders: list[Path], seconds: float) -> int:
    from sihg.interrupt import interrupted_at_once
    from sihg.report.watch import check_watch, follow

    check_watch(folders, seconds)
    for folder in folders:
        say(f"watching {folder}, Ctrl-C ends: {folder / 'index.html'}")
    with interrupted_at_once():
        follow(folders, seconds, say)
    return 0
