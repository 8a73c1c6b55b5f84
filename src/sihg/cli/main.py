"""`sihg`: finds the command and turns errors into one line and an exit code.

Why argparse: which settings exist depends on the method, which libraries that build a command line from one dataclass
(cyclopts, tyro) do not express; and it is quick to import (milliseconds here: argparse 5, msgspec 17, pydantic 25,
cyclopts 38, tyro 39, torch 625). Only the module of the command that is asked for is imported.
"""

import sys

try:
    import argparse
    import os
    from collections.abc import Sequence
    from importlib import import_module
    from typing import Any

    from sihg import __version__
    from sihg.cli.common import CommandParser
    from sihg.cli.flags import error_in_flags
    from sihg.cli.terminal import drop_undelivered, prepare_streams, say, show
    from sihg.errors import SihgError, UnknownNameError
    from sihg.launch import end_with_launcher, first_on_machine, rank
except KeyboardInterrupt:  # before there is a command that could say so
    sys.exit(130)

COMMANDS = {  # each is a module of this package
    "train": "train a model that withstands attacks",
    "resume": "continue a run that was interrupted",
    "evaluate": "measure the accuracy of a trained model under attacks",
    "reproduce": "train and attack several methods with several seeds; a table and a page",
    "compare": "compare runs: settings that differ, evaluations, means over seeds and their differences",
    "report": "draw the figures and the page of folders made by `sihg solve --out` or `sihg train --out`",
    "export": "write a trained model for others: a Hugging Face folder with a model card, ONNX, RobustBench",
    "pack": "write the records of runs into one zip file, which compare reads",
    "check": "check that no file of a folder of results was changed, and accept edits made on purpose",
    "data": "list, download and check data sets",
    "doctor": "show what this machine has, and what would make it faster",
    "solve": "solve a minimax problem by one or more methods",
}
SHELLS = ("bash", "zsh", "fish", "tcsh")


class PrintCompletion(argparse.Action):
    """Print a shell's completion script and stop."""

    def __call__(self, parser: argparse.ArgumentParser, _namespace: Any, shell: Any, *_: Any) -> None:
        """Load every command, for its flags."""
        import shtab

        show(shtab.complete(build_parser(*COMMANDS), shell))
        parser.exit()


def build_parser(*loaded: str) -> CommandParser:
    """Build the command line with the flags of the `loaded` commands; of the others it knows the names."""
    parser = CommandParser(
        prog="sihg",
        description="Semi-implicit hybrid gradient methods: train robust models, solve minimax problems, compare.",
        epilog="`sihg COMMAND --help` explains a command. Exit codes: 0 done, 1 a part of it failed, 2 a mistake in "
        "what was asked, 130 interrupted, 141 nobody reads the result.",
    )
    parser.add_argument("--version", action="version", version=f"sihg {__version__}")
    parser.add_argument(
        "--print-completion", action=PrintCompletion, choices=SHELLS, help="print a completion script for this shell"
    )
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        if name in loaded:
            import_module(f"sihg.cli.{name}").add_parser(commands, summary)
        else:
            commands.add_parser(name, help=summary)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: Its words, such as ["train", "--out", "runs/first"] (default: those of the process).
    Returns:
        The exit code: 0 done, 1 a part of it failed, 2 invalid input, 130 interrupted, 141 nobody reads the result.
    """
    end_with_launcher()  # before torch is imported, which takes a second
    if "torch" not in sys.modules:  # later it has no effect
        # By default a thread that waits for others spins, which takes the core from them beside another busy process.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    prepare_streams()
    try:
        try:
            return _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            sys.stdout.flush()
    except SihgError as error:
        by = first_on_machine() if error.printed_by is None else error.printed_by
        where = f"process {by}: " if by else ""
        message = f"{where}{error_in_flags(error)}"
        return _fail(f"{message} [{error.code}]" if error.code else message, by=by)
    except KeyboardInterrupt:
        say("sihg: interrupted")
        return 130
    except BrokenPipeError:  # the reader of the result, such as `head`, has ended; as if SIGPIPE had ended us
        return 141
    except OSError as error:
        return _fail(f"{error} [os-error]", by=rank())
    finally:
        drop_undelivered()


def _run(words: list[str]) -> int:
    if not words:
        from sihg.cli.welcome import welcome

        show(welcome())
        return 0
    if not words[0].startswith("-") and words[0] not in COMMANDS:
        raise UnknownNameError("command", words[0], list(COMMANDS))
    args = build_parser(*words[:1]).parse_args(words)
    return int(args.run(args))


def _fail(message: str, by: int = 0) -> int:
    say(f"sihg: error: {message}", by=by)
    return 2
