"""The figure of accuracy against the radius."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from sihg.report.figures.radius import record_curves, save_record_curves
from sihg.store.schema import CurveRecord, convert_record
from tests.report.folders import HEADER

EPS = [0.0, 0.1, 0.2]


def record(*attacks: str, **changes: Any) -> CurveRecord:
    row: dict[str, Any] = {"accuracy": [0.9, 0.5, 0.1], "low": [0.8, 0.4, 0.05], "high": [0.95, 0.6, 0.2]}
    row |= {"passes": 0.0, "forwards": 0.0, "seconds": 0.0}
    curves = [{"attack": attack, **row} for attack in attacks]
    return convert_record({**HEADER, "eps": EPS, "curves": curves, **changes}, CurveRecord, "a test", "repair it")


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_each_attack_has_its_line_and_its_interval() -> None:
    figure = record_curves(record("pgd-20", "square"))
    axes: Any = figure.axes[0]
    assert [list(line.get_ydata()) for line in axes.lines] == [[0.9, 0.5, 0.1]] * 2
    assert [list(line.get_xdata()) for line in axes.lines] == [EPS] * 2
    assert legend(figure) == ["pgd-20", "square"]
    band = axes.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (0.05, 0.95)
    assert axes.get_xlabel() == "radius of the attack, L∞"
    assert record_curves(record("pgd-20", norm="l2")).axes[0].get_xlabel() == "radius of the attack, L2"


def test_many_attacks_look_different() -> None:
    names = [f"pgd-{steps}" for steps in range(1, 14)]
    figure = record_curves(record(*names))
    assert legend(figure) == names
    lines = figure.axes[0].lines
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == len(names)


def test_points_at_the_edge_are_whole() -> None:
    axes = record_curves(record("pgd-20")).axes[0]
    assert not axes.lines[0].get_clip_on()
    assert axes.get_ylim()[0] == 0


@pytest.mark.parametrize("name", ["npz:a_$x_{$.npz", "_hidden", "<script>"])
def test_odd_names_are_drawn_as_they_are(name: str, tmp_path: Path) -> None:
    files = save_record_curves(record(name, data=name), tmp_path, "figure")
    assert [path.name for path in files] == ["figure.svg", "figure.png"]
    figure = record_curves(record(name, data=name))
    assert legend(figure) == [name]
    assert figure.axes[0].get_title(loc="left") + figure.axes[0].get_title() == f"{name} (test), 397 samples"


def test_the_same_record_gives_the_same_bytes(tmp_path: Path) -> None:
    once, again = (save_record_curves(record("pgd-20"), tmp_path / name, "figure") for name in ("once", "again"))
    assert [path.read_bytes() for path in once] == [path.read_bytes() for path in again]
