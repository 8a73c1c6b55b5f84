"""The argument parser of all commands."""

import argparse
import re
from difflib import get_close_matches
from typing import Any, NoReturn

from sihg.errors import InputError


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
        problem, prog = message, self.prog
        raise InputError("usage", problem=problem, prog=prog)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and raise InputError for a word that is not known."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            raise self._unknown(unknown[0].partition("=")[0])
        return parsed, unknown

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
