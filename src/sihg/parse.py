"""Read numbers, names and paths as people write them: 8/255, 1e5, true, a,b,c, ~/runs; make names of files."""

import hashlib
import math
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from fractions import Fraction
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from sihg.errors import InputError, UnknownNameError

Value = bool | int | float | str | list[Any]  # what a setting in a TOML file or on the command line can be
Number = float | str  # a number, or text such as "8/255"
MAX_NAME_BYTES = 150  # of a name that `file_name` makes; with endings, it stays below the 255 of a file system
ORDERS = {"linf": math.inf, "l2": 2.0, "l1": 1.0}  # of each norm
TRUTHS = {"true": True, "yes": True, "false": False, "no": False}


def parse_number(value: object, name: str = "the value") -> float:
    """Convert a number, or text such as "0.1", "1e-3" or "8/255", to a float.

    >>> parse_number("8/255") == 8 / 255
    True
    """
    try:
        if not isinstance(value, bool) and isinstance(value, Real):
            return float(value)
        return float(Fraction(value)) if isinstance(value, str) and "/" in value else float(str(value))
    except (ValueError, ZeroDivisionError, OverflowError):
        raise InputError("not-a-number", value=value, name=name) from None


def parse_int(value: object, name: str = "the value") -> int:
    """Convert an integer, or text such as "20" or "1e5", to an int.

    >>> parse_int("1e5")
    100000
    """
    with suppress(ValueError):  # a float would round large integers
        if not isinstance(value, bool) and isinstance(value, Integral | str):
            return int(value)
    number = parse_number(value, name)
    if not number.is_integer():
        raise InputError("not-an-integer", value=value, name=name)
    return int(number)


def parse_norm(norm: object) -> str:
    """Return the name of a norm, which may be spelled as other libraries do: "Linf", "inf", 2 or math.inf.

    >>> parse_norm("Linf"), parse_norm("L2"), parse_norm(1)
    ('linf', 'l2', 'l1')
    """
    name = f"l{str(norm).lower().removeprefix('l')}"
    if name not in ORDERS:
        raise UnknownNameError("norm", norm, list(ORDERS))
    return name


def parse_bool(value: object, name: str = "the value") -> bool:
    """Convert a bool, or text such as "true" or "no", to a bool.

    >>> parse_bool("No")
    False
    """
    if str(value).lower() not in TRUTHS:
        raise InputError("not-a-bool", value=value, name=name)
    return TRUTHS[str(value).lower()]


def parse_literal(value: Value) -> Value:
    """Convert text to the bool, number or list that it looks like; return anything else unchanged.

    >>> parse_literal("[[0, 0], [5, 0.2]]"), parse_literal("1/4"), parse_literal("adam")
    ([[0, 0], [5, 0.2]], 0.25, 'adam')
    """
    if isinstance(value, list | tuple):
        return [parse_literal(item) for item in value]
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value.startswith("["):
        try:
            return parse_literal(tomllib.loads(f"value = {value}")["value"])
        except tomllib.TOMLDecodeError:
            raise InputError("not-a-list", value=value) from None
    for convert in (int, float, lambda text: float(Fraction(text))):
        try:
            return convert(value)
        except (ValueError, ZeroDivisionError):
            continue
    return value


def coerce(kind: Any, value: object, name: str = "the value") -> Any:
    """Convert a value to a declared type: bool, int, float, str, a tuple of these, or one of them or None.

    Text is converted as people write it. "none" means None, unless the type is str. Other types are parsed by their
    looks.

    >>> coerce(float, "8/255") == 8 / 255, coerce(int | None, "none"), coerce(tuple[float, float], "0,1")
    (True, None, (0.0, 1.0))
    """
    choices = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if value is None or (str(value).lower() == "none" and kind is not str):
        if NoneType in choices:
            return None
        raise InputError("none-not-allowed", name=name)
    wanted = next(choice for choice in choices if choice is not NoneType)
    if get_origin(wanted) is tuple:
        parts = value.split(",") if isinstance(value, str) else value
        kinds = get_args(wanted)
        if not isinstance(parts, list | tuple) or len(parts) != len(kinds):
            raise InputError("number-of-values", name=name, count=len(kinds), value=value)
        return tuple(coerce(part_kind, part, name) for part_kind, part in zip(kinds, parts, strict=True))
    if wanted in (bool, int, float):
        return {bool: parse_bool, int: parse_int, float: parse_number}[wanted](value, name)
    return str(value) if wanted is str else parse_literal(value)  # type: ignore[arg-type]


def parse_names(text: str | Iterable[str]) -> list[str]:
    """Split "a, b,c" into names, each once, in order.

    >>> parse_names("natural, pgd-20,natural")
    ['natural', 'pgd-20']
    """
    names = text.split(",") if isinstance(text, str) else text
    return list(dict.fromkeys(name.strip() for name in names if name.strip()))


def expand_home(path: str | Path) -> Path:
    """Replace ~ and ~user at the start of a path by the home folder, or raise InputError if it is unknown.

    >>> expand_home("runs/first")
    PosixPath('runs/first')
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InputError("no-home", path=path) from None


def file_name(*parts: str, hashed: bool = False) -> str:
    """Join parts to the name of a file; characters with a meaning for a shell or a file system become "-".

    Args:
        *parts: Any text.
        hashed: Whether to add a hash of the parts, which a very long name has in any case.

    >>> file_name("last", "natural+pgd-20", "eps-8/255")
    'last_natural+pgd-20_eps-8-255'
    """
    name = "_".join("".join(c if c.isalnum() or c in ".+-" else "-" for c in part) for part in parts)
    if hashed or len(name.encode()) > MAX_NAME_BYTES:
        start = name.encode()[:MAX_NAME_BYTES].decode(errors="ignore")
        name = f"{start}_{hashlib.sha256(repr(list(parts)).encode()).hexdigest()[:8]}"
    return name
