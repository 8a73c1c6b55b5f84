"""Append to tables and logs: one write per line, so that a kill damages only the last line."""

import csv
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from sihg.errors import InputError, UnknownNameError
from sihg.store.files import Json, sync_folder


class _Lines:
    """A text file to which whole lines are appended; an incomplete last line of a killed process is cut off first."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._least = 0  # bytes that `truncate` leaves
        self._cut_incomplete_line()

    def size(self) -> int:
        """Return the number of bytes so far, for `truncate`."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def truncate(self, size: int) -> None:
        """Cut off what was written after the file had `size` bytes."""
        found = self.size()
        if found < size:
            raise InputError("table-too-short", path=self.path, found=found, size=size)
        if size == found:
            return
        try:
            with self.path.open("r+b") as file:
                file.seek(max(size - 1, 0))
                if size < self._least or (size > 0 and file.read(1) != b"\n"):
                    raise InputError("table-differs", path=self.path, size=size)
                file.truncate(size)
                os.fsync(file.fileno())
        except OSError as error:
            raise self._failed(error) from error

    def flush_to_disk(self) -> None:
        """Return when every line so far, and the file's name, are on the disk."""
        try:
            if self.path.exists():
                with self.path.open("r+b") as file:
                    os.fsync(file.fileno())
                sync_folder(self.path.parent)
        except OSError as error:
            raise self._failed(error) from error

    def _append(self, line: str) -> None:
        data = line.encode(errors="backslashreplace")  # a file name may not be UTF-8; in JSON this is its escape
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                written = os.write(handle, data)
                if written < len(data):  # the disk is nearly full: undo the part that it took
                    os.ftruncate(handle, os.fstat(handle).st_size - written)
                    raise OSError(f"took {written} of {len(data)} bytes")
            finally:
                os.close(handle)
        except OSError as error:
            raise self._failed(error) from error

    def _cut_incomplete_line(self) -> None:
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
        return InputError("cannot-write-table", path=self.path, reason=error.strerror or error)


class Table(_Lines):
    """A CSV file with fixed columns, to which rows are appended. Numbers are written exactly; None is an empty cell.

    Args:
        path: The file, new or with the same columns.
        columns: The names of the columns.
    Example:
        >>> Table("metrics.csv", ["epoch", "loss"]).append({"epoch": 1, "loss": 0.25})
        >>> read_table("metrics.csv")
        [{'epoch': '1', 'loss': '0.25'}]
    """

    def __init__(self, path: str | Path, columns: Sequence[str]) -> None:
        super().__init__(path)
        self.columns = tuple(columns)
        if not self.columns or len(set(self.columns)) < len(self.columns):
            raise InputError("table-columns", columns=self.columns)
        header = _csv_line(self.columns)
        self._least = len(header.encode())
        if self.size() == 0:
            self._append(header)
        else:
            with self.path.open(encoding="utf-8", errors="replace", newline="") as file:
                found = file.readline()
            if found != header:
                raise InputError("table-columns-differ", path=self.path, found=found.strip(), wanted=header.strip())

    def append(self, row: Mapping[str, object]) -> None:
        """Write one row of numbers and text by column."""
        for name in row:
            if name not in self.columns:
                raise UnknownNameError("column", name, list(self.columns))
        self._append(_csv_line([_cell(row.get(name), name) for name in self.columns]))


class JsonLines(_Lines):
    """A log with one JSON object per line. Floats that are NaN or infinite become null.

    Args:
        path: The file. If it exists, lines are appended.
    Example:
        >>> JsonLines("log.jsonl").append({"event": "warning", "loss": float("nan")})
        >>> read_json_lines("log.jsonl")
        [{'event': 'warning', 'loss': None}]
    """

    def append(self, entry: Mapping[str, object]) -> None:
        """Write one object."""
        self._append(json.dumps(_json(entry, ""), ensure_ascii=False, allow_nan=False) + "\n")


def read_table(path: str | Path) -> list[dict[str, str]]:
    """Read the rows of a table; an incomplete last line is left out.

    Args:
        path: The CSV file.
    Returns:
        One dict per row: text by column.
    Example:
        >>> _ = Path("t.csv").write_text("epoch,loss\\n1,0.5\\n2,")
        >>> read_table("t.csv")
        [{'epoch': '1', 'loss': '0.5'}]
    """
    lines = list(csv.reader(io.StringIO(_read_whole_lines(path), newline="")))
    for number, line in enumerate(lines, 1):
        if len(line) != len(lines[0]):
            raise InputError("table-cells", path=path, line=number, count=len(line), wanted=len(lines[0]))
    return [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]


def read_json_lines(path: str | Path) -> list[dict[str, Json]]:
    """Read the objects of a log; an incomplete last line is left out.

    Args:
        path: The file.
    Returns:
        One dict per line.
    Example:
        >>> _ = Path("l.jsonl").write_text('{"epoch": 1}\\n{"epo')
        >>> read_json_lines("l.jsonl")
        [{'epoch': 1}]
    """
    entries = []
    for number, line in enumerate(_read_whole_lines(path).split("\n")[:-1], 1):
        try:
            entries.append(json.loads(line))
            reason = "" if isinstance(entries[-1], dict) else f"it is a {type(entries[-1]).__name__}"
        except ValueError as error:
            reason = str(error)
        if reason:
            raise InputError("log-line", path=path, line=number, reason=reason)
    return entries


def _read_whole_lines(path: str | Path) -> str:
    try:
        data = Path(path).read_bytes()
        return data[: data.rfind(b"\n") + 1].decode()
    except OSError as error:
        raise InputError("cannot-read-table", path=path, reason=error.strerror or error) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError("table-not-utf8", path=path, line=line) from error


def _csv_line(cells: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _cell(value: object, name: str) -> str:
    value = _as_python(value)
    if value is None:
        return ""
    if isinstance(value, float):
        return float.__repr__(value)
    if isinstance(value, int) or (isinstance(value, str) and not {"\n", "\r"} & set(value)):
        return str(value)
    raise InputError("cell-type", column=name, value=value)


def _json(value: object, name: str) -> Json:
    value = _as_python(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _json(item, f"{name}.{key}" if name else str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json(item, f"{name}[{i}]") for i, item in enumerate(value)]
    raise InputError("log-type", name=name, value=value)


def _as_python(value: object) -> object:
    """Convert scalars of numpy and torch to Python's numbers."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value
