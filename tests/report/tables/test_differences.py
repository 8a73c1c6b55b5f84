"""Differences between entries, against SciPy's own test and by hand."""

from pathlib import Path

import pytest
from scipy import stats

from sihg.report.read.runs import group_trials, read_runs
from sihg.report.tables.table import Table
from sihg.report.tables.training_tables import MAX_ALL_PAIRS, difference_table, entry_table
from tests.report.folders import attack_row, write_evaluation, write_run


def found(folder: Path) -> Table:
    return difference_table(*entry_table(group_trials(read_runs([folder]))))


def write(folder: Path, accuracies: dict[str, list[float]]) -> None:
    for method, values in accuracies.items():
        for seed, value in enumerate(values):
            run = write_run(folder / f"{method}-s{seed}", method=method, seed=seed)
            write_evaluation(run, attacks=[attack_row("pgd-20", value, 9)])


def test_the_later_entry_minus_the_earlier(tmp_path: Path) -> None:
    two = {"free": [0.25, 0.5], "natural": [0.0, 0.0, 0.0]}  # no interval without three trials that differ
    write(tmp_path, {"dat": [0.25, 0.5, 0.375], "msi-hg": [0.5, 1.0, 0.75], "pgd": [0.5], **two})
    made = found(tmp_path)
    (row,) = made.rows
    assert row[:4] == ["msi-hg", "dat", "pgd-20", 0.375]
    theirs = stats.ttest_ind([0.5, 1.0, 0.75], [0.25, 0.5, 0.375], equal_var=False).confidence_interval(0.95)
    assert row[4:] == pytest.approx([theirs.low, theirs.high])


def test_entries_of_another_ball_are_not_compared(tmp_path: Path) -> None:
    for i, eps in enumerate((0.25, 0.1)):
        for seed in range(3):
            write_evaluation(write_run(tmp_path / f"m{i}-s{seed}", eps=eps, seed=seed), eps=eps)
    assert len(group_trials(read_runs([tmp_path]))) == 2
    assert found(tmp_path).rows == []


def test_many_entries_are_compared_only_with_the_first(tmp_path: Path) -> None:
    single = {"a": [0.5]}  # not the first of those that have deviations
    write(tmp_path, single | {f"m{i}": [0.1 * i, 0.1 * i + 0.05, 0.1 * i] for i in range(MAX_ALL_PAIRS + 1)})
    assert [row[:2] for row in found(tmp_path).rows] == [[f"m{i}", "m0"] for i in range(1, MAX_ALL_PAIRS + 1)]


def test_the_row_over_all_attacks_is_not_compared(tmp_path: Path) -> None:
    for method, value in {"dat": 0.25, "pgd": 0.5}.items():
        for seed in range(3):
            run = write_run(tmp_path / f"{method}-s{seed}", method=method, seed=seed)
            write_evaluation(run, attacks=[attack_row(attack, value + 0.1 * seed) for attack in ("pgd-20", "all")])
    assert [row[2] for row in found(tmp_path).rows] == ["pgd-20"]
