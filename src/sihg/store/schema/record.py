"""The base of all records, and their reading and writing as sealed JSON and TOML.

`format` is the version of a file's layout; a file without it has format 1. Since format 2 every file carries its own
sum (`sihg.store.seal`), which every reader checks.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sihg.errors import InputError
from sihg.parse import Value
from sihg.store.files import from_toml, read_regular, to_toml, write_bytes
from sihg.store.seal import NO_SUM, SEAL_KEY, require_seal, seal

FORMAT = 2  # of every record that this version writes
SEALED_FORMAT = 2  # since which files carry a sum
Json = Value | dict[str, Any] | None
R = TypeVar("R", bound=msgspec.Struct)


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what is written as one JSON file."""

    format: int = FORMAT


def read_record(path: Path, kind: type[R], remedy: str = "restore the file, or remove it") -> R:
    """Read a JSON file as a record of this kind.

    Args:
        path: The file.
        kind: The class of the record.
        remedy: What the user can do, the end of the error message.
    Raises:
        InputError: The file is missing, changed, not JSON, of a newer format, or has a field of another type.
    """
    return convert_record(read_json(path, remedy), kind, path, remedy)


def convert_record(content: object, kind: type[R], source: object, remedy: str) -> R:
    """Convert plain values to a record; `source` is named in the error."""
    found = content.get("format", 1) if isinstance(content, Mapping) else 1
    if not (isinstance(found, int) and 1 <= found <= FORMAT):
        raise InputError("record-format", format=found, source=source, reads=FORMAT)
    try:
        layout = {"format": found} if isinstance(content, Mapping) and issubclass(kind, Record) else {}
        return msgspec.convert({**layout, **content} if layout else content, kind, strict=False)  # type: ignore[dict-item]
    except msgspec.ValidationError as error:
        raise InputError("record-invalid", kind=kind.__name__, source=source, error=error, remedy=remedy) from error


def write_record(path: Path, record: msgspec.Struct) -> Path:
    """Write a record as sealed JSON, whole or not at all."""
    return write_json(path, msgspec.to_builtins(record))


def record_text(record: msgspec.Struct) -> str:
    """Return a record as indented JSON."""
    return json.dumps(msgspec.to_builtins(record), indent=1, allow_nan=False) + "\n"


def write_json(path: Path, content: Mapping[str, object]) -> Path:
    """Write a JSON object with its format and its seal, whole or not at all."""
    return write_bytes(path, json_bytes(content))


def json_bytes(content: Mapping[str, object]) -> bytes:
    """Return what `write_json` writes."""
    text = json.dumps({"format": FORMAT, **content, SEAL_KEY: NO_SUM}, indent=1, allow_nan=False) + "\n"
    return seal(text.encode())


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Read a JSON object and check its seal."""
    try:
        data = read_regular(path)
        content = json.loads(data)
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}, not an object")
    except InputError:
        raise
    except PermissionError as error:  # no damage, and may pass: the file must not be given up for it
        raise InputError("cannot-look", path=path, reason=error.strerror or error) from error
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError("record-unreadable", path=path, why=why, remedy=remedy) from error
    require_seal(path, data, sealed=content.get("format", 1) != 1)
    content.pop(SEAL_KEY, None)
    return content


def write_toml(path: Path, table: Mapping[str, object], comments: Mapping[str, str] | None = None) -> Path:
    """Write settings as TOML with their format and their seal, whole or not at all."""
    return write_bytes(path, toml_bytes(table, comments))


def toml_bytes(table: Mapping[str, object], comments: Mapping[str, str] | None = None) -> bytes:
    """Return what `write_toml` writes."""
    return seal(f"{to_toml({'format': FORMAT, **table}, comments)}\n# {NO_SUM}\n".encode())


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file of a folder of results and check its seal; the format stays in the table."""
    table = from_toml(path)
    # Without a seal only a file of format 1 is read; no version wrote an empty file.
    require_seal(path, read_regular(path), sealed=table.get("format", 1 if table else None) != 1)
    return table
