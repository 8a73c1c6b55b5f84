"""Solve folders are read, and what is damaged is named."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sihg.errors import InputError
from sihg.report.read.solves import Curve, read_solved
from sihg.report.solve_report import report_solve
from sihg.store.seal import SEAL_KEY
from sihg.store.tables import table_text
from tests.refused import refused
from tests.report.solve_folders import columns, entry, put, spiral, write_path, write_solve


def test_errors_name_the_file_and_the_remedy(tmp_path: Path) -> None:
    folder = write_solve(tmp_path / "out", plane=True)

    def complaint(change: Callable[[], object], path: Path, code: str = "solve-damaged") -> str:
        before = path.read_bytes()
        change()
        with pytest.raises(InputError) as caught:
            report_solve(folder)
        path.write_bytes(before)
        text = str(caught.value)
        assert caught.value.code == code
        assert str(path) in text
        assert "sihg solve" in text or code == "cannot-read-table"
        return text

    summary, history = folder / "summary.json", folder / "ssi-hg" / "history.json"
    path, field = folder / "ssi-hg" / "trajectory.csv", folder / "field.json"
    for file in (summary, history):
        complaint(file.unlink, file, "record-unreadable")
    complaint(path.unlink, path, "cannot-read-table")
    for file in (summary, history, field):
        for damage in (b"{", b"[]", b"\xff\xfe"):
            complaint(partial(file.write_bytes, damage), file, "record-unreadable")
    complaint(lambda: path.write_text(table_text(("iteration", "w"), [("0", "1")] * 41)), path)
    complaint(lambda: write_path(path.parent, [("1", "x")] * 41), path)
    assert "40 points, not 41" in complaint(lambda: write_path(path.parent, spiral(39)), path)

    content = json.loads(summary.read_text())
    assert "`seed`" in complaint(lambda: put(summary, content, "seed"), summary, "record-invalid")
    assert "`$.n`" in complaint(lambda: put(summary, content, "n", "four"), summary, "record-invalid")
    assert "no methods" in complaint(lambda: put(summary, content, "methods", []), summary)
    complaint(lambda: put(summary, content, "methods", [3]), summary, "record-invalid")
    complaint(lambda: put(summary, content, "methods", [entry("../ssi-hg")]), summary)
    wrong_entry = entry("ssi-hg", distance="far")
    complaint(lambda: put(summary, content, "methods", [wrong_entry]), summary, "record-invalid")

    rows = columns([1.0, 0.5])
    invalid = "record-invalid"
    wrong: list[tuple[str, Any, str]] = [
        ("iteration", [0, 0], "solve-damaged"),
        ("w_gradients", [0], "solve-damaged"),
        ("saddle_norm_squared", ["x", "y"], invalid),
    ]
    for name, value, code in wrong:
        complaint(partial(put, history, {}, "columns", rows | {name: value}), history, code)

    grid = json.loads(field.read_text())
    wrong = [("w", [0, 1], "solve-damaged"), ("w", [0] * 11, "solve-damaged")]
    wrong += [("solution", [1], invalid), ("box", [0, 1, None, 1], invalid)]
    for name, value, code in wrong:
        complaint(partial(put, field, grid, name, value), field, code)
    report_solve(folder)

    with refused("record-unreadable", path=tmp_path / "nowhere" / "summary.json"):
        report_solve(tmp_path / "nowhere")


def test_a_changed_byte_in_any_file_is_noticed(tmp_path: Path) -> None:
    folder = write_solve(tmp_path / "out", {"gda": [1.0, 0.5]}, plane=True, changes={"gda": {"iterations": 1}})
    read_solved(folder)
    for file in (folder / name for name in ("summary.json", "field.json", "gda/history.json", "gda/trajectory.csv")):
        before = file.read_bytes()
        step = 1 + len(before) // 200  # about two hundred places in each, and the last byte
        for place in (*range(0, len(before), step), len(before) - 1):
            file.write_bytes(before[:place] + bytes([before[place] ^ 1]) + before[place + 1 :])
            with pytest.raises(InputError) as caught:
                read_solved(folder)
            assert str(file) in str(caught.value), place
        file.write_bytes(before)
    read_solved(folder)


def test_a_solve_before_format_2_is_read(tmp_path: Path) -> None:
    folder = write_solve(tmp_path / "out", {"gda": [1.0, 0.5]}, plane=True, changes={"gda": {"iterations": 1}})
    for file in folder.rglob("*.json"):
        content = {key: value for key, value in json.loads(file.read_text()).items() if key != SEAL_KEY}
        file.write_text(json.dumps(content | {"format": 1}))
    (folder / "gda" / "trajectory.csv").write_text("iteration,w,delta\n0,1,2\n1,3,4\n")
    (run,) = read_solved(folder).methods
    assert run.path is not None
    assert run.path.tolist() == [[1, 2], [3, 4]]


def test_the_running_average_is_exact_for_full_records_and_for_lines() -> None:
    values = np.array([9.0, 4.0, 1.0, 7.0])
    every = Curve(np.arange(4.0), np.arange(4.0), values)
    np.testing.assert_allclose(every.mean[1:], [4, 5 / 2, 12 / 3])
    k = np.array([0.0, 10.0, 30.0])
    line = Curve(k, k, 100 - k)
    np.testing.assert_allclose(line.mean[1:], [np.mean(100 - np.arange(1, 11)), np.mean(100 - np.arange(1, 31))])
    assert Curve(k, k, np.array([np.inf, 1.0, np.inf])).mean.tolist() == [np.inf, np.inf, np.inf]
    assert Curve(np.arange(3.0), k, np.array([np.inf, 1.0, 3.0])).mean.tolist() == [np.inf, 1, 2]


def test_written_values_are_read(tmp_path: Path) -> None:
    solved = read_solved(write_solve(tmp_path / "out", plane=True))
    assert [run.row.method for run in solved.methods] == ["ssi-hg", "eg+"]
    run = solved.methods[0]
    assert run.curve.gradients[-1] == 3 * 40
    assert run.path is not None
    assert run.path.shape == (41, 2)
    assert solved.field is not None
    assert solved.field.solution == (0, 0)
