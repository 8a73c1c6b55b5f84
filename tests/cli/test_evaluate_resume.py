"""`sihg evaluate` cut short: the same command goes on, and tells what it would have told."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from sihg.cli.evaluation_progress import EvaluationDisplay
from sihg.cli.main import main
from sihg.robust import data
from sihg.robust.attacks import PGD, Transfer
from sihg.robust.attacks import runner as cascade
from sihg.robust.evaluation import partial
from sihg.robust.training.weights import load
from sihg.store.schema import read_json
from tests.robust.attacks.trained_models import assert_inside
from tests.robust.evaluation.heard import by_part
from tests.robust.small import without_seconds

TINY = (
    *("--method", "pgd", "--steps", "1", "--eps", "0.05", "--epochs", "6", "--samples", "600", "--batch-size", "32"),
    *("--validation", "20", "--width", "1/4"),
)
ATTACKS = "natural,square-30,apgd-ce-5"
PARTS, ROWS = 4, 128  # of an attack on 397 samples, so many at once
NAME = "last_test_natural+square-30+apgd-ce-5"
BUDGETED = ("one step", "radius", "steps", "runs")  # checks that run where there is time

Cut = Callable[[int], None]


def run(*words: object) -> int:
    return main([str(word) for word in words])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, a and b."""
    home = tmp_path_factory.mktemp("trained")
    for seed, name in enumerate("ab"):
        assert run("train", "--out", home / name, *TINY, "--seed", seed) == 0
    return home


@pytest.fixture
def a(trained: Path, tmp_path: Path) -> Path:
    """A run that has not been evaluated."""
    return Path(shutil.copytree(trained / "a", tmp_path / "a"))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_parts(monkeypatch)


def in_small_parts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cascade, "rows_per_chunk", lambda _shape: ROWS)
    patch.setattr(partial, "SECONDS_BETWEEN_WRITES", 0.0)


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Cut:
    """Press Ctrl-C after so many parts."""

    def press() -> None:
        raise KeyboardInterrupt

    return lambda parts: act_after(parts, press, monkeypatch)


def act_after(parts: int, act: Callable[[], None], patch: pytest.MonkeyPatch) -> None:
    """Act when so many parts of attacks have ended."""
    heard, last = 0, ""

    def count_parts(attack: str, _done: int, _total: int) -> None:
        nonlocal heard, last
        heard, last = heard + (attack == last), attack  # the first event only says that an attack begins
        if heard == parts and parts:
            act()

    progress = by_part(count_parts)
    patch.setattr(EvaluationDisplay, "__call__", lambda _display, event: progress(event))


def record(folder: Path, name: str = NAME) -> tuple[Any, dict[str, Any]]:
    """What is kept of an evaluation, but for the time it took."""
    kept = read_json(folder / "evaluation" / f"{name}.json", "")
    kept["checks"] = [one for one in kept["checks"] if one["name"] not in BUDGETED]
    kept["attacks"] = [without_seconds(row) for row in kept["attacks"]]
    for own in ("weights", "environment"):
        del kept[own]
    with np.load(folder / "evaluation" / f"{name}.npz") as file:
        return without_seconds(kept), {key: file[key].tobytes() for key in file.files}


