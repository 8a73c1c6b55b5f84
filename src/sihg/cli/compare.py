"""`sihg compare`: put runs side by side."""

import argparse
import json
import shlex
from pathlib import Path

from sihg.cli.terminal import format_table, say, show

EPILOG = """examples:
  sihg compare runs/pgd runs/msi-hg
  sihg compare runs/reproduce-digits/*-s0 --out runs/seed-0
  sihg compare results/mnist.zip          an archive that `sihg pack` wrote

Watched numbers are those of the held-out samples that `--validation` sets aside. Of the evaluations, those of the
newest weights on the run's own test samples within its own ball are shown, as in the report. If there are several of a
kind, the one on most samples counts. All figures are on the samples that the evaluations shown share, and `all` is the
accuracy under everything that was run on them. Figures whose samples are not shared have their own number, n. Where
the balls of the runs differ, each row says its own: accuracies within different balls cannot be compared.
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", summary: str) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "compare",
        help=summary,
        description="Put training runs side by side: the settings that differ, the last and the best accuracy while "
        "training, and the evaluations. For runs that differ only in their seed: the means and, from three seeds on, "
        "the differences of means with 95 % intervals by Welch's t. With --out, also a page.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    places = "a run folder, a folder of run folders, or an archive of them"
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help=places)
    parser.add_argument("--out", type=Path, metavar="DIR", help="write figures, tables and a page there")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compare, and print."""
    from sihg.report import compare

    comparison = compare(args.runs, args.out)
    page = str(args.out / "index.html") if args.out else None
    if args.json:
        show(json.dumps({**comparison.as_dict(), "report": page}, indent=1, allow_nan=False))
    else:
        for title, table in comparison.tables().items():
            headings = [column.heading for column in table.columns]
            show(format_table(title, headings, [[str(cell) for cell in row] for row in table.rows]))
        for note in comparison.notes:
            show(note)
    if page:
        say(f"report: {page}")
    elif untested := [run.folder for run in comparison.runs if not run.evaluations and Path(run.folder).is_dir()]:
        say(f"next: sihg evaluate {shlex.join(untested)}")
    else:
        say("for figures and a page: the same command with --out DIR")
    return 0
