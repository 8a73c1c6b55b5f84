"""Tables and logs grow by whole lines and can be cut back to a checkpoint."""

import errno
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sihg.errors import InputError
from sihg.store.tables import JsonLines, Mark, Table, read_json_lines, read_table, table_text
from tests.refused import refused
from tests.store.disk_calls import record_disk_calls


def test_rows_come_back_exactly(tmp_path: Path) -> None:
    table = Table(tmp_path / "metrics.csv", ["epoch", "loss", "note"])
    table.append({"epoch": 1, "loss": 8 / 255, "note": 'a, "b"'})
    table.append({"loss": np.float64(0.1), "epoch": torch.tensor(2)})
    table.append({"epoch": 3, "loss": math.nan, "note": None})
    assert read_table(table.path) == [
        {"epoch": "1", "loss": repr(8 / 255), "note": 'a, "b"'},
        {"epoch": "2", "loss": "0.1", "note": ""},
        {"epoch": "3", "loss": "nan", "note": ""},
    ]


@given(value=st.floats(allow_nan=False))
def test_any_float_comes_back(value: float, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("floats")
    Table(folder / "t.csv", ["x"]).append({"x": value})
    JsonLines(folder / "l.jsonl").append({"x": value})
    assert repr(float(read_table(folder / "t.csv")[0]["x"])) == repr(value)
    assert repr(read_json_lines(folder / "l.jsonl")[0]["x"]) == repr(value if math.isfinite(value) else None)


def test_each_append_is_one_write_of_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, log = Table(tmp_path / "t.csv", ["a", "b"]), JsonLines(tmp_path / "l.jsonl")
    written, write = [], os.write

    def spy(handle: int, data: bytes) -> int:
        written.append(data)
        return write(handle, data)

    monkeypatch.setattr(os, "write", spy)
    table.append({"a": 1, "b": 2})
    log.append({"event": "start\nnow"})
    sums = [crc32(b"1,2\n", crc32(b"a,b\n")), crc32(b'{"event": "start\\nnow"}\n')]
    assert written == [b"1,2,%08x\n" % sums[0], b'{"event": "start\\nnow", "sum_with_seconds": "%08x"}\n' % sums[1]]


def test_the_log_takes_what_json_lacks(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log.jsonl")
    log.append(
        {"x": [math.inf, {"y": -math.nan}], "p": Path("a"), "t": (torch.tensor(0.5), np.int64(3)), "name": "\udc80θ"}
    )
    assert read_json_lines(log.path) == [{"x": [None, {"y": None}], "p": "a", "t": [0.5, 3], "name": "\udc80θ"}]
    with refused("log-type", name="a.b[0]"):
        log.append({"a": {"b": [object()]}})
    assert len(read_json_lines(log.path)) == 1


@pytest.mark.parametrize("kind", ["table", "log"])
def test_truncate_cuts_what_came_after(tmp_path: Path, kind: str) -> None:
    lines: Table | JsonLines = Table(tmp_path / "f", ["a"]) if kind == "table" else JsonLines(tmp_path / "f")
    lines.append({"a": 1})
    mark = lines.mark()
    before = lines.path.read_bytes()
    assert mark.bytes == len(before)
    lines.flush_to_disk()
    lines.append({"a": 22})
    lines.append({"a": 3})
    whole = lines.path.read_bytes()
    for wrong in (Mark(mark.bytes + 1, mark.sum), Mark(mark.bytes, "0" * 8), Mark(0, mark.sum)):
        with refused("table-differs", size=wrong.bytes):
            lines.truncate(wrong)
        assert lines.path.read_bytes() == whole
    lines.truncate(mark)
    assert lines.path.read_bytes() == before
    lines.truncate(mark)
    with refused("table-too-short", found=mark.bytes, size=mark.bytes + 5):
        lines.truncate(Mark(mark.bytes + 5, mark.sum))
    lines.append({"a": 22})
    lines.append({"a": 3})
    assert lines.path.read_bytes() == whole  # the sums go on where the mark was set


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_lines_and_cuts_are_on_the_disk_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = JsonLines(tmp_path / "log.jsonl")
    calls = record_disk_calls(monkeypatch)
    log.append({"a": 1})
    mark = log.mark()
    log.append({"a": 2})
    assert calls == []
    log.flush_to_disk()
    assert calls == [f"sync log.jsonl {2 * mark.bytes}", f"sync {tmp_path.name}/"]
    log.truncate(mark)
    assert calls[2:] == [f"sync log.jsonl {mark.bytes}"]
    log.truncate(mark)  # nothing to cut
    assert len(calls) == 3


def test_the_header_stays_and_an_absent_log_is_empty(tmp_path: Path) -> None:
    table = Table(tmp_path / "t.csv", ["a", "b"])
    assert table.path.read_text() == "a,b,sum_with_seconds\n"
    with refused("table-differs", size=0):
        table.truncate(Mark(0, table.mark().sum))
    log = JsonLines(tmp_path / "l.jsonl")
    log.flush_to_disk()
    nothing = log.mark()
    log.truncate(nothing)
    assert nothing == Mark(0, "0" * 8)
    log.append({"a": 1})
    log.truncate(nothing)
    assert log.path.read_bytes() == b""
    for entry in ({}, {"sum_with_seconds": 1}):  # nothing to take the sum of, and the key of the sum
        with refused("log-type", name="sum_with_seconds"):
            log.append(entry)


def test_an_incomplete_last_line_is_left_out_by_readers_and_cut_by_writers(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    Table(path, ["a", "b"]).append({"a": 1, "b": 2})
    with path.open("ab") as file:
        file.write(b"3," + b"9" * 10_000)
    assert read_table(path) == [{"a": "1", "b": "2"}]
    Table(path, ["a", "b"]).append({"a": 5, "b": 6})
    assert read_table(path) == [{"a": "1", "b": "2"}, {"a": "5", "b": "6"}]
    path.write_bytes(b"a,")  # the header itself
    assert read_table(path) == []
    Table(path, ["a", "b"])
    assert path.read_bytes() == b"a,b,sum_with_seconds\n"
    (tmp_path / "l.jsonl").write_bytes(b'{"a": 1}\n{"a"')
    assert read_json_lines(tmp_path / "l.jsonl") == [{"a": 1}]


def test_columns_are_fixed(tmp_path: Path) -> None:
    table = Table(tmp_path / "t.csv", ["a", "b"])
    with refused("unknown-column", name="c", choices=("a", "b")):
        table.append({"a": 1, "c": 2})
    with refused("table-columns-differ", path=table.path, found="a,b,sum_with_seconds"):
        Table(table.path, ["a", "c"])
    assert Table(table.path, ["a", "b"]).size() == len("a,b,sum_with_seconds\n")
    for columns in ([], ["a", "a"], ["a", "sum_with_seconds"]):
        with refused("table-columns", columns=tuple(columns)):
            Table(tmp_path / "other.csv", columns)


@pytest.mark.parametrize("value", ["a\nb", "a\rb", [1], 1j])
def test_a_cell_is_one_value(tmp_path: Path, value: Any) -> None:
    table = Table(tmp_path / "t.csv", ["a"])
    with refused("cell-type", column="a"):
        table.append({"a": value})
    assert table.path.read_text() == "a,sum_with_seconds\n"


def test_broken_files_are_named_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    with refused("cannot-read-table", path=path):
        read_table(path)
    path.write_text("a,b\n1,2\n3\n")
    with refused("table-cells", path=path, line=3):
        read_table(path)
    path.write_bytes(b"a\n\xff\n")
    with refused("table-not-utf8", path=path, line=2):
        read_table(path)
    for second in ("{", "[1]", "1"):
        path.write_text(f"{{}}\n{second}\n")
        with refused("log-line", path=path, line=2):
            read_json_lines(path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_device_is_refused() -> None:
    with refused("linked-file", path=Path("/dev/full"), what="not a regular file"):
        JsonLines("/dev/full")


def test_a_disk_without_space_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = JsonLines(tmp_path / "l.jsonl")

    def fail(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(InputError, match=r"cannot write .*l\.jsonl \(No space left on device\): make room there"):
        log.append({"a": 1})
    monkeypatch.undo()
    log.append({"a": 1})  # the sums go on from what was written
    assert read_json_lines(log.path, sealed=True) == [{"a": 1}]


def test_a_disk_error_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = JsonLines(tmp_path / "l.jsonl")
    log.append({"a": 1})

    def fail(_handle: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InputError, match=r"cannot write .*l\.jsonl \(Input/output error\)"):
        log.flush_to_disk()


FILL = """
import resource, sys
from sihg.errors import InputError
from sihg.store.tables import Table
table = Table(sys.argv[1], ["text"])
resource.setrlimit(resource.RLIMIT_FSIZE, (113, 113))
try:
    for i in range(20): table.append({"text": "0123456789abcdef"})
except InputError as error: print(i, error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limits there")
def test_a_disk_that_takes_half_a_line_keeps_only_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    done = subprocess.run([sys.executable, "-c", FILL, str(path)], check=True, capture_output=True, text=True)
    assert done.stdout.startswith(f"3 cannot write {path} (took 13 of 26 bytes)")
    assert path.read_text() == table_text(["text"], [["0123456789abcdef"]] * 3)
    assert len(read_table(path, sealed=True)) == 3


# ---- damage


def a_table(folder: Path) -> Table:
    table = Table(folder / "t.csv", ["epoch", "note"])
    for number in range(1, 5):
        table.append({"epoch": number % 2, "note": "same, quoted"})
    return table


def a_log(folder: Path) -> JsonLines:
    log = JsonLines(folder / "l.jsonl")
    for number in range(1, 5):
        log.append({"epoch": number % 2, "note": "é"})
    return log


Lines = Callable[[Path], Table | JsonLines]
BOTH = pytest.mark.parametrize("make", [a_table, a_log])


def read(lines: Table | JsonLines, mark: Mark | None = None) -> list[Any]:
    reader: Any = read_table if isinstance(lines, Table) else read_json_lines
    return reader(lines.path, sealed=True, mark=mark)  # type: ignore[no-any-return]


def reopen(lines: Table | JsonLines) -> Table | JsonLines:
    return Table(lines.path, lines.columns) if isinstance(lines, Table) else JsonLines(lines.path)


@BOTH
def test_every_flipped_bit_is_noticed(tmp_path: Path, make: Lines) -> None:
    """By readers; one in a line's end shows only against the mark if it is the last."""
    lines = make(tmp_path)
    mark, whole = lines.mark(), lines.path.read_bytes()
    assert len(read(lines, mark)) == 4
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        lines.path.write_bytes(changed)
        with pytest.raises(InputError):
            read(lines, mark)
        if bit // 8 < len(whole) - 1:
            with pytest.raises(InputError):
                read(lines)
            with pytest.raises(InputError):
                reopen(lines)


@BOTH
def test_lost_moved_and_repeated_lines_are_noticed(tmp_path: Path, make: Lines) -> None:
    lines = make(tmp_path)
    whole = lines.path.read_bytes().splitlines(keepends=True)
    first = len(whole) - 4  # of the rows, two of which have the same cells
    for changed, line in (
        (whole[:first] + whole[first + 1 :], first),
        (whole[: first + 1] + whole[first + 2 :], first + 1),
        ([*whole[:first], whole[first + 1], whole[first], *whole[first + 2 :]], first),
        ([*whole[:first], whole[first + 2], whole[first + 1], whole[first], whole[-1]], first),
        ([*whole[: first + 1], *whole[first:]], first + 1),
        ([*whole, whole[-1]], len(whole)),
    ):
        lines.path.write_bytes(b"".join(changed))
        with refused("table-line", path=lines.path, line=line + 1):
            read(lines)
        with refused("table-line", path=lines.path, line=line + 1):
            reopen(lines)


@BOTH
def test_lines_lost_at_the_end_are_noticed_by_the_mark(tmp_path: Path, make: Lines) -> None:
    lines = make(tmp_path)
    mark, whole = lines.mark(), lines.path.read_bytes().splitlines(keepends=True)
    for kept in range(len(whole)):
        lines.path.write_bytes(b"".join(whole[:kept]))
        with refused("table-too-short", path=lines.path, size=mark.bytes):
            read(lines, mark)
        with refused("table-too-short", path=lines.path, size=mark.bytes):
            reopen(lines).truncate(mark)
    lines.path.write_bytes(b"".join(whole))
    longer = reopen(lines)
    longer.append({"epoch": 5})
    assert len(read(lines, mark)) == 5


@BOTH
def test_a_file_of_the_same_size_with_right_sums_is_not_the_marked_one(tmp_path: Path, make: Lines) -> None:
    lines = make(tmp_path)
    mark, before = lines.mark(), read(lines)
    lines.path.unlink()
    other = reopen(lines)
    for row in before:
        other.append({**row, "epoch": 7})
    assert other.mark().bytes == mark.bytes
    assert len(read(other)) == 4
    with refused("table-differs", path=lines.path, size=mark.bytes):
        read(other, mark)
    with refused("table-differs", path=lines.path, size=mark.bytes):
        other.truncate(mark)


@BOTH
def test_a_mark_needs_sums(tmp_path: Path, make: Lines) -> None:
    lines = make(tmp_path)
    mark = lines.mark()
    text = "epoch,note\n1,a\n" if isinstance(lines, Table) else '{"epoch": 1}\n'
    lines.path.write_text(text)
    plain: Any = read_table if isinstance(lines, Table) else read_json_lines
    assert len(plain(lines.path)) == 1  # as the first versions wrote it
    for options in ({"sealed": True}, {"mark": mark}):
        with refused("table-line", path=lines.path, line=1):
            plain(lines.path, **options)


@BOTH
@pytest.mark.parametrize("kind", ["link", "hard link"])
def test_a_file_that_is_also_another_file_is_not_written(tmp_path: Path, make: Lines, kind: str) -> None:
    lines = make(tmp_path)
    other, mark = tmp_path / "other", lines.mark()
    lines.path.rename(other)
    if kind == "link":
        lines.path.symlink_to(other)
    else:
        lines.path.hardlink_to(other)
    before = other.read_bytes()
    with refused("linked-file", path=lines.path):
        lines.append({"epoch": 9})
    with refused("linked-file", path=lines.path):
        lines.flush_to_disk()
    with other.open("ab") as file:
        file.write(b"half a line")
    with refused("linked-file", path=lines.path):
        lines.truncate(mark)
    with refused("linked-file", path=lines.path):
        reopen(lines)
    assert other.read_bytes() == before + b"half a line"


@BOTH
def test_a_damaged_end_is_not_cut_before_it_is_compared(tmp_path: Path, make: Lines) -> None:
    lines = make(tmp_path)
    mark, data = lines.mark(), lines.path.read_bytes()
    for damaged in (data[:-1] + b"\x0b", data.replace(b"\n", b"\x0b"), data[:-1]):  # one bit of a newline, or all
        lines.path.write_bytes(damaged)
        with pytest.raises(InputError):
            reopen(lines).truncate(mark)
        assert lines.path.read_bytes() == damaged
