"""`sihg evaluate` as people use it."""

import errno
import json
import math
import os
import shutil
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from sihg.cli.main import main
from sihg.robust import data
from sihg.robust.attacks import FGSM
from sihg.robust.data import stratified_split
from sihg.robust.evaluation.evaluate import evaluate
from sihg.robust.evaluation.evaluate_run import EvaluationRequest, find_targets, prepare
from sihg.robust.gradients import device_of
from sihg.robust.training.weights import load
from sihg.store.statistics import Z95, wilson
from tests.store.edits import edit_config

TINY = ("--epochs", "1", "--samples", "200", "--validation", "20", "--steps", "2", "--width", "1/4")


def run(*words: object) -> int:
    return main([str(word) for word in words])


def contiguous(model: nn.Module) -> dict[str, Tensor]:
    """Its weights as safetensors takes them."""
    return {name: value.contiguous() for name, value in model.state_dict().items()}


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
    found = evaluate(load(done), samples, attacks=["natural", "pgd-3"], eps=0.25)
    assert [row["accuracy"] for row in record["attacks"]] == [*(one.accuracy for one in found.outcomes), found.accuracy]
    assert (record["rule"], record["samples"], record["eps"]) == ("any iterate", 397, 0.25)
    path = Path(captured.err.partition("record: ")[2].strip())
    assert path == done / "evaluation" / "last_test_natural+pgd-3.json"
    kept = json.loads(path.read_text())
    assert kept["attacks"] == record["attacks"]
    assert kept["environment"]["torch"] == version("torch")
    with np.load(path.with_suffix(".npz")) as file:
        assert file["attack"].tolist() == ["natural", "pgd-3"]
        assert file["broken"].sum(1).tolist() == [row["broken"] for row in record["attacks"][:-1]]
        assert file["label"].tolist() == samples.y.tolist()
        assert file["index"].tolist() == list(range(397))


