"""The short form of `python -m benchmarks solve_bit_flips`: `sihg check` names every file with a flipped bit."""

import random
from pathlib import Path

import pytest

from benchmarks.solve_bit_flips import COMMANDS, flip_bits, make_folder


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flip_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sihg.report.figures.style.DOTS_PER_INCH", 20)  # drawn faster
    folder = make_folder(tmp_path / "run", COMMANDS[name])
    counts, missed = flip_bits(folder, 45, random.Random(1))
    assert missed == []
    kinds = {Path(file).suffix for file in counts}
    assert {".json", ".csv", ".md", ".html", ".svg", ".png"} <= kinds
    if name == "solve":
        assert {"history.csv", "state.safetensors", "trajectory.csv", "config.json", ".owner", "sums.json"} <= set(
            counts
        )


def test_a_flip_that_is_not_noticed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sihg.report.figures.style.DOTS_PER_INCH", 20)
    folder = make_folder(tmp_path / "run", COMMANDS["profile"])
    (folder / "notes.txt").write_text("no sum")
    _, missed = flip_bits(folder, 30, random.Random(1))
    assert missed
    assert all(line.startswith("notes.txt, byte ") for line in missed)
