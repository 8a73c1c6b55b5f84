"""`sihg report`: draw the figures and the page of a folder again."""

import argparse
from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "report",
        help="draw the figures and the page of a folder made by `sihg solve --out`",
        description="Draw convergence and trajectory figures, tables and one HTML page from the records in a folder.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Draw, and say where the files are."""
    from sihg.report.solve import report_solve

    for path in report_solve(args.folder):
        print(path)
    return 0
