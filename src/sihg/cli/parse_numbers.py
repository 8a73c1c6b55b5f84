"""Numbers as people type them."""

import argparse
from fractions import Fraction


def number(text: str) -> float:
    """A number or a fraction, such as 0.1, 1e-3 or 8/255."""
    try:
        return float(Fraction(text)) if "/" in text else float(text)
    except (ValueError, ZeroDivisionError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number such as 0.1 or 8/255") from error


def whole(text: str) -> int:
    """A whole number from zero on; 1e5 is one."""
    try:
        value = number(text)
    except argparse.ArgumentTypeError:
        value = -1
    if not (value >= 0 and value.is_integer()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(value)
