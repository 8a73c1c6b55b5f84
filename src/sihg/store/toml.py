"""Write settings as TOML, so that reading gives the same values, bit by bit."""

import datetime
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from sihg.errors import InputError

_PLAIN = (str, int, float, datetime.date, datetime.time)  # bool is an int, datetime a date


def to_toml(settings: Mapping[str, object], comments: Mapping[str, str] | None = None) -> str:
    """Convert settings to TOML text, leaving out those that are None.

    Args:
        settings: Numbers, text, dates, paths, lists and nested mappings by name.
        comments: Text to put above a `key`, a `table` or a `table.key`.
    Returns:
        The text.
    Example:
        >>> print(to_toml({"epochs": 15, "attack": {"eps": 0.1}}, {"attack.eps": "radius"}), end="")
        epochs = 15
        <BLANKLINE>
        [attack]
        # radius
        eps = 0.1
    """
    text = tomli_w.dumps(_table(settings, ""))
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError("setting-not-utf8", character=error.object[error.start]) from None
    return _add_comments(text, comments) if comments else text


def from_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file; an error names the file and the line.

    Args:
        path: The file.
    Returns:
        Its tables as nested dicts.
    Example:
        >>> _ = Path("config.toml").write_text("epochs = 15")
        >>> from_toml("config.toml")
        {'epochs': 15}
    """
    path = Path(path)
    try:
        return tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        why = error.strerror or error
        raise InputError("cannot-read-toml", path=path, why=why) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError("toml-not-utf8", path=path, line=line) from error
    except tomllib.TOMLDecodeError as error:
        raise InputError("not-toml", path=path, error=error) from error


def _table(settings: Mapping[Any, object], where: str) -> dict[str, object]:
    if bad := [f"{where}{key!r}" for key in settings if not isinstance(key, str)]:
        raise InputError("setting-name", name=bad[0])
    return {key: _value(value, f"{where}{key}") for key, value in settings.items() if value is not None}


def _value(value: object, name: str) -> object:
    if isinstance(value, Mapping):
        return _table(value, f"{name}.")
    if isinstance(value, list | tuple):
        return [_value(item, f"{name}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, _PLAIN):
        return value
    raise InputError("setting-type", name=name, value=value)


def _add_comments(text: str, comments: Mapping[str, str]) -> str:
    lines, table = [], ""
    for line in text.splitlines():
        key = table + line.partition(" = ")[0]
        if line.startswith("["):  # a table; lists in lists are indented
            key = line.strip("[]")
            table = f"{key}."
        lines += [f"# {part}" for part in comments[key].splitlines()] if key in comments else []
        lines.append(line)
    return "\n".join(lines) + "\n"
