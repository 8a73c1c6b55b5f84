"""Runs as trials of entries, and the numbers over them."""

from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest

from sihg.report.figures.learning_curves import best_so_far, tracks
from sihg.report.read.runs import Entry, group_trials, read_run
from sihg.report.tables.table import Column, Table, for_reading
from sihg.report.tables.training_tables import entry_table
from sihg.store.statistics import Spread
from tests.report.folders import attack_row, rows, write_evaluation, write_run


def made(folder: Path, runs: dict[str, dict[str, Any]]) -> list[Entry]:
    return group_trials([read_run(write_run(folder / name, **settings)) for name, settings in runs.items()])


def cells(of: list[Entry]) -> list[dict[str, Any]]:
    table, _ = entry_table(of)
    return [dict(zip((column.key for column in table.columns), row, strict=True)) for row in table.rows]


def test_runs_that_differ_in_their_seed_alone_are_trials(tmp_path: Path) -> None:
    runs: dict[str, dict[str, Any]] = {f"a-s{seed}": {"seed": seed} for seed in range(2)}
    found = made(tmp_path, {**runs, "b-s0": {"seed": 0, "eps": 0.1}, "a-s2": {"seed": 2}})
    assert [(one.name, [run.name for run in one.trials]) for one in found] == [
        ("a", ["a-s0", "a-s1", "a-s2"]),
        ("b", ["b-s0"]),
    ]


def test_a_repeated_seed_starts_a_new_entry(tmp_path: Path) -> None:
    runs = {"first-s1": {"seed": 1}, "first-s2": {"seed": 2}, "again-s1": {"seed": 1}}
    assert [len(one.trials) for one in made(tmp_path, runs)] == [2, 1]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("m-s0", "m-s1"), "m"),
        (("m_seed0", "m_seed1"), "m"),
        (("m-0", "m-1"), "m"),
        (("run10", "run11"), "run10 and 1 more"),
        (("alpha", "beta"), "alpha and 1 more"),
        (("seed0", "seed1"), "seed0 and 1 more"),
    ],
)
def test_an_entry_has_the_name_of_its_runs(tmp_path: Path, names: tuple[str, str], expected: str) -> None:
    (found,) = made(tmp_path, {name: {"seed": seed} for seed, name in enumerate(names)})
    assert found.name == expected


def test_two_entries_never_share_a_name(tmp_path: Path) -> None:
    found = made(tmp_path, {"m-s0": {"seed": 0}, "m-s1": {"seed": 1, "eps": 0.5}})
    assert [one.name for one in found] == ["m-s0", "m-s1"]


def test_the_headline_is_over_the_trials(tmp_path: Path) -> None:
    values = [0.25, 0.5, 0.375]
    for seed, value in enumerate(values):
        run = write_run(tmp_path / f"m-s{seed}", rows([0.9, 0.8], [value, value / 2]), seed=seed)
        write_evaluation(run, attacks=[attack_row("pgd-20", value, 397)])
    (row,) = cells(group_trials([read_run(tmp_path / f"m-s{seed}") for seed in range(3)]))
    assert row["test pgd-20"] == Spread(fmean(values), stdev(values), 3, None, 0.25, 0.5)
    assert row["best_robust"] == Spread(fmean(values), stdev(values), 3, None, 0.25, 0.5)
    assert row["held_out_robust"] == Spread(fmean(values) / 2, stdev(values) / 2, 3, None, 0.125, 0.25)
    assert row["passes"] == Spread(12, None, 3, None, 12, 12)  # equal: no deviation
    assert (row["entry"], row["trials"], row["epochs"], row["samples"]) == ("m", 3, 2, 397)
    table, _ = entry_table(group_trials([read_run(tmp_path / f"m-s{seed}") for seed in range(3)]))
    shown = for_reading(table.part("test pgd-20", "passes")).rows
    assert shown == [["37.50\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}12.50", "12"]]


@pytest.mark.parametrize(
    ("mean", "deviation", "shown"),
    [(11.37, 0.954, "11.4 ± 1.0"), (2.84, 0.03, "2.84 ± 0.03"), (1234.4, 9.6, "1,234 ± 10")],
)
def test_a_mean_and_its_deviation_have_the_same_places(mean: float, deviation: float, shown: str) -> None:
    cell = Spread(mean, deviation, 3)
    table = for_reading(Table([Column("seconds", "training seconds")], [[cell]]))
    assert str(table.rows[0][0]).replace("\N{NO-BREAK SPACE}", " ") == shown


def test_unfinished_trials_do_not_count_while_others_are_finished(tmp_path: Path) -> None:
    half = {"done": rows([0.5], [0.1]), "epochs": 3, "seed": 1}
    (found,) = made(tmp_path, {"m-s0": {"seed": 0}, "m-s1": half})
    assert [run.name for run in found.counted] == ["m-s0"]
    assert cells([found])[0]["trials"] == 1
    (found,) = made(tmp_path / "both", {"m-s0": {**half, "seed": 0}, "m-s1": half})
    assert len(found.counted) == 2


def test_missing_values_of_trials_are_counted(tmp_path: Path) -> None:
    (found,) = made(tmp_path, {"m-s0": {"seed": 0}, "m-s1": {"seed": 1}})
    write_evaluation(tmp_path / "m-s1")
    found = group_trials([read_run(tmp_path / f"m-s{seed}") for seed in range(2)])[0]
    assert cells([found])[0]["test pgd-20"] == Spread(0.4375, None, 1, 2)


@pytest.mark.parametrize("shares", [(0.1, 0.3), (0.1, 0.3, 0.2)])
def test_curves_have_the_mean_and_a_band(tmp_path: Path, shares: tuple[float, ...]) -> None:
    runs = {f"m-s{seed}": {"seed": seed, "done": rows([0.5, 0.9], [y, 0.4])} for seed, y in enumerate(shares)}
    natural, robust = tracks(made(tmp_path, runs)[0], "step")
    assert natural.y.tolist() == [0.5, 0.9]
    assert robust.x.tolist() == [26, 52]
    np.testing.assert_allclose(robust.y, [0.2, 0.4])
    low, high = (0.1, 0.3) if len(shares) == 2 else (0.2 - stdev(shares), 0.2 + stdev(shares))
    np.testing.assert_allclose(robust.low, [low, 0.4])
    np.testing.assert_allclose(robust.high, [high, 0.4])
    alone = tracks(made(tmp_path / "alone", {"m": {}})[0], "seconds")[1]
    assert np.isnan(alone.low).all()
    assert np.isnan(alone.high).all()
    assert alone.x.tolist() == [1.25, 2.5, 3.75]


def test_the_processed_curve_is_the_best_so_far(tmp_path: Path) -> None:
    done = rows([0.5, None, 0.6, 0.7, 0.8], [0.2, None, 0.1, 0.4, 0.4])
    run = read_run(write_run(tmp_path / "m", done))
    assert [(row.epoch, row.natural, row.robust) for row in best_so_far(run)] == [
        (1, 0.5, 0.2),
        (3, 0.5, 0.2),
        (4, 0.7, 0.4),
        (5, 0.8, 0.4),
    ]
