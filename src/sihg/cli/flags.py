"""Advice of the library, which is in Python's words, in those of the command line."""

import re

from sihg.errors import SihgError

_NAMED_IN = ("no-input-gradient", "pixels-not-scaled")  # errors that name arguments; others may name a file "eot=3"
_IN_FLAGS = (  # arguments that both have
    (r"\beot=(\d+)", r"--eot \1"),
    (r"\bvotes=(\d+)", r"--votes \1"),
    (r"\bbpda=\{'([^']*)': '([^']*)'\}", r"--bpda \1=\2"),
    (r"\bbpda=\{'([^']*)': a differentiable function\}", r"--bpda \1=PATH.py:FUNCTION, a differentiable function"),
    (r"\bbounds=\((\S+), (\S+)\)", r"--bounds \1,\2"),
    (r"\bby bpda\b", "by --bpda"),
)


def in_flags(text: str) -> str:
    """Write arguments that a message names as flags.

    >>> in_flags("the model is random: average gradients over draws, eot=20, and let several draws judge, votes=10")
    'the model is random: average gradients over draws, --eot 20, and let several draws judge, --votes 10'
    """
    for pattern, flag in _IN_FLAGS:
        text = re.sub(pattern, flag, text)
    return text


def error_in_flags(error: SihgError) -> str:
    """Return the message of an error; if its advice names arguments, with flags in their place.

    >>> error_in_flags(SihgError("folder eot=3 does not exist"))
    'folder eot=3 does not exist'
    """
    return in_flags(str(error)) if error.code in _NAMED_IN else str(error)
