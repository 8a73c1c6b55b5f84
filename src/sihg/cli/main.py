"""`sihg`: finds the command and turns errors into one line and an exit code."""

import argparse
import os
import sys
from collections.abc import Sequence

from sihg import __version__
from sihg.cli import compare, data, doctor, evaluate, report, reproduce, resume, solve, train
from sihg.errors import SihgError


def build_parser() -> argparse.ArgumentParser:
    """The whole command line; nothing heavy is imported for it."""
    parser = argparse.ArgumentParser(
        prog="sihg",
        description="Semi-implicit hybrid gradient methods: train robust models, solve minimax problems, compare.",
        epilog="`sihg COMMAND --help` tells more. Exit codes: 0 done, 1 a part of it failed, 2 a mistake in what was "
        "asked, 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"sihg {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    for command in (train, resume, evaluate, reproduce, compare, report, data, doctor, solve):
        command.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; give its exit code."""
    parser = build_parser()
    args, rest = parser.parse_known_args(argv)
    if rest and not getattr(args, "takes_settings", False):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    args.settings = rest
    try:
        return int(args.run(args))
    except SihgError as error:
        print(f"sihg: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("sihg: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output, such as `head`, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"sihg: error: {error}", file=sys.stderr)
        return 2
