"""Append to tables and logs: one write per line, so that a kill damages only the last line.

Every line ends with a sum over itself and all lines before it. So a changed, lost, moved or repeated line is noticed by
everyone who reads. Lines lost at the end are noticed by a checkpoint, which keeps the `Mark` of each table.
"""

import csv
import io
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from zlib import crc32

import msgspec

from sihg.errors import InputError, UnknownNameError
from sihg.store.files import Json, open_in_place, read_regular, status, sync_folder

# The last column of a table, and the last key of a log's line. Most lines hold seconds, so equal runs have other sums:
# who compares two runs without their seconds leaves this out, too.
SUM = "sum_with_seconds"
MAX_SHOWN = 80  # bytes of a damaged file, in an error
LineSum = Callable[[Sequence[str], Path], int]  # checks lines and returns the sum of the last
_JSON_SUM = re.compile(rf', "{SUM}": "([0-9a-f]{{8}})"}}$')


class Mark(msgspec.Struct, frozen=True):
    """How far a table was when a checkpoint was made: its bytes, and the sum of its last line."""

    bytes: int
    sum: str


class _Lines:
    """A text file to which whole lines are appended; the first write cuts off an incomplete last line."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._sum = self._size = 0
        if status(self.path) is not None:
            self._cut(self.path.stat().st_size)  # cuts nothing, but refuses links
            whole = _whole_lines(self.path)
            self._size = len(whole.encode())  # what follows is cut off by the first write, not by a look
            self._sum = self._verify(whole)

    def _verify(self, text: str) -> int:
        """Return the sum of the last line, or raise InputError for the first line that is not as it was written."""
        raise NotImplementedError

    def size(self) -> int:
        """Return the number of bytes of the whole lines so far."""
        return self._size

    def mark(self) -> Mark:
        """Return how far the file is, for `truncate`."""
        return Mark(self.size(), f"{self._sum:08x}")

    def truncate(self, mark: Mark) -> None:
        """Cut off what was written after the mark; raise InputError if what stays is not what the mark was set in."""
        found = self.size()
        if found < mark.bytes:
            raise InputError("table-too-short", path=self.path, found=found, size=mark.bytes)
        text = _whole_lines(self.path).encode()[: mark.bytes].decode(errors="replace") if found else ""
        if (text and not text.endswith("\n")) or f"{(kept := self._verify(text)):08x}" != mark.sum:
            raise InputError("table-differs", path=self.path, size=mark.bytes)
        self._cut(mark.bytes)
        self._sum, self._size = kept, mark.bytes

    def flush_to_disk(self) -> None:
        """Return when every line so far, and the file's name, are on the disk."""
        try:
            if status(self.path) is not None:
                handle = open_in_place(self.path)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)
                sync_folder(self.path.parent)
        except OSError as error:
            raise self._failed(error) from error

    def _append(self, line: str, total: int) -> None:
        """Write a line, whose sum is `total`."""
        self._cut(self._size)
        data = line.encode(errors="backslashreplace")  # a file name may not be UTF-8; in JSON this is its escape
        try:
            handle = open_in_place(self.path, os.O_APPEND | os.O_CREAT)
            try:
                written = os.write(handle, data)
                if written < len(data):  # the disk is nearly full: undo the part that it took
                    os.ftruncate(handle, os.fstat(handle).st_size - written)
                    raise OSError(f"took {written} of {len(data)} bytes")
            finally:
                os.close(handle)
        except OSError as error:
            raise self._failed(error) from error
        self._sum, self._size = total, self._size + len(data)

    def _cut(self, size: int) -> None:
        try:
            if status(self.path) is not None:
                handle = open_in_place(self.path)
                try:
                    if size < os.fstat(handle).st_size:
                        os.ftruncate(handle, size)
                        os.fsync(handle)
                finally:
                    os.close(handle)
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
        self.columns = tuple(columns)
        if not self.columns or len({*self.columns, SUM}) < len(self.columns) + 1:
            raise InputError("table-columns", columns=self.columns)
        super().__init__(path)
        if self.size() == 0:
            header = _csv_cells(self.columns)
            left = read_regular(self.path) if status(self.path) is not None else b""
            if not f"{header},{SUM}".encode().startswith(left):  # more than a header whose writing was cut short
                found = left[:MAX_SHOWN].decode(errors="replace")
                raise InputError("table-columns-differ", path=self.path, found=found, wanted=header)
            self._append(f"{header},{SUM}\n", _chained(header, 0))

    def _verify(self, text: str) -> int:
        lines = text.split("\n")[:-1]
        header = f"{_csv_cells(self.columns)},{SUM}"
        if lines and lines[0] != header:
            raise InputError("table-columns-differ", path=self.path, found=lines[0], wanted=header)
        return _table_sum(lines, self.path)

    def append(self, row: Mapping[str, object]) -> None:
        """Write one row of numbers and text by column."""
        for name in row:
            if name not in self.columns:
                raise UnknownNameError("column", name, list(self.columns))
        body = _csv_cells([_cell(row.get(name), name) for name in self.columns])
        total = _chained(body, self._sum)
        self._append(f"{body},{total:08x}\n", total)


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
        """Write one object, which has no key SUM."""
        if not entry or SUM in entry:
            raise InputError("log-type", name=SUM, value=entry.get(SUM))
        body = json.dumps(_json(entry, ""), ensure_ascii=False, allow_nan=False)
        total = _chained(body, self._sum)
        self._append(f'{body[:-1]}, "{SUM}": "{total:08x}"}}\n', total)

    def _verify(self, text: str) -> int:
        return _log_sum(text.split("\n")[:-1], self.path)


