"""`sihg check`: check the files of a folder of results against their sums."""

import argparse
import json
from pathlib import Path

from sihg.cli.terminal import say, show

EPILOG = """examples:
  sihg check runs/first
  sihg check runs/first --accept        after you have edited a file there on purpose
  sihg check runs/reproduce-digits --json

Every file that sihg writes and reads carries a sum: a changed byte is an error wherever the file is read. --accept
gives files that you edited a new sum; checkpoints and files of the perturbation memory cannot be edited. Pages,
pictures and output.log carry no sum; those of a solve have theirs in sums.json. docs/reliability.md says what is
promised. Exit codes: 0 all files are as they were written, 1 some are not.
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", summary: str) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "check",
        help=summary,
        description="Check every file of a run, a grid, a solve or of evaluations against the sum that it carries.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="a folder of results, with all in it")
    parser.add_argument("--accept", action="store_true", help="give files that were edited on purpose a new sum")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check, and print what is not as it was written."""
    from sihg.store.verify import check_folder, describe_checks

    checks = [check for folder in args.folders for check in check_folder(folder, accept=args.accept)]
    if args.json:
        rows = [{"path": str(check.path), "result": check.result, "message": check.message} for check in checks]
        show(json.dumps(rows, indent=1))
    else:
        for check in checks:
            if check.result != "good":
                show(f"{check.result}: {check.message or check.path}")
        show(describe_checks(checks))
    wrong = any(check.result == "wrong" for check in checks)
    if wrong and not args.accept:
        say("restore these files; if you edited them on purpose: the same command with --accept")
    return 1 if wrong else 0
