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
from tests.refused import refused
from tests.report.solve_folders import columns, entry, put, write_solve


def test_errors_name_the_file_and_the_remedy(tmp_path: Path) -> None:
    folder = write_solve(tmp_path / "out", plane=True)

    def complaint(change: Callable[[], object], path: Path) -> str:
        before = path.read_bytes()
        change()
        with pytest.raises(InputError) as caught:
            report_solve(folder)
        path.write_bytes(before)
        text = str(caught.value)
        assert str(path) in text
        assert "sihg solve" in text
        return text

    summary, history = folder / "summary.json", folder / "ssi-hg" / "history.json"
    path, field = folder / "ssi-hg" / "trajectory.csv", folder / "field.json"
    for file in (summary, history, path):
        complaint(file.unlink, file)
    for file in (summary, history, field):
        for damage in (b"{", b"[]", b"\xff\xfe"):
            complaint(partial(file.write_bytes, damage), file)
    complaint(lambda: path.write_text("iteration,w\n0,1\n"), path)
    complaint(lambda: path.write_text("iteration,w,delta\n0,1,x\n"), path)

    content = json.loads(summary.read_text())
    assert "`seed`" in complaint(lambda: put(summary, content, "seed"), summary)
    assert "`$.n`" in complaint(lambda: put(summary, content, "n", "four"), summary)
    assert "no methods" in complaint(lambda: put(summary, content, "methods", []), summary)
    complaint(lambda: put(summary, content, "methods", [3]), summary)
    complaint(lambda: put(summary, content, "methods", [entry("../ssi-hg")]), summary)
    complaint(lambda: put(summary, content, "methods", [entry("ssi-hg", distance="far")]), summary)

    rows = columns([1.0, 0.5])
    wrong: list[tuple[str, Any]] = [("iteration", [0, 0]), ("w_gradients", [0]), ("saddle_norm_squared", ["x", "y"])]
    for name, value in wrong:
        complaint(partial(put, history, {}, "columns", rows | {name: value}), history)

    grid = json.loads(field.read_text())
    wrong = [("w", [0, 1]), ("w", [0] * 11), ("solution", [1]), ("box", [0, 1, None, 1])]
    for name, value in wrong:
        complaint(partial(put, field, grid, name, value), field)
    report_solve(folder)

    with refused("record-unreadable", path=tmp_path / "nowhere" / "summary.json"):
        report_solve(tmp_path / "nowhere")


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
