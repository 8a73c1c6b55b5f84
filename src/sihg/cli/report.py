"""`sihg report`: draw the figures and the page of folders of results."""

import argparse
from pathlib import Path

from sihg.cli.terminal import say, show
from sihg.errors import InputError
from sihg.parse import parse_number

DEFAULT_SECONDS = 10.0
EPILOG = """examples:
  sihg report runs/first
  sihg report runs
  sihg report runs --watch

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
    parser.add_argument("--tensorboard", action="store_true", help="also write report/tensorboard, for `tensorboard`")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Draw, and print the files written."""
    if args.watch is not None and args.tensorboard:
        raise InputError("watch-with-tensorboard")
    if args.watch is not None:
        return _watch(args.folders, args.watch)
    from sihg.report import report

    files = report(args.folders)
    if args.tensorboard:
        from sihg.report.tensorboard import write_events

        files += [file for folder in args.folders for file in write_events(folder)]
    for file in files:
        show(file)
    return 0


def _watch(folders: list[Path], seconds: float) -> int:
    from sihg.interrupt import interrupted_at_once
    from sihg.report.watch import check_watch, follow

    check_watch(folders, seconds)
    for folder in folders:
        say(f"watching {folder}, Ctrl-C ends: {folder / 'index.html'}")
    with interrupted_at_once():
        follow(folders, seconds, say)
    return 0
