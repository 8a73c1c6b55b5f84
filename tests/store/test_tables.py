"""Tables and logs grow by whole lines and can be cut back to a checkpoint."""

import errno
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sihg.errors import InputError
from sihg.store.tables import JsonLines, Table, read_json_lines, read_table
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
    assert written == [b"1,2\n", b'{"event": "start\\nnow"}\n']


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
    size = lines.size()
    before = lines.path.read_bytes()
    lines.flush_to_disk()
    lines.append({"a": 22})
    lines.append({"a": 3})
    with refused("table-differs", size=size + 1):
        lines.truncate(size + 1)
    lines.truncate(size)
    assert lines.path.read_bytes() == before
    lines.truncate(size)
    with refused("table-too-short", found=size):
        lines.truncate(size + 5)
    lines.append({"a": 4})
    assert len(lines.path.read_bytes().splitlines()) == len(before.splitlines()) + 1


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_lines_and_cuts_are_on_the_disk_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = JsonLines(tmp_path / "log.jsonl")
    calls = record_disk_calls(monkeypatch)
    log.append({"a": 1})
    log.append({"a": 2})
    assert calls == []
    log.flush_to_disk()
    assert calls == ["sync log.jsonl 18", f"sync {tmp_path.name}/"]
    log.truncate(9)
    assert calls[2:] == ["sync log.jsonl 9"]
    log.truncate(9)  # nothing to cut
    assert len(calls) == 3


def test_the_header_stays_and_an_absent_log_is_empty(tmp_path: Path) -> None:
    table = Table(tmp_path / "t.csv", ["a", "b"])
    assert table.path.read_text() == "a,b\n"
    with refused("table-differs", size=0):
        table.truncate(0)
    log = JsonLines(tmp_path / "l.jsonl")
    log.flush_to_disk()
    log.truncate(0)
    assert log.size() == 0
    log.append({})
    log.truncate(0)
    assert log.path.read_bytes() == b""


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
    assert path.read_bytes() == b"a,b\n"
    (tmp_path / "l.jsonl").write_bytes(b'{"a": 1}\n{"a"')
    assert read_json_lines(tmp_path / "l.jsonl") == [{"a": 1}]


def test_columns_are_fixed(tmp_path: Path) -> None:
    table = Table(tmp_path / "t.csv", ["a", "b"])
    with refused("unknown-column", name="c", choices=("a", "b")):
        table.append({"a": 1, "c": 2})
    with refused("table-columns-differ", path=table.path, found="a,b"):
        Table(table.path, ["a", "c"])
    assert Table(table.path, ["a", "b"]).size() == 4
    for columns in ([], ["a", "a"]):
        with refused("table-columns", columns=tuple(columns)):
            Table(tmp_path / "other.csv", columns)


@pytest.mark.parametrize("value", ["a\nb", "a\rb", [1], 1j])
def test_a_cell_is_one_value(tmp_path: Path, value: Any) -> None:
    table = Table(tmp_path / "t.csv", ["a"])
    with refused("cell-type", column="a"):
        table.append({"a": value})
    assert table.path.read_text() == "a\n"


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
def test_a_device_without_space_is_named() -> None:
    with pytest.raises(InputError, match=r"cannot write /dev/full \(No space left on device\): make room there"):
        JsonLines("/dev/full").append({"a": 1})


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
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    for i in range(20): table.append({"text": "0123456789abcdef"})
except InputError as error: print(i, error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limits there")
def test_a_disk_that_takes_half_a_line_keeps_only_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    done = subprocess.run([sys.executable, "-c", FILL, str(path)], check=True, capture_output=True, text=True)
    assert done.stdout.startswith(f"5 cannot write {path} (took 10 of 17 bytes)")
    assert path.read_text() == "text\n" + "0123456789abcdef\n" * 5