def test_a_search_in_bfloat16_is_named(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("evaluate", done, "--attacks", "pgd-3", "--samples", "40", "--precision")
    assert run(*words, "bfloat16") == 0
    assert "searched in bfloat16, judged in float32" in capsys.readouterr().out.replace("\n", " ")
    record = json.loads((done / "evaluation" / "last_test_pgd-3_n40_bfloat16.json").read_text())
    assert record["precision"] == "bfloat16"
    assert run(*words, "auto", "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["precision"] in ("float32", "bfloat16")
    assert "times as fast" in captured.err


def test_a_subset_tells_which_samples_it_is_of(done: Path) -> None:
    assert run("evaluate", done, "--attacks", "natural", "--samples", "40", "--seed", "3") == 0
    samples = data.load("digits")[1]
    with np.load(done / "evaluation" / "last_test_natural_n40_seed3.npz") as file:
        index, label = torch.from_numpy(file["index"]), file["label"]
    assert samples.y[index].tolist() == label.tolist()
    assert torch.equal(samples.x[index], stratified_split(samples, 40, seed=3)[1].x)


def test_damage_of_what_an_evaluation_does_not_need_is_none(done: Path, tmp_path: Path) -> None:
    run_folder = tmp_path / "run"
    shutil.copytree(done, run_folder)
    memory = max(run_folder.glob("checkpoints/last-*")) / "memory.safetensors"
    memory.write_bytes(memory.read_bytes()[:20])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours, theirs = load(run_folder).state_dict(), load(done).state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_options_change_the_question_and_the_name(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--attacks", "pgd-3", "--samples", "50", "--split", "train", "--eps", "8/255", "--bounds", "none")
    assert run("evaluate", done, *words, "--checkpoint", "best", "--last-iterate", "--seed", "2") == 0
    captured = capsys.readouterr()
    assert "linf eps 0.0313725 = 8/255, no bounds; broken: last iterate" in captured.out
    assert "best_train_pgd-3_n50_seed2_eps-8-255_bounds-none_last-iterate.json" in captured.err
    assert run("evaluate", max(done.glob("checkpoints/last-*")), "--samples", "30", "--attacks", "natural") == 0
    assert "last-00000004 on 30 samples of digits (test)" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_a_file(suffix: str, done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, state = tmp_path / f"w{suffix}", contiguous(load(done))
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


def test_checkpoints_of_one_run_have_a_row_each(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    best = max(done.glob("checkpoints/best-*"))
    words = ("evaluate", done, best, "--attacks", "natural", "--samples", "30")
    assert run(*words) == 0
    captured = capsys.readouterr()
    rows = [line for line in captured.out.splitlines() if str(done) in line]
    assert [f"({best.name})" in row for row in rows] == [False, True]
    assert captured.err.count("record: ") == 2
    assert run(*words, "--json") == 0
    assert [one["checkpoint"] for one in json.loads(capsys.readouterr().out)] == ["last", best.name]


def test_a_result_is_shown_when_its_record_cannot_be_kept(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    full, other, original = tmp_path / "full", tmp_path / "other", os.replace
    for copy in (full, other):
        shutil.copytree(done, copy, ignore=shutil.ignore_patterns("evaluation"))

    def replace(source: Any, target: Any) -> None:
        if full in Path(target).parents:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(source, target)

    monkeypatch.setattr(os, "replace", replace)
    words = ("--attacks", "natural", "--samples", "30")
    assert run("evaluate", full, *words, "--json") == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)["samples"] == 30
    assert f"sihg: error: the record of {full} is not kept: cannot write" in captured.err
    assert run("evaluate", full, other, *words) == 2
    captured = capsys.readouterr()
    assert sum(line.count(f"{tmp_path}") for line in captured.out.splitlines()) == 2
    assert [path.name for path in sorted((other / "evaluation").iterdir())] == [
        "last_test_natural_n30.json",
        "last_test_natural_n30.npz",
    ]
    assert captured.err.index("record: ") < captured.err.index("sihg: error: ")


def test_what_was_evaluated_is_shown_when_the_next_one_fails(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    shutil.copytree(done, other)
    edit_config(other, {"data": "npz:nowhere.npz"})
    assert run("evaluate", done, other, "--attacks", "natural", "--samples", "30") == 2
    captured = capsys.readouterr()
    assert "30 samples of digits" in captured.out
    assert captured.err.splitlines()[-2].startswith("record: ")
    assert captured.err.splitlines()[-1].startswith("sihg: error: no file nowhere.npz")


@pytest.mark.parametrize("what", ["a file", "a link"])
def test_a_folder_of_records_that_is_elsewhere_is_refused_at_once(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(done, copy, ignore=shutil.ignore_patterns("evaluation"))
    if what == "a file":
        (copy / "evaluation").write_text("in the way")
    else:
        (tmp_path / "elsewhere").mkdir()
        (copy / "evaluation").symlink_to(tmp_path / "elsewhere")
    assert run("evaluate", copy, "--attacks", "natural", "--samples", "30") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"{copy / 'evaluation'} is a link or a file" in captured.err
    assert not list(tmp_path.glob("elsewhere/*"))


def test_other_settings_than_the_checkpoints_are_refused(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(done, copy)
    words = ("evaluate", copy, "--attacks", "natural", "--samples", "30")
    config = (copy / "config.toml").read_bytes()
    (copy / "config.toml").write_bytes(config.replace(b"eps = 0.25", b"eps = 0.01"))
    assert run(*words) == 2
    assert "config.toml was changed after sihg wrote it" in capsys.readouterr().err
    for checkpoint in ("last", "best"):
        edit_config(copy, {"eps": 0.01})
        assert run(*words, "--checkpoint", checkpoint) == 2
        assert "was made with, which has eps = 0.25 (here 0.01)" in capsys.readouterr().err
    (copy / "config.toml").write_bytes(config)
    assert run(*words) == 0


def test_the_device_may_be_another(done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(done, copy, ignore=shutil.ignore_patterns("evaluation"))
    edit_config(copy, {"device": "nowhere"})
    words = ("evaluate", copy, "--attacks", "natural", "--samples", "30")
    assert run(*words) == 2
    assert "device 'nowhere' cannot be used here" in capsys.readouterr().err
    assert run(*words, "--device", "cpu", "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["device"] == "cpu"
    assert "last_test_natural_n30.json" in captured.err


def test_the_model_goes_to_the_device(done: Path) -> None:
    (target,) = find_targets([done], EvaluationRequest(device="meta"))
    assert device_of(prepare(target).task.model) == torch.device("meta")


def test_fgsm_has_the_rule_of_its_record(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    natural, any_iterate, last_iterate = (
        _broken(done, capsys, *words) for words in (("natural",), ("fgsm",), ("fgsm", "--last-iterate"))
    )
    assert max(natural, last_iterate) <= any_iterate
    model, samples = load(done), data.load("digits")[1]
    assert any_iterate == int(FGSM(eps=0.25).run(model, samples.floats(), samples.y).broken.sum())
    ends = FGSM(eps=0.25, last_iterate=True).run(model, samples.floats(), samples.y)
    assert last_iterate == int(ends.broken.sum())


def _broken(done: Path, capsys: pytest.CaptureFixture[str], attack: str, *words: str) -> int:
    assert run("evaluate", done, "--attacks", attack, "--json", *words) == 0
    return int(json.loads(capsys.readouterr().out)["attacks"][0]["broken"])


def test_a_float64_file_can_be_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).random((60, 1, 8, 8))
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(60) % 3)
    words = ("--data", f"npz:{tmp_path / 'a.npz'}", "--eps", "0.1", "--epochs", "1", "--steps", "1")
    assert run("train", "--out", tmp_path / "run", *words) == 0
    capsys.readouterr()
    assert run("evaluate", tmp_path / "run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 12


def test_data_that_does_not_fit_is_trained_on_and_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for size, split in ((48, "train"), (12, "test")):
        rng = np.random.default_rng(size)
        np.save(tmp_path / f"x_{split}.npy", rng.integers(0, 256, (size, 8, 8), np.uint8))
        np.save(tmp_path / f"y_{split}.npy", np.arange(size) % 3)
    words = ("--data", f"npy:{tmp_path}", "--eps", "0.1", "--epochs", "1", "--steps", "1", "--width", "1/4")
    found = []
    for name in ("small", "large"):
        assert run("train", "--out", tmp_path / name, *words, "--workers", "2") == 0
        capsys.readouterr()
        assert run("evaluate", tmp_path / name, "--attacks", "natural,pgd-3", "--json") == 0
        found.append(json.loads(capsys.readouterr().out))
        monkeypatch.setattr("sihg.robust.data.samples.max_memory", lambda: 100)
    small, large = found
    assert small["sha256"] == large["sha256"]  # of the weights
    assert large["contents"].startswith("rows:")
    assert [row["broken"] for row in small["attacks"]] == [row["broken"] for row in large["attacks"]]
    assert run("report", tmp_path / "small", tmp_path / "large") == 0
    gallery = ["clean", "adversarial"]
    here, there = (np.load(tmp_path / name / "gallery.npz") for name in ("small", "large"))
    assert all(np.array_equal(here[key], there[key]) for key in gallery)
    here.close(), there.close()


def test_mistakes(done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "big.npz", x=np.zeros((20, 1, 12, 12), np.float32), y=np.arange(20) % 10)
    for name in ("cut.safetensors", "cut.pt"):
        (tmp_path / name).write_bytes(b"not weights")
    torch.save({"a": 1}, tmp_path / "other.pth")
    (tmp_path / "x.txt").write_text("x")
    model = ("--model", "small-cnn", "--data", "digits", "--eps", "0.1")
    save_file(contiguous(load(done)), tmp_path / "quarter.safetensors")
    for words, code in (
        ((tmp_path / "none",), "no-weights"),
        ((tmp_path,), "not-a-run"),
        ((tmp_path / "x.txt",), "weights-suffix"),
        ((tmp_path / "cut.pt",), "weights-without-settings"),
        ((tmp_path / "cut.pt", *model), "weights-not-only-tensors"),
        ((tmp_path / "cut.safetensors", *model), "weights-unreadable"),
        ((tmp_path / "other.pth", *model), "weights-no-state-dict"),
        ((tmp_path / "quarter.safetensors", *model), "weights-other-shape"),
        ((tmp_path / "cut.pt", *model, "--checkpoint", "best"), "checkpoint-of-file"),
        ((tmp_path / "cut.pt", *model, "--curve", "0:0.2:3"), "curve-and-eps"),
        ((tmp_path / "cut.pt", *model[:4], "--curve", "0:0.2:3"), "weights-not-only-tensors"),  # needs no eps
        ((done, "--data", f"npz:{tmp_path / 'big.npz'}"), "weights-shape"),
        ((done, "--attacks", "apgd"), "unknown-attack"),
        ((done, "--curve", "0:0.2:3", "--eps", "0.1"), "curve-and-eps"),
        ((done, "--attacks", ","), "no-attack"),
        ((done, "--split", "all"), "unknown-split"),
        ((done, "--checkpoint", "first"), "unknown-checkpoint"),
        ((done, "--samples", "398"), "samples-range"),
        ((done, "--samples", "0"), "samples-range"),
        ((done, "--eps", "8"), "eps-scale"),
        ((done, "--eps", "8", "--bounds", "none"), "eps-scale"),
        ((done, "--eps", "9", "--norm", "l2", "--bounds", "none"), "eps-scale"),
        ((done, "--device", "nowhere"), "device-unavailable"),
        ((done, "--eps", "much"), "not-a-number"),
        ((done, "--norm", "l3"), "unknown-norm"),
        ((done, "--norm", "l2"), "norm-without-eps"),
        ((done, "--out", tmp_path / "x.txt"), "cannot-write-folder"),
    ):
        assert run("evaluate", *words) == 2, words
        (line,) = capsys.readouterr().err.splitlines()
        assert line.endswith(f" [{code}]"), line


def test_a_pickle_runs_no_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "evil.pt").write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "owned").encode() + b"'\ntR.")
    assert run("evaluate", tmp_path / "evil.pt", "--model", "small-cnn", "--data", "digits", "--eps", "0.1") == 2
    assert "[weights-not-only-tensors]" in capsys.readouterr().err
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


def test_a_model_with_batch_normalisation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--model", "preact-resnet8", "--width", "1/8", "--epochs", "1", "--samples", "40", "--validation", "0")
    assert run("train", "--out", tmp_path / "run", *words, "--steps", "1") == 0
    capsys.readouterr()
    assert run("evaluate", tmp_path / "run", "--attacks", "natural", "--samples", "20", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["sha256"]) == 64


def test_a_source_of_another_shape(done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).random((60, 1, 12, 12)), y=np.arange(60) % 10)
    words = ("--data", f"npz:{tmp_path / 'a.npz'}", "--eps", "0.1", "--epochs", "1", "--steps", "1")
    assert run("train", "--out", tmp_path / "other", *words) == 0
    capsys.readouterr()
    assert run("evaluate", done, "--attacks", f"natural,transfer:{tmp_path / 'other'}") == 2
    assert "does not take samples of shape (1, 8, 8)" in capsys.readouterr().err.splitlines()[-1]
