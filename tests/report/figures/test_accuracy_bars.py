"""The headline: clean and robust accuracy of entries with their error bars, and robust accuracy against passes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sihg.report.figures.accuracy_bars import (
    accuracy_bars,
    has_costs,
    record_headline,
    robust_against_passes,
    training_headline,
)
from sihg.report.read.evaluations import collect_evaluations, read_all_records
from sihg.report.read.runs import Entry, group_trials, read_run, run_folders
from tests.report.folders import attack_row, rows, write_evaluation, write_run


def entries(folder: Path) -> list[Entry]:
    return group_trials([read_run(path) for path in run_folders(folder)])


def evaluated(path: Path, clean: float, weak: float, strong: float, **settings: Any) -> Path:
    run = write_run(path, rows([0.9, 0.9], [0.5, 0.5]), **settings)
    found = {"natural": clean, "pgd-20": weak, "pgd-50-10": strong}
    write_evaluation(run, attacks=[attack_row(name, value, low=value - 0.1) for name, value in found.items()])
    return run


def test_entries_are_shown_under_the_strongest_attack_that_all_have(tmp_path: Path) -> None:
    for seed, strong in enumerate((0.25, 0.5)):
        evaluated(tmp_path / f"m-s{seed}", 0.75, 0.5, strong, method="m", seed=seed)
    evaluated(tmp_path / "p", 0.875, 0.625, 0.125, method="p")
    headline = training_headline(entries(tmp_path))
    assert headline is not None
    assert headline.attack == "pgd-50-10"
    m, p = headline.groups
    assert m.robust is not None
    assert (m.robust.value, m.robust.low, m.robust.high) == (0.375, 0.25, 0.5)  # the range of two trials
    assert p.robust is not None
    assert (p.robust.value, p.robust.low, p.robust.high) == pytest.approx((0.125, 0.025, 1.0))  # the 95 % interval
    assert (m.clean and m.clean.value, p.passes) == (0.75, 12.0)
    assert has_costs(headline)
    texts = {text.get_text() for text in accuracy_bars(headline).axes[0].texts}
    assert texts == {"37.5", "75.0", "12.5", "87.5"}
    points = [line for line in robust_against_passes(headline).axes[0].lines if line.get_markersize() == 8]
    assert [np.asarray(line.get_xydata()).tolist() for line in points] == [[[12.0, 0.375]], [[12.0, 0.125]]]


def test_an_attack_that_only_one_entry_has_is_not_the_headline(tmp_path: Path) -> None:
    evaluated(tmp_path / "m", 0.75, 0.5, 0.375, method="m")
    run = write_run(tmp_path / "p", method="p")
    write_evaluation(run, attacks=[attack_row("natural", 0.9), attack_row("pgd-20", 0.5)])
    headline = training_headline(entries(tmp_path))
    assert headline is not None
    assert headline.attack == "pgd-20"


def test_names_of_attacks_are_not_formulas(tmp_path: Path) -> None:
    for name in "mp":
        run = write_run(tmp_path / name, method=name)
        write_evaluation(run, attacks=[attack_row("natural", 0.9), attack_row("$x_$.py:A", 0.5)])
    headline = training_headline(entries(tmp_path))
    assert headline is not None
    for figure in (accuracy_bars(headline), robust_against_passes(headline)):
        figure.savefig(tmp_path / "figure.svg")  # an error, if $x_$ were a formula


def test_one_entry_shows_every_attack(tmp_path: Path) -> None:
    evaluated(tmp_path / "m", 0.75, 0.5, 0.375)
    headline = training_headline(entries(tmp_path))
    assert headline is not None
    assert [group.name for group in headline.groups] == ["clean", "pgd-20", "pgd-50-10"]
    assert not has_costs(headline)
    assert len(accuracy_bars(headline).axes[0].patches) == 3


def test_without_evaluations_there_is_no_headline(tmp_path: Path) -> None:
    write_run(tmp_path / "m")
    assert training_headline(entries(tmp_path)) is None
    assert record_headline({}) is None


def test_targeted_records_have_no_bars(tmp_path: Path) -> None:
    write_evaluation(tmp_path, "towards", target="class 3")
    found = collect_evaluations(read_all_records(tmp_path), {}).attacks
    assert record_headline({"towards": found}) is None
