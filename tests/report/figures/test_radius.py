"""The figure of accuracy against the radius."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from sihg.report.figures.radius import draw, radius_curves

EPS = [0.0, 0.1, 0.2]


def record(*attacks: str, **changes: Any) -> dict[str, Any]:
    curves = [
        {"attack": name, "accuracy": [0.9, 0.5, 0.1], "low": [0.8, 0.4, 0.05], "high": [0.95, 0.6, 0.2]}
        for name in attacks
    ]
    return {"norm": "linf", "eps": EPS, "data": "digits", "split": "test", "samples": 397, "curves": curves, **changes}


def entries(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_each_attack_has_its_line_and_its_interval() -> None:
    figure = radius_curves(record("pgd-20", "square"))
    axes: Any = figure.axes[0]
    assert [list(line.get_ydata()) for line in axes.lines] == [[0.9, 0.5, 0.1]] * 2
    assert [list(line.get_xdata()) for line in axes.lines] == [EPS] * 2
    assert entries(figure) == ["pgd-20", "square"]
    band = axes.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (0.05, 0.95)
    assert axes.get_xlabel() == "radius of the attack, L∞"
    assert radius_curves(record("pgd-20", norm="l2")).axes[0].get_xlabel() == "radius of the attack, L2"


def test_many_attacks_look_different() -> None:
    names = [f"pgd-{steps}" for steps in range(1, 14)]
    figure = radius_curves(record(*names))
    assert entries(figure) == names
    lines = figure.axes[0].lines
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == len(names)


def test_points_at_the_edge_are_whole() -> None:
    axes = radius_curves(record("pgd-20")).axes[0]
    assert not axes.lines[0].get_clip_on()
    assert axes.get_ylim()[0] == 0


@pytest.mark.parametrize("name", ["npz:a_$x_{$.npz", "_hidden", "<script>"])
def test_odd_names_are_drawn_as_they_are(name: str, tmp_path: Path) -> None:
    files = draw(record(name, data=name), tmp_path, "figure")
    assert [path.name for path in files] == ["figure.svg", "figure.png"]
    figure = radius_curves(record(name, data=name))
    assert entries(figure) == [name]
    assert figure.axes[0].get_title(loc="left") + figure.axes[0].get_title() == f"{name} (test), 397 samples"


def test_the_same_record_gives_the_same_bytes(tmp_path: Path) -> None:
    once, again = (draw(record("pgd-20"), tmp_path / name, "figure") for name in ("once", "again"))
    assert [path.read_bytes() for path in once] == [path.read_bytes() for path in again]
