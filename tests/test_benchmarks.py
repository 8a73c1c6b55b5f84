"""Benchmarks that take hours can be run in parts."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.timing import WHOLE, Part, Timings


@pytest.fixture(name="speed", scope="module")
def speed_() -> Any:
    """The benchmark, which imports the peers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the peers
        return pytest.importorskip("benchmarks.evaluation_speed", reason="needs `make peers`")


@pytest.mark.peer
def test_rows_are_chosen_by_model_and_attack(speed: Any) -> None:
    def rows(*only: str) -> list[str]:
        return [f"{recipe.name}: {attack}" for recipe, attack in speed.choose_rows(Part(only))]

    assert len(rows()) == 7
    assert rows("preact", "PGD-20") == ["preact-resnet8, SVHN: PGD-20"]
    assert rows("standard") == [f"{recipe.name}: standard" for recipe in speed.RECIPES]
    with pytest.raises(SystemExit, match="small-cnn, digits: standard"):
        rows("nothing")
    with pytest.raises(SystemExit, match="unknown peer 'other'"):
        speed.choose_rows(Part(peers=("other",)))


@pytest.mark.peer
def test_only_the_rows_asked_for_are_timed(speed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training, peers and clocks are replaced: what is timed, with what, and what the report says."""
    asked: list[tuple[Any, ...]] = []

    def prepare(recipe: Any, _out: Path, count: int | None) -> Any:
        asked.append((recipe.name, count))
        one: Any = [0] * (count or 1)
        return speed.Case(recipe, one, one, one, 0.1, "float32")

    def time_pgd(_case: Any, steps: int, restarts: int, repetitions: int, part: Part) -> dict[str, Timings]:
        asked.append((steps, restarts, repetitions, part.batch_size, part.peers))
        return {name: Timings([1.0], [seconds], [0.5]) for name, seconds in (("ours, auto", 1), ("torchattacks", 2))}

    monkeypatch.setattr(speed, "prepare", prepare)
    monkeypatch.setattr(speed, "time_pgd", time_pgd)
    monkeypatch.setattr(speed, "time_standard", None)  # is not called
    part = Part(("preact", "PGD-20"), 30, 64, ("torchattacks",))
    report = speed.run(3, tmp_path, part)
    assert asked == [("preact-resnet8, SVHN", 30), (20, 1, 3, 64, ("torchattacks",))]
    assert list(report.tables) == ["preact-resnet8, SVHN: PGD-20"]
    assert report.about["part"] == part.describe()
    assert part.describe() == "--only preact --only PGD-20 --samples 30 --batch-size 64 --peer torchattacks"


def test_parts_are_for_benchmarks_that_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert WHOLE.describe() == ""
    monkeypatch.setattr("sys.argv", ["benchmarks", "lanes", "--samples", "5"])
    with pytest.raises(SystemExit):
        main()
