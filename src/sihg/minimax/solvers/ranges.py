"""Check the settings of a method."""

from numbers import Integral, Real
from typing import NoReturn

from sihg.errors import InputError


def check_inside(method: object, **ranges: tuple[float, float]) -> None:
    """Raise InputError unless each setting is strictly inside its range."""
    for name, (low, high) in ranges.items():
        value = getattr(method, name)
        if not isinstance(value, Real) or not low < float(value) < high:  # also for NaN
            _refuse(name, value, f"a number above {low:g} and below {high:g}")


def check_count(method: object, name: str) -> None:
    """Raise InputError unless the setting is a whole number >= 1."""
    value = getattr(method, name)
    if not isinstance(value, Integral) or int(value) < 1:
        _refuse(name, value, "a whole number >= 1")


def _refuse(name: str, value: object, wanted: str) -> NoReturn:
    raise InputError("setting-value", setting=name, wanted=wanted, value=value, remedy="leave it out")
