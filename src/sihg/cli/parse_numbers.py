"""Types of flags: numbers as people write them."""

import argparse

from sihg.errors import InputError
from sihg.parse import parse_int, parse_number


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
