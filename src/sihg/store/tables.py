"""Tables and logs that only grow: one line a write, so that a kill tears the last line at most."""

import csv
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sihg.errors import InputError, UnknownNameError


class _Lines:
    """A text file to which whole lines are appended; a torn last line of an earlier process is cut off first."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._cut_torn_line()

    def size(self) -> int:
        """Give the bytes so far: what `truncate` needs to come back here."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def truncate(self, size: int) -> None:
        """Cut off what was written after the file had `size` bytes."""
        found = self.size()
        if found < size:
            raise InputError(
                f"{self.path} has {found} bytes, the checkpoint was made at {size}: put the whole file back, "
                "or start a new run"
            )
        if size == found:
            return
        try:
            with self.path.open("r+b") as file:
                file.seek(max(size - 1, 0))
                if size < 0 or (size > 0 and file.read(1) != b"\n"):
                    raise InputError(
                        f"{self.path} has no line that ends at byte {size}, so it is not the file the checkpoint was "
                        "made with: put that file back, or start a new run"
                    )
                file.truncate(size)
                os.fsync(file.fileno())
        except OSError as error:
            raise self._failed(error) from error

    def flush_to_disk(self) -> None:
        """Return when every line so far is on the disk."""
        try:
            if self.path.exists():
                with self.path.open("r+b") as file:
                    os.fsync(file.fileno())
        except OSError as error:
            raise self._failed(error) from error

    def _append(self, line: str) -> None:
        data = line.encode(errors="backslashreplace")  # a file name may be no text; in JSON this is its escape
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                written = os.write(handle, data)
                if written < len(data):  # a disk that is nearly full takes a part: take it back, then ask for the rest
                    os.ftruncate(handle, os.fstat(handle).st_size - written)
                    raise OSError(f"took {written} of {len(data)} bytes")
            finally:
                os.close(handle)
        except OSError as error:
            raise self._failed(error) from error

    def _cut_torn_line(self) -> None:
        if not self.path.is_file():
            return
        try:
            with self.path.open("r+b") as file:
                whole = end = file.seek(0, os.SEEK_END)
                while whole > 0:
                    start = max(0, whole - 4096)
                    file.seek(start)
                    newline = file.read(whole - start).rfind(b"\n")
                    whole = start + newline + 1
                    if newline >= 0:
                        break
                if whole < end:
                    file.truncate(whole)
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> InputError:
        return InputError(f"cannot write {self.path} ({error.strerror or error}): free the place, then resume the run")


class Table(_Lines):
    """A CSV file with fixed columns; numbers are written exactly, what is missing or None as an empty cell."""

    def __init__(self, path: str | Path, columns: Sequence[str]) -> None:
        super().__init__(path)
        self.columns = tuple(columns)
        if not self.columns or len(set(self.columns)) < len(self.columns):
            raise InputError(f"a table needs different columns, got {self.columns}: name each once")
        self._header = _csv_line(self.columns)
        if self.size() == 0:
            self._append(self._header)
        else:
            with self.path.open(encoding="utf-8", errors="replace", newline="") as file:
                found = file.readline()
            if found != self._header:
                raise InputError(
                    f"{self.path} has the columns {found.strip()}, this run writes {self._header.strip()}: "
                    "resume with the version that began the run, or start a new one"
                )

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one row."""
        for name in row:
            if name not in self.columns:
                raise UnknownNameError("column", name, list(self.columns))
        self._append(_csv_line([_cell(row.get(name), name) for name in self.columns]))

    def truncate(self, size: int) -> None:
        """Cut off what was written after the file had `size` bytes; the header stays."""
        if size < (header := len(self._header.encode())):
            raise InputError(f"{self.path} cannot be cut to {size} bytes, its header has {header}: give a size it had")
        super().truncate(size)


class JsonLines(_Lines):
    """A log of one JSON object a line; floats that are not finite become null."""

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write one object."""
        self._append(json.dumps(_json(entry, ""), ensure_ascii=False, allow_nan=False) + "\n")


def read_table(path: str | Path) -> list[dict[str, str]]:
    """Read the rows of a table as text by column; a torn last line is left out."""
    lines = list(csv.reader(io.StringIO(_whole_lines(path), newline="")))
    for number, line in enumerate(lines, 1):
        if len(line) != len(lines[0]):
            raise InputError(f"{path} has {len(line)} cells in line {number}, not {len(lines[0])}: repair that line")
    return [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]


def read_json_lines(path: str | Path) -> list[dict[str, Any]]:
    """Read the objects of a log; a torn last line is left out."""
    entries = []
    for number, line in enumerate(_whole_lines(path).split("\n")[:-1], 1):
        try:
            entries.append(json.loads(line))
        except ValueError as error:
            raise InputError(f"{path} has no JSON in line {number} ({error}): repair that line") from error
    return entries


def _whole_lines(path: str | Path) -> str:
    try:
        data = Path(path).read_bytes()
        return data[: data.rfind(b"\n") + 1].decode()
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror or error}): check the path and its rights") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path} is not UTF-8 text (at line {line}): repair that line") from error


def _csv_line(cells: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _cell(value: Any, name: str) -> str:
    value = _plain(value)
    if value is None:
        return ""
    if isinstance(value, float):
        return float.__repr__(value)
    if isinstance(value, str) and ("\n" in value or "\r" in value):
        raise InputError(f"column {name} got a text of several lines, {value!r}: write it to the log")
    if isinstance(value, (str, int)):
        return str(value)
    raise InputError(f"column {name} got {value!r}: give a number or a text")


def _json(value: Any, name: str) -> Any:
    value = _plain(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _json(item, f"{name}.{key}" if name else str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json(item, f"{name}[{i}]") for i, item in enumerate(value)]
    raise InputError(f"the log's entry {name} = {value!r} has no JSON form: give numbers, texts, lists or mappings")


def _plain(value: Any) -> Any:
    """Numbers of numpy and torch as Python's."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value
