"""`sihg evaluate` as people use it."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from sihg.cli.main import main
from sihg.robust import data
from sihg.robust.ball import Ball
from sihg.robust.evaluate import evaluate
from sihg.robust.records import Z95, wilson
from sihg.robust.weights import load

TINY = ("--epochs", "1", "--samples", "200", "--validation", "20", "--steps", "2", "--width", "1/4")


def run(*words: object) -> int:
    return main([str(word) for word in words])


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    assert run("train", "--out", out, *TINY) == 0
    return out


def test_a_run_by_hand(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("evaluate", done, "--json", "--attacks", "natural,pgd-3") == 0
    captured = capsys.readouterr()
    record = json.loads(captured.out)
    samples = data.load("digits")[1]
    natural, pgd = evaluate(load(done), samples, ["natural", "pgd-3"], Ball(0.25))
    assert [row["accuracy"] for row in record["attacks"]] == [natural.accuracy, pgd.accuracy]
    assert (record["rule"], record["samples"], record["eps"]) == ("any iterate", 397, 0.25)
    path = Path(captured.err.partition("record: ")[2].strip())
    assert path == done / "evaluation" / "last_test_natural+pgd-3.json"
    kept = json.loads(path.read_text())
    assert kept["attacks"] == record["attacks"]
    assert kept["environment"]["torch"] == torch.__version__
    with np.load(path.with_suffix(".npz")) as file:
        assert file["attack"].tolist() == ["natural", "pgd-3"]
        assert file["broken"].sum(1).tolist() == [row["broken"] for row in record["attacks"]]
        assert file["label"].tolist() == samples.y.tolist()


def test_options_change_the_question_and_the_name(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--attacks", "pgd-3", "--samples", "50", "--split", "train", "--eps", "8/255", "--bounds", "none")
    assert run("evaluate", done, *words, "--checkpoint", "best", "--last-iterate", "--seed", "2") == 0
    captured = capsys.readouterr()
    assert "linf eps 0.0313725 = 8/255, no bounds; broken: last iterate" in captured.out
    assert "best_train_pgd-3_n50_seed2_eps-8-255_bounds-none_last-iterate.json" in captured.err
    assert run("evaluate", max(done.glob("checkpoints/last-*")), "--samples", "30", "--attacks", "natural") == 0
    assert "last-00000004 on digits (test)" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_a_file(suffix: str, done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, state = tmp_path / f"w{suffix}", load(done).state_dict()
    if suffix == ".pt":
        torch.save({"state_dict": state}, path)
    else:
        save_file(state, path)
    words = ("--model", "small-cnn", "--width", "1/4", "--data", "digits", "--eps", "1/4")
    assert run("evaluate", path, *words, "--attacks", "pgd-3", "--json") == 0
    from_file = json.loads(capsys.readouterr().out)
    assert run("evaluate", done, "--attacks", "pgd-3", "--json") == 0
    assert from_file["attacks"][0]["broken"] == json.loads(capsys.readouterr().out)["attacks"][0]["broken"]
    assert list(tmp_path.iterdir()) == [path]  # no record without a run


def test_mistakes(done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "big.npz", x=np.zeros((20, 1, 12, 12), np.float32), y=np.arange(20) % 10)
    for name in ("cut.safetensors", "cut.pt"):
        (tmp_path / name).write_bytes(b"not weights")
    torch.save({"a": 1}, tmp_path / "other.pth")
    (tmp_path / "x.txt").write_text("x")
    model = ("--model", "small-cnn", "--data", "digits", "--eps", "0.1")
    save_file(load(done).state_dict(), tmp_path / "quarter.safetensors")
    for words, message in (
        ((tmp_path / "none",), "does not exist"),
        ((tmp_path,), "is not a run folder"),
        ((tmp_path / "x.txt",), "neither a run folder nor one of"),
        ((tmp_path / "cut.pt",), "add --model, --data, --eps"),
        ((tmp_path / "cut.pt", *model), "cannot be read as weights"),
        ((tmp_path / "cut.safetensors", *model), "cannot be read as weights"),
        ((tmp_path / "other.pth", *model), "not a state dict of tensors"),
        ((tmp_path / "quarter.safetensors", *model), "do not fit this"),
        ((tmp_path / "cut.pt", *model, "--checkpoint", "best"), "is for runs"),
        ((done, "--data", f"npz:{tmp_path / 'big.npz'}"), "trained on samples of shape (1, 8, 8)"),
        ((done, "--attacks", "apgd"), "unknown attack 'apgd'"),
        ((done, "--attacks", ","), "--attacks names none"),
        ((done, "--split", "all"), "unknown split 'all'"),
        ((done, "--checkpoint", "first"), "unknown checkpoint 'first'"),
        ((done, "--samples", "398"), "cannot take 398 of the 397 test samples"),
        ((done, "--samples", "0"), "cannot take 0 of"),
        ((done, "--eps", "8"), "more than the whole range"),
        ((done, "--eps", "much"), "eps must be a number"),
    ):
        assert run("evaluate", *words) == 2, words
        err = capsys.readouterr().err
        assert message in err, words
        assert len(err.splitlines()) == 1


def test_a_pickle_runs_no_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "evil.pt").write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "owned").encode() + b"'\ntR.")
    assert run("evaluate", tmp_path / "evil.pt", "--model", "small-cnn", "--data", "digits", "--eps", "0.1") == 2
    assert "cannot be read as weights" in capsys.readouterr().err
    assert not (tmp_path / "owned").exists()


def test_damage_is_named(done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(done, copy)
    newest = max(copy.glob("checkpoints/last-*"))
    (newest / "weights.safetensors").write_bytes(b"")
    assert run("evaluate", copy, "--attacks", "natural", "--samples", "20") == 0
    assert f"warning: skipped damaged checkpoint {newest.name}" in capsys.readouterr().err


@pytest.mark.parametrize(("hits", "n"), [(0, 10), (5, 10), (397, 397), (9000, 10000)])
def test_wilson_solves_its_equation(hits: int, n: int) -> None:
    for p in wilson(hits, n):  # |share - p| = z sqrt(p (1 - p) / n)
        assert math.isclose(abs(hits / n - p), Z95 * math.sqrt(p * (1 - p) / n), rel_tol=1e-7, abs_tol=1e-9)