@pytest.fixture(scope="module")
def whole(trained: Path) -> tuple[Any, dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        in_small_parts(patch)
        assert run("evaluate", trained / "a", "--attacks", ATTACKS) == 0
    found = record(trained / "a")
    shutil.rmtree(trained / "a" / "evaluation")
    return found


@pytest.mark.parametrize("parts", [1, PARTS + 2, 3 * PARTS - 1])
def test_after_ctrl_c_the_same_command_goes_on(
    parts: int, a: Path, whole: Any, cut: Cut, capsys: pytest.CaptureFixture[str]
) -> None:
    cut(parts)
    assert run("evaluate", a, "--attacks", ATTACKS) == 130
    err = capsys.readouterr().err.splitlines()
    done = sum(min(397, ROWS * max(0, parts - PARTS * attack)) for attack in range(3))
    assert err == [f"{done} verdicts are kept: the same command continues from there", "sihg: interrupted"]
    assert [path.name for path in (a / "evaluation").iterdir()] == [f"{NAME}.partial.npz"]
    cut(0)
    assert run("evaluate", a, "--attacks", ATTACKS) == 0
    assert capsys.readouterr().err.startswith(f"continuing: {done} verdicts are known\n")
    assert record(a) == whole
    assert sorted(path.name for path in (a / "evaluation").iterdir()) == [f"{NAME}.json", f"{NAME}.npz"]


def test_after_kill_9_the_same_command_goes_on(a: Path, whole: Any, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "tests.cli.test_evaluate_resume", str(a), str(PARTS + 3)]
    kept = a / "evaluation" / f"{NAME}.partial.npz"
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "waiting\n"
        child.kill()
        assert child.wait() == -signal.SIGKILL
    assert kept.is_file()
    assert run("evaluate", a, "--attacks", ATTACKS) == 0
    assert f"continuing: {397 + 3 * ROWS} verdicts are known" in capsys.readouterr().err
    assert record(a) == whole
    assert not kept.exists()


def test_findings_of_another_question_are_not_used(
    a: Path, trained: Path, whole: Any, cut: Cut, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Of other weights, of another eps: files that are in the way, under the name of ours."""
    for other, words in ((trained / "b", ()), (trained / "a", ("--eps", "0.1"))):
        folder = shutil.copytree(other, tmp_path / f"of {other.name}{len(words)}")
        cut(5)
        assert run("evaluate", folder, "--attacks", ATTACKS, *words) == 130
        cut(0)
        (other_file,) = (folder / "evaluation").iterdir()
        (a / "evaluation").mkdir(exist_ok=True)
        shutil.copy(other_file, a / "evaluation" / f"{NAME}.partial.npz")
        capsys.readouterr()
        assert run("evaluate", a, "--attacks", ATTACKS) == 0
        assert "continuing" not in capsys.readouterr().err
        assert record(a) == whole


def test_damaged_findings_are_told_of(a: Path, whole: Any, capsys: pytest.CaptureFixture[str]) -> None:
    kept = a / "evaluation" / f"{NAME}.partial.npz"
    kept.parent.mkdir()
    kept.write_bytes(b"PK damaged")
    assert run("evaluate", a, "--attacks", ATTACKS) == 0
    err = capsys.readouterr().err.splitlines()
    assert err[0].startswith(f"warning: {kept} is not used (")
    assert record(a) == whole
    assert not kept.exists()


def test_a_full_disk_does_not_end_an_evaluation(
    a: Path, whole: Any, cut: Cut, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = os.replace

    def full(source: Any, target: Any) -> None:
        if str(target).endswith(".partial.npz"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(source, target)

    monkeypatch.setattr(os, "replace", full)
    assert run("evaluate", a, "--attacks", ATTACKS) == 0
    captured = capsys.readouterr()
    assert captured.err.count("No space left on device") == 1
    assert "; if this evaluation is interrupted, it starts over\n" in captured.err
    assert "apgd-ce-5" in captured.out
    assert record(a) == whole
    cut(3)
    assert run("evaluate", a, "--attacks", ATTACKS, "--again") == 130
    err = capsys.readouterr().err.splitlines()
    assert err[-3].startswith("warning: the results so far are lost: cannot write ")
    assert err[-2:] == ["no verdict is kept: the same command starts over", "sihg: interrupted"]


@pytest.mark.parametrize("parts", [0, PARTS + 3, 2 * PARTS])
def test_points_are_kept_on_request(parts: int, a: Path, cut: Cut, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("evaluate", a, "--attacks", ATTACKS, "--points")
    if parts:
        cut(parts)
        assert run(*words) == 130
    cut(0)
    assert run(*words) == 0
    (path,) = (a / "evaluation").glob("*.points.npy")
    assert f"record: {path}\n" in capsys.readouterr().err
    points, samples = torch.from_numpy(np.load(path)), data.load("digits")[1]
    with np.load(max((a / "evaluation").glob("*.npz"))) as file:
        broken = torch.from_numpy(file["broken"].any(0))
    assert torch.equal(load(a)(points).argmax(1) != samples.y, broken)
    assert 0 < int(broken.sum()) < len(broken)
    assert_inside(PGD(eps=0.05), samples.floats(), points)


def test_points_are_not_taken_from_findings_without_any(a: Path, cut: Cut, capsys: pytest.CaptureFixture[str]) -> None:
    cut(PARTS + 3)
    assert run("evaluate", a, "--attacks", ATTACKS) == 130
    cut(0)
    assert run("evaluate", a, "--attacks", ATTACKS, "--points") == 0
    assert "continuing" not in capsys.readouterr().err
    (path,) = (a / "evaluation").glob("*.points.npy")
    assert bool(np.load(path).any((1, 2, 3)).all())  # no sample is black


def test_points_need_a_place(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file({n: v.contiguous() for n, v in load(trained / "a").state_dict().items()}, tmp_path / "w.safetensors")
    model = ("--model", "small-cnn", "--width", "1/4", "--data", "digits", "--eps", "0.1", "--attacks", "natural")
    words = ("evaluate", tmp_path / "w.safetensors", *model, "--points")
    assert run(*words) == 2
    assert "--out DIR" in capsys.readouterr().err
    assert run(*words, "--out", tmp_path / "new" / "place") == 0
    name = "w_test_natural_eps-0.1_data-digits_model-small-cnn_width-1-4"
    kept = sorted(path.name for path in (tmp_path / "new" / "place").iterdir())
    assert kept == [f"{name}.json", f"{name}.npz", f"{name}.points.npy"]


def test_runs_do_not_replace_each_others_records(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "records"
    words = ("--attacks", "natural", "--out", out)
    assert run("evaluate", trained / "a", trained / "b", *words) == 0
    assert sorted(path.name for path in out.glob("*.json")) == ["a_last_test_natural.json", "b_last_test_natural.json"]
    other = shutil.copytree(trained / "b", tmp_path / "other" / "a")
    capsys.readouterr()
    assert run("evaluate", trained / "a", other, *words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--out {out} would hold two records a_last_test_natural.json" in line


def test_transfer_from_another_run(trained: Path, a: Path, cut: Cut, capsys: pytest.CaptureFixture[str]) -> None:
    other = shutil.copytree(trained / "b", a.parent / "b")
    words = ("evaluate", a, "--attacks", f"natural,transfer:{other}", "--json")
    assert run(*words) == 0
    row = json.loads(capsys.readouterr().out)["attacks"][1]
    samples = data.load("digits")[1]
    found = Transfer(eps=0.05, source=load(other)).run(load(a), samples.floats(), samples.y)
    assert (row["attack"], row["broken"]) == (f"transfer:{other}", int(found.broken.sum()))
    cut(PARTS + 1)
    assert run(*words, "--again") == 130
    cut(0)
    capsys.readouterr()
    shutil.rmtree(other)
    shutil.copytree(trained / "a", other)  # another source under the name of the first one
    assert run(*words) == 0
    captured = capsys.readouterr()
    assert "continuing" not in captured.err
    assert json.loads(captured.out)["attacks"][1]["broken"] != row["broken"]


def test_a_transfer_from_nowhere(a: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("nowhere", ""):
        assert run("evaluate", a, "--attacks", f"natural,transfer:{tmp_path / name}") == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("sihg: error: ")
        assert str(tmp_path / name) in line


if __name__ == "__main__":
    _, path, most = sys.argv

    def wait() -> None:
        print("waiting", flush=True)
        time.sleep(600)

    with pytest.MonkeyPatch.context() as patch:
        in_small_parts(patch)
        act_after(int(most), wait, patch)
        sys.exit(run("evaluate", path, "--attacks", ATTACKS))
