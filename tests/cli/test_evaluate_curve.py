"""`sihg evaluate --curve`: accuracy against the radius, as table, record and figure."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sihg.cli.main import main
from sihg.robust import data
from sihg.robust.attacks import runner as cascade
from sihg.robust.attacks.output_checks import check_points
from sihg.robust.data.samples import Samples
from sihg.robust.evaluation import partial
from sihg.robust.evaluation.evaluate import evaluate
from sihg.robust.training.weights import load
from sihg.store.statistics import wilson

RADII = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
NAME = "last_test_pgd-3+noise-2_curve-0-0.5-6"
WORDS = ("--attacks", "pgd-3,noise-2", "--curve", "0:0.5:6")


def run(*words: object) -> int:
    return main([str(word) for word in words])


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures of few pixels, which are drawn faster."""
    monkeypatch.setattr("sihg.report.figures.style.DOTS_PER_INCH", 40)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    words = ("--method", "pgd", "--steps", "1", "--eps", "0.2", "--epochs", "8", "--samples", "600")
    assert run("train", "--out", out, *words, "--batch-size", "32", "--validation", "20", "--width", "1/4") == 0
    return out


def test_a_curve_is_table_record_and_figure(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("evaluate", done, *WORDS) == 0
    captured = capsys.readouterr()
    home = done / "evaluation"
    kept = json.loads((home / f"{NAME}.json").read_text())
    files = [f"record: {home / NAME}.{kind}" for kind in ("json", "svg", "png")]
    warned = [line.rpartition("#")[2].rstrip(")") for line in captured.err.splitlines()[:4]]
    assert warned == ["weak-attacks", "few-steps", "no-black-box", "other-attacks"]
    assert captured.err.splitlines()[4:] == ["checks: 9 fine, 4 warnings, 0 errors, 0 not run", *files]
    assert (home / f"{NAME}.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (home / f"{NAME}.svg").read_bytes()
    torch.testing.assert_close(kept["eps"], RADII)
    assert [one["attack"] for one in kept["curves"]] == ["pgd-3", "noise-2"]
    rows = [line.replace("│", " ").split() for line in captured.out.splitlines() if line.startswith("│")]
    assert [row[:2] for row in rows] == [[f"{eps:.4g}", f"{255 * eps:.4g}"] for eps in RADII]
    for column, one in enumerate(kept["curves"]):
        assert [row[2 + column] for row in rows] == [f"{100 * share:.2f}" for share in one["accuracy"]]
        counts = [round(397 * share) for share in one["accuracy"]]
        assert [[low, high] for low, high in zip(one["low"], one["high"], strict=True)] == [
            list(wilson(hits, 397)) for hits in counts
        ]


def test_each_radius_is_what_plain_evaluations_leave(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sample holds at a radius if it does there and at all smaller ones; at 0, no attack is needed."""
    assert run("evaluate", done, *WORDS, "--json") == 0
    curves = {one["attack"]: one for one in json.loads(capsys.readouterr().out)["curves"]}
    model, samples = load(done), data.load("digits")[1]
    natural = evaluate(model, samples, eps=0.1, attacks="natural").accuracy
    for attack, one in curves.items():
        broken, expected = _broken(model, samples, "natural", 0.0), [natural]
        for eps in RADII[1:]:
            broken |= _broken(model, samples, attack, eps)
            expected.append(1 - float(broken.double().mean()))
        assert one["accuracy"] == pytest.approx(expected, abs=1e-12)
        assert all(large <= small for small, large in pairwise(one["accuracy"]))
        assert one["accuracy"][0] > 0.8 > 0.5 > one["accuracy"][-1]
    with np.load(done / "evaluation" / f"{NAME}.npz") as file:
        assert file["attack"].tolist()[:2] == ["pgd-3: 0 natural", "pgd-3: 0.1 pgd-3"]


def _broken(model: torch.nn.Module, samples: Samples, attack: str, eps: float) -> Tensor:
    return evaluate(model, samples, eps=eps, attacks=attack)[attack].broken


def test_only_what_holds_is_attacked_further_out(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("evaluate", done, "--attacks", "pgd-3", "--curve", "0.1:0.5:3", "--json") == 0
    (one,) = json.loads(capsys.readouterr().out)["curves"]
    first, second = (397 * share for share in one["accuracy"][:2])
    assert one["passes"] <= 3 * (397 + first + second) + 1e-6
    assert one["accuracy"][0] < 1


def test_a_curve_goes_on_where_it_was(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("evaluate", done, "--attacks", "pgd-2", "--curve", "0:0.4:3", "--json")
    assert run(*words, "--out", tmp_path / "whole") == 0
    whole = json.loads(capsys.readouterr().out)["curves"]
    monkeypatch.setattr(partial, "SECONDS_BETWEEN_WRITES", 0.0)

    def cut(key: str, *rest: Any) -> None:
        if key == "pgd-2: 0.4 pgd-2":
            raise KeyboardInterrupt
        check_points(key, *rest)

    monkeypatch.setattr(cascade, "check_points", cut)
    assert run(*words, "--out", tmp_path / "cut") == 130
    monkeypatch.setattr(cascade, "check_points", check_points)
    assert run(*words, "--out", tmp_path / "cut") == 0
    captured = capsys.readouterr()
    assert "continuing: " in captured.err
    again = json.loads(captured.out)["curves"]
    assert [again[0][key] for key in ("accuracy", "passes", "forwards")] == [
        whole[0][key] for key in ("accuracy", "passes", "forwards")
    ]
    assert sorted(path.suffix for path in (tmp_path / "cut").iterdir()) == [".json", ".npz", ".png", ".svg"]


def test_models_beside_each_other(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    best = max(done.glob("checkpoints/best-*"))
    words = ("--attacks", "noise-1", "--curve", "0:0.4:2", "--samples", "60")
    assert run("evaluate", done, best, *words, "--norm", "l2") == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("60 samples of digits (test): l2, x + delta in [0, 1]; ")
    assert "* 255" not in captured.out  # which pixels have, lengths do not
    assert captured.err.count("record: ") == 6
    assert run("evaluate", done, best, *words, "--json") == 0
    assert [len(one["curves"][0]["accuracy"]) for one in json.loads(capsys.readouterr().out)] == [2, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0:0.5", "--curve 0:0.5 is not A:B:N: give the first radius, the last and how many"),
        ("0:0.5:6:7", "--curve 0:0.5:6:7 is not A:B:N"),
        ("a:0.5:6", "--curve a:0.5:6 is not A:B:N"),
        ("0:0.5:2.5", "--curve 0:0.5:2.5 is not A:B:N"),
        ("0:1/0:3", "--curve 0:1/0:3 is not A:B:N"),
        ("0.5:0.1:3", "--curve 0.5:0.1:3 must grow from A >= 0 to B in N >= 2 radii: such as 0:8/255:9"),
        ("-0.1:0.1:3", "--curve -0.1:0.1:3 must grow from A >= 0"),
        ("0:0.1:1", "--curve 0:0.1:1 must grow"),
        ("0:nan:3", "--curve 0:nan:3 must grow"),
        ("0:inf:3", "--curve 0:inf:3 must grow"),
        ("0:8:3", "eps 8 is more than the whole range of the data, 1: give it in the data's unit"),
        ("", "--curve  is not A:B:N"),
    ],
)
def test_curves_that_are_refused(text: str, message: str, done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("evaluate", done, "--attacks", "natural", f"--curve={text}") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"sihg: error: {message}")


def test_proofs_with_attacks_in_tables_curves_and_points(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    note = "note: certified: proven by interval bounds, the robust accuracy is at least this"
    assert run("evaluate", done, "--attacks", "certified,pgd-3", "--eps", "0.01", "--points", "--json") == 0
    captured = capsys.readouterr()
    attacked, proven = json.loads(captured.out)["attacks"]
    assert note in captured.err
    assert (attacked["attack"], proven["attack"]) == ("pgd-3", "certified")
    assert proven["proof"]
    assert "proof" not in attacked
    assert 0 < proven["accuracy"] <= attacked["accuracy"]
    points = torch.from_numpy(np.load(done / "evaluation" / "last_test_certified+pgd-3_eps-0.01.points.npy"))
    _, test = data.load("digits")
    alone = evaluate(load(done), test, eps=0.01, attacks="pgd-3")["pgd-3"]
    assert int((load(done)(points).argmax(1) != test.y).sum()) == int(alone.broken.sum())
    assert run("evaluate", done, "--attacks", "certified", "--curve", "0:0.1:3") == 0
    captured = capsys.readouterr()
    assert note in captured.err
    name = "last_test_certified_curve-0-0.1-3.json"
    (curve,) = json.loads((done / "evaluation" / name).read_text())["curves"]
    assert curve["proof"]
    assert curve["accuracy"] == sorted(curve["accuracy"], reverse=True)
    assert run("report", done) == 0
    page = (done / "index.html").read_text()
    assert "proven" in page  # instead of an iterate