def table_text(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a whole table as text, each line with its sum, for a file that is written at once."""
    total, lines = _chained(_csv_cells(columns), 0), [f"{_csv_cells(columns)},{SUM}"]
    for row in rows:
        total = _chained(_csv_cells(row), total)
        lines.append(f"{_csv_cells(row)},{total:08x}")
    return "\n".join([*lines, ""])


def reseal_table(path: Path) -> bytes:
    """Return a table that was edited on purpose with new sums."""
    lines = list(csv.reader(_all_lines(path)))
    if not lines or lines[0][-1] != SUM or any(len(line) != len(lines[0]) for line in lines):
        raise InputError("table-line", path=path, line=1)
    return table_text(lines[0][:-1], [line[:-1] for line in lines[1:]]).encode()


def reseal_log(path: Path) -> bytes:
    """Return a log that was edited on purpose with new sums."""
    total, text = 0, ""
    for number, line in enumerate(_all_lines(path), 1):
        try:
            entry = {key: value for key, value in json.loads(line).items() if key != SUM}
        except (ValueError, AttributeError, RecursionError) as error:
            raise InputError("log-line", path=path, line=number, reason=str(error)) from error
        body = json.dumps(entry, ensure_ascii=False)
        total = _chained(body, total)
        text += f'{body[:-1]}, "{SUM}": "{total:08x}"}}\n'
    return text.encode(errors="backslashreplace")


def read_table(path: str | Path, *, sealed: bool = False, mark: Mark | None = None) -> list[dict[str, str]]:
    """Read the rows of a table; an incomplete last line is left out.

    Args:
        path: The CSV file.
        sealed: Whether each line must carry its sum. Sums that are there are checked in any case.
        mark: What the table had at least, by its newest checkpoint.
    Returns:
        One dict per row: text by column.
    Raises:
        InputError: A line was changed or lost.
    Example:
        >>> _ = Path("t.csv").write_text("epoch,loss\\n1,0.5\\n2,")
        >>> read_table("t.csv")
        [{'epoch': '1', 'loss': '0.5'}]
    """
    path, text = Path(path), _whole_lines(path)
    lines = text.split("\n")[:-1]
    has_sums = bool(lines) and lines[0].endswith(f",{SUM}")
    if (sealed or mark is not None) and lines and not has_sums:
        raise InputError("table-line", path=path, line=1)
    if has_sums or mark is not None:
        _check_mark(path, text, mark, _table_sum)
        lines = [line.rpartition(",")[0] for line in lines]
    try:
        cells = list(csv.reader(lines))
    except csv.Error as error:
        raise InputError("table-cell", path=path, error=error) from error
    for number, line in enumerate(cells, 1):
        if len(line) != len(cells[0]):
            raise InputError("table-cells", path=path, line=number, count=len(line), wanted=len(cells[0]))
    return [dict(zip(cells[0], line, strict=True)) for line in cells[1:]]


def read_json_lines(path: str | Path, *, sealed: bool = False, mark: Mark | None = None) -> list[dict[str, Json]]:
    """Read the objects of a log; an incomplete last line is left out.

    Args:
        path: The file.
        sealed: Whether each line must carry its sum. Sums that are there are checked in any case.
        mark: What the log had at least, by its newest checkpoint.
    Returns:
        One dict per line.
    Raises:
        InputError: A line was changed or lost.
    Example:
        >>> _ = Path("l.jsonl").write_text('{"epoch": 1}\\n{"epo')
        >>> read_json_lines("l.jsonl")
        [{'epoch': 1}]
    """
    path, text = Path(path), _whole_lines(path)
    lines = text.split("\n")[:-1]
    if sealed or mark is not None or any(_JSON_SUM.search(line) for line in lines):
        _check_mark(path, text, mark, _log_sum)
    entries = []
    for number, line in enumerate(lines, 1):
        try:
            entries.append(json.loads(line))
            reason = "" if isinstance(entries[-1], dict) else f"it is a {type(entries[-1]).__name__}"
        except (ValueError, RecursionError) as error:
            reason = str(error)
        if reason:
            raise InputError("log-line", path=path, line=number, reason=reason)
        entries[-1].pop(SUM, None)
    return entries


def _check_mark(path: Path, text: str, mark: Mark | None, line_sum: LineSum) -> None:
    """Check the sums of all lines, and that the lines up to the mark are there."""
    line_sum(text.split("\n")[:-1], path)
    if mark is None:
        return
    data = text.encode()
    if len(data) < mark.bytes:
        raise InputError("table-too-short", path=path, found=len(data), size=mark.bytes)
    kept = data[: mark.bytes].decode(errors="replace").split("\n")
    if kept[-1] or f"{line_sum(kept[:-1], path):08x}" != mark.sum:
        raise InputError("table-differs", path=path, size=mark.bytes)


def _all_lines(path: Path) -> list[str]:
    """Return the lines of a file that was edited on purpose; an incomplete last line is an error, and not left out."""
    lines = _whole_lines(path).split("\n")[:-1]
    if not read_regular(path).endswith(b"\n"):
        raise InputError("table-line", path=path, line=len(lines) + 1)
    return lines


def _whole_lines(path: str | Path) -> str:
    try:
        data = read_regular(path)
        return data[: data.rfind(b"\n") + 1].decode()
    except OSError as error:
        raise InputError("cannot-read-table", path=path, reason=error.strerror or error) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError("table-not-utf8", path=path, line=line) from error


# ---- the sum of a line


def _chained(body: str, before: int) -> int:
    """Return the sum of a line without its own sum, given that of the line before."""
    return crc32(body.encode(errors="backslashreplace") + b"\n", before)


def _table_sum(lines: Sequence[str], path: Path) -> int:
    total = _chained(lines[0].rpartition(",")[0], 0) if lines else 0
    for number, line in enumerate(lines[1:], 2):
        body, _, found = line.rpartition(",")
        total = _chained(body, total)
        if found != f"{total:08x}":
            raise InputError("table-line", path=path, line=number)
    return total


def _log_sum(lines: Sequence[str], path: Path) -> int:
    total = 0
    for number, line in enumerate(lines, 1):
        found = _JSON_SUM.search(line)
        total = _chained(line[: found.start()] + "}", total) if found else 0
        if not found or found[1] != f"{total:08x}":
            raise InputError("table-line", path=path, line=number)
    return total


def _csv_cells(cells: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
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
