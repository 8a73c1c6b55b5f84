"""What commands share: their parser, the types of flags, common flags and warnings."""

import argparse
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from sihg.cli.terminal import say
from sihg.errors import InputError
from sihg.parse import parse_int, parse_number

SETTING = "setting "  # before the names under which argparse keeps settings


class CommandParser(argparse.ArgumentParser):
    """An argument parser that raises InputError, and suggests the flag that was probably meant."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._negative_number_matcher = re.compile(r"-\.?\d")  # -1/2 and -1,1 are values, too

    def error(self, message: str) -> NoReturn:
        """Raise the error that argparse has found."""
        found = re.fullmatch(r"argument ([^:/]+)[^:]*: (.*)", message)
        if found and found[2] == "expected one argument":
            message = f"{found[1]} needs a value"
        elif found:
            message = f"{found[1]}: {found[2]}"
        raise InputError("usage", problem=message, prog=self.prog)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; flags that only a user's own method can know become settings, other unknown words raise InputError."""
        parsed, unknown = super().parse_known_args([self._with_dashes(word) for word in args], namespace)
        if ":" in vars(parsed).get(f"{SETTING}method", ""):
            unknown = _move_to_set(unknown, parsed)
        if unknown:
            raise self._unknown(unknown[0].partition("=")[0])
        return parsed, unknown

    def _with_dashes(self, word: str) -> str:
        """Return --batch_size=5 as --batch-size=5, if there is such a flag."""
        flag, equals, value = word.partition("=")
        dashed = flag.replace("_", "-")
        return f"{dashed}{equals}{value}" if dashed in self._option_string_actions else word

    def _unknown(self, word: str) -> InputError:
        known = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
        near = get_close_matches(word, known, n=1, cutoff=0.75)
        if "--set" in known and "." in word:
            hint = f"give it as --set {word.lstrip('-')}=VALUE"
        elif near:
            hint = f"did you mean {near[0]}?"
        else:
            own = f"; a setting of your own method is --set {word.lstrip('-')}=VALUE" if "--set" in known else ""
            hint = f"`{self.prog} --help` lists all{own}"
        return InputError("unknown-argument", word=word, hint=hint)


def _move_to_set(words: Sequence[str], parsed: argparse.Namespace) -> list[str]:
    """Give flags such as --decay 0.9 to --set, up to a word that is neither a flag nor its value; return the rest."""
    left = list(words)
    while left and left[0].startswith("--"):
        name, equals, value = left.pop(0).removeprefix("--").partition("=")
        if not equals:
            value = left.pop(0) if left and not left[0].startswith("--") else "true"
        parsed.set = [*parsed.set, f"{name}={value}"]
    return left


def number(text: str) -> float:
    """Convert a number or a fraction, such as 0.1, 1e-3 or 8/255."""
    try:
        return parse_number(text)
    except InputError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number such as 0.1 or 8/255") from None


def count(text: str) -> int:
    """Convert an integer >= 0, such as 20 or 1e5."""
    try:
        value = parse_int(text)
    except InputError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer >= 0")
    return value


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add the flags of every command that computes with data."""
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="the folder of the data files")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def add_threads(parser: argparse.ArgumentParser, about: str) -> None:
    """Add the flag of the threads, of commands in which it is not a setting of the run."""
    parser.add_argument("--threads", type=count, metavar="N", help=about)


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add the flag with which a user trusts a folder that somebody else made."""
    about = "use the code, the data folder and the results that the folder names, although no command of yours made it"
    parser.add_argument("--trust", action="store_true", help=about)


def add_log(parser: argparse.ArgumentParser) -> None:
    """Add the flag for loggers.

    On Python 3.11 torchrun takes a `--log` of its script for an abbreviation of its own flags: hence two names.
    """
    about = "report to tensorboard, wandb, mlflow or trackio, several by comma, or to a function or class of your own, "
    about += "PATH.py:NAME, that is called with each event; a resumed run continues its loggers; under torchrun write "
    about += "--logger, since --log is an abbreviation there"
    parser.add_argument("--log", "--logger", action="append", default=[], metavar="A,B", help=about)


@contextmanager
def print_warnings() -> Iterator[None]:
    """Print each of our warnings as one line."""
    from sihg.loggers import LoggerWarning
    from sihg.robust.data.locations import DataWarning
    from sihg.robust.training.weights import CheckpointWarning
    from sihg.store.run_folder import WaitWarning

    with print_warnings_of(DataWarning, CheckpointWarning, WaitWarning, LoggerWarning):
        yield


@contextmanager
def print_warnings_of(*kinds: type[Warning]) -> Iterator[None]:
    """Print each warning of these kinds as one line."""
    with warnings.catch_warnings():
        for kind in kinds:
            warnings.simplefilter("always", kind)
        warnings.showwarning = lambda message, *_, **__: say(f"warning: {message}")
        yield
