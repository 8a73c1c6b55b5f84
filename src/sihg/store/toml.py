"""Settings as TOML: written so that reading gives the same values, bit by bit."""

import datetime
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from sihg.errors import InputError

_PLAIN = (str, int, float, datetime.date, datetime.time)  # bool is an int, datetime a date


def to_toml(settings: Mapping[str, Any], comments: Mapping[str, str] | None = None) -> str:
    """Write settings as TOML, leaving out those that are None; `comments` go above their `key` or `table.key`."""
    text = tomli_w.dumps(_table(settings, ""))
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"a setting has {error.object[error.start]!r}, which is no text: rename what it names"
        ) from None
    return _commented(text, comments) if comments else text


def from_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file; an error names the file and the line."""
    path = Path(path)
    try:
        return tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror or error}): check the path and its rights") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path} is not UTF-8 text (at line {line}): save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not valid TOML, {error}: correct it there") from error


def _table(settings: Mapping[str, Any], where: str) -> dict[str, Any]:
    for key in settings:
        if not isinstance(key, str):
            raise InputError(f"setting {where}{key!r} has a {type(key).__name__} as its name: use a string")
    return {key: _value(value, f"{where}{key}") for key, value in settings.items() if value is not None}


def _value(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return _table(value, f"{name}.")
    if isinstance(value, (list, tuple)):
        return [_value(item, f"{name}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, _PLAIN):
        return value
    raise InputError(f"setting {name} = {value!r} has no TOML form: use a number, a string, a list or a table")


def _commented(text: str, comments: Mapping[str, str]) -> str:
    lines, table = [], ""
    for line in text.splitlines():
        key = line.partition(" = ")[0]
        if line.startswith("["):
            table, key = f"{line.strip('[]')}.", line.strip("[]")
        elif not line.startswith(" "):  # items of a list are indented
            key = table + key
        lines += [f"# {part}" for part in comments[key].splitlines()] if key in comments else []
        lines.append(line)
    return "\n".join(lines) + "\n"
