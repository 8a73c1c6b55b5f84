"""`sihg report`: draw the figures and the page of folders again."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sihg.errors import InputError

Report = Callable[[Path], list[Path]]


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "report",
        help="draw the figures and the page of folders made by `sihg solve --out` or `sihg train --out`",
        description="Draw figures, tables and one HTML page from the records in a folder: of a solve, of a training "
        "run, or of several runs, whose folders lie in it.",
    )
    parser.add_argument("folders", type=Path, metavar="DIR", nargs="+", help="a folder; each gets a page of its own")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Draw, and say where the files are."""
    for report, folder in [(_report(folder), folder) for folder in args.folders]:
        for path in report(folder):
            print(path)
    return 0


def _report(folder: Path) -> Report:
    """What reports on such a folder, by what lies there."""
    from sihg.report.solve import report_solve
    from sihg.report.trained import run_folders
    from sihg.report.training import report_training

    if (folder / "summary.json").is_file():
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
