"""`sihg pack`: write the records of runs into one zip file."""

import argparse
from pathlib import Path

from sihg.cli.terminal import say, show

EPILOG = """examples:
  sihg pack runs/reproduce-mnist --out results/mnist.zip
  sihg compare results/mnist.zip

Records are settings, tables, logs and evaluations: all that `sihg compare` needs. Weights, perturbation memories,
pictures and verdicts per sample stay behind. Every record is checked against its sum first, and equal records give
equal archives.
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", summary: str) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "pack",
        help=summary,
        description="Write the records of training runs into one zip file, to publish or to keep.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "folders", type=Path, nargs="+", metavar="DIR", help="a run folder, or a folder with runs at any depth"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.zip", help="the file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Pack, and say what to do next."""
    from sihg.report import pack

    runs = pack(args.folders, args.out, overwrite=args.overwrite)
    show(f"{args.out}: {runs} {'run' if runs == 1 else 'runs'}, {args.out.stat().st_size:,} bytes")
    say(f"next: sihg compare {args.out}")
    return 0
