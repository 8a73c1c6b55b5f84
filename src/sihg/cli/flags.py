"""Advice of the library, which is in Python's words, in those of the command line."""

import re

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
