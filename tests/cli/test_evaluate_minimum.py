"""`sihg evaluate --minimum`: the smallest eps of each sample, as table, record, figure and page."""

import json
from pathlib import Path

import numpy as np
import pytest

import sihg
from sihg.cli.main import main
from sihg.robust import data
from sihg.robust.attacks.search import Search
from sihg.robust.training.weights import load

NAME = "last_test_deepfool-5+pgd-3_n80_minimum-0.6"
WORDS = ("--minimum", "0.6", "--attacks", "deepfool-5,pgd-3", "--samples", "80")


def run(*words: object) -> int:
    return main([str(word) for word in words])


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures of few pixels, which are drawn faster."""
    monkeypatch.setattr("sihg.report.figures.style.DOTS_PER_INCH", 40)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    words = ("--method", "pgd", "--steps", "1", "--eps", "0.2", "--epochs", "4", "--samples", "400")
    assert run("train", "--out", out, *words, "--batch-size", "32", "--validation", "20", "--width", "1/4") == 0
    return out


def test_smallest_distances_are_table_record_figure_and_page(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run("evaluate", done, *WORDS, "--points") == 0
    captured, home = capsys.readouterr(), done / "evaluation"
    kept = json.loads((home / f"{NAME}.json").read_text())
    rows = [line.replace("│", " ").split() for line in captured.out.splitlines() if line.startswith("│")]
    assert [row[0] for row in rows] == ["deepfool-5", "pgd-3", "all"]
    for row, minimum, curve in zip(rows, kept["minimum"], kept["curves"], strict=True):
        assert row[1] == str(minimum["found"])
        assert row[-5:] == [f"{100 * curve['accuracy'][i]:.2f}" for i in (0, 15, 30, 45, 60)]
    assert f"{kept['minimum'][-1]['median']:.4g}" in captured.out
    for kind in ("json", "svg", "png", "points.npy"):
        assert f"record: {home / NAME}.{kind}" in captured.err
    with np.load(home / f"{NAME}.npz") as arrays:
        distances = arrays["distance"].min(0)
    found = sihg.minimum_eps(load(done), data.load("digits")[1], max_eps=0.6, attacks="deepfool-5,pgd-3", samples=80)
    np.testing.assert_array_equal(distances, found.distances.numpy())
    assert run("evaluate", done, *WORDS, "--json", "--out", done / "other") == 0
    again = json.loads(capsys.readouterr().out)
    assert [row["median"] for row in again["minimum"]] == [row["median"] for row in kept["minimum"]]
    assert run("report", done) == 0
    page = (done / "index.html").read_text(encoding="utf-8")
    assert "smallest eps" in page
    assert (done / "report" / "radius-1.svg").exists()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--minimum", "0.6", "--eps", "0.1"), "minimum-settings"),
        (("--minimum", "0.6", "--curve", "0:0.5:3"), "minimum-and-curve"),
        (("--minimum", "0.6", "--last-iterate"), "minimum-settings"),
        (("--minimum", "0.6", "--precision", "bfloat16"), "minimum-settings"),
        (("--minimum", "many"), "not-a-number"),
        (("--minimum", "0.6", "--attacks", "natural"), "minimum-attack"),
        (("--minimum", "2"), "eps-scale"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], code: str, done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("evaluate", done, *words) == 2
    assert f"[{code}]" in capsys.readouterr().err


@pytest.mark.parametrize("search", [("--minimum", "0.6", "--attacks", "deepfool-5"), ("--attacks", "pgd-3")])
def test_ctrl_c_in_the_first_part_says_that_nothing_is_kept(
    search: tuple[str, ...], done: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def press(*_: object, **_named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Search, "compute_gradient", press)
    capsys.readouterr()
    assert run("evaluate", done, *search, "--samples", "60") == 130
    said = capsys.readouterr().err.splitlines()
    assert said[-2:] == ["no verdict is kept: the same command starts over", "sihg: interrupted"]
