"""A run is the same to the bit on any number of processes, however often that changes and whatever ends one of them."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sihg.cli.main import main
from sihg.core.processes import ALONE
from tests.robust.small import records, without_seconds
from tests.robust.training.together import CASES, RESUMED, equal_ids, evaluate, go_on, small_chunks, train, train_all
from tests.torchrun import begin, finish, launch, lines_of

JOB = ("-m", "tests.robust.training.together")
TRAIN = ["train", "--samples", "300", "--epochs", "2", "--width", "1/4", "--steps", "2", "--batch-size", "50"]
TRAIN += ["--lanes", "4", "--threads", "1", "--evaluate-with", "pgd-2"]


def kept(run: Path) -> dict[str, Any]:
    """Everything that a run keeps, but for seconds: tensors and the memory as bytes, tables and states as they read.

    Of checkpoints only the newest: which older ones there are depends on when they were made.
    """
    found: dict[str, Any] = records(run)
    older = sorted((run / "checkpoints").glob("last-*"))[:-1]
    for path in sorted(path for path in run.rglob("*") if path.parent not in older):
        name = str(path.relative_to(run))
        if path.suffix == ".safetensors" or (path.parent.name == "memory" and path.is_file()):
            found[name] = path.read_bytes()
        elif path.name == "manifest.json":
            state = json.loads(path.read_text(encoding="utf-8"))["state"]
            found[name] = {key: without_seconds(value) for key, value in state.items() if key != "tables"}
    return found


def assert_equal_runs(one: Path, other: Path) -> None:
    """Name what differs, instead of showing bytes."""
    found, expected = kept(one), kept(other)
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []
    assert any(name.endswith("weights.safetensors") for name in found)


@pytest.fixture(scope="module", name="alone")
def alone_(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of one process, with which all others are compared."""
    folder = tmp_path_factory.mktemp("alone")
    with equal_ids():
        train_all(folder, ALONE)
    return folder


def together(processes: int, job: str, folder: Path, step: int = 0) -> None:
    result = launch(processes, [*JOB, job, folder, str(step)])
    assert result.returncode == 0, result.stderr


# ---- trainings


@pytest.fixture(scope="module", name="by_two")
def by_two_(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    together(2, "train", folder)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_two_processes_train_as_one(name: str, alone: Path, by_two: Path) -> None:
    assert_equal_runs(by_two / name, alone / name)


def test_what_the_cases_cover(alone: Path) -> None:
    """Else equality would say little: memories that are not zero, and evaluations that choose a best epoch."""
    assert (alone / "msi-hg" / "checkpoints" / "last-00000006" / "memory-03.safetensors").stat().st_size > 1000
    assert list((alone / "msi-hg bn" / "checkpoints").glob("best-*"))
    assert len(list((alone / "msi-hg in files" / "memory").glob("*.bin"))) == 2 * 4
    assert len({(alone / name / "log.jsonl").read_bytes() for name in CASES}) == len(CASES)


@pytest.mark.processes
@pytest.mark.parametrize("processes", [1, 4])
def test_more_processes_train_as_one(processes: int, alone: Path, tmp_path: Path) -> None:
    """One under torchrun, too."""
    result = launch(processes, [*JOB, "train", tmp_path], options=["--max-restarts", "0"])
    assert result.returncode == 0, result.stderr
    for name in CASES:
        assert_equal_runs(tmp_path / name, alone / name)


# ---- resume on another number of processes


def resume(folder: Path, processes: int, step: int) -> None:
    if processes == 1:
        with equal_ids():
            go_on(folder, ALONE, step)
    else:
        together(processes, "go-on", folder, step)


def test_a_run_moves_from_two_processes_to_one_and_back(alone: Path, tmp_path: Path) -> None:
    for processes, step in ((2, 2), (1, 4), (2, 0)):
        resume(tmp_path, processes, step)
    for name in RESUMED:
        assert_equal_runs(tmp_path / name, alone / name)


@pytest.mark.processes
def test_a_run_moves_between_two_one_and_four_processes(alone: Path, tmp_path: Path) -> None:
    for processes, step in ((2, 1), (1, 3), (4, 4), (2, 0)):
        resume(tmp_path, processes, step)
    for name in RESUMED:
        assert_equal_runs(tmp_path / name, alone / name)


@pytest.mark.processes
@pytest.mark.parametrize("step", [1, 4, 5])
def test_a_process_that_is_killed_ends_all_and_loses_nothing(step: int, alone: Path, tmp_path: Path) -> None:
    result = launch(4, [*JOB, "kill", tmp_path, str(step)])
    assert result.returncode != 0
    with equal_ids():
        train(tmp_path, ALONE, "msi-hg in files", resume=True)
    assert_equal_runs(tmp_path / "msi-hg in files", alone / "msi-hg in files")


# ---- evaluations


def record(folder: Path) -> tuple[Any, dict[str, bytes], bytes]:
    """What is kept of an evaluation, but for the time it took."""
    home = folder / "evaluation"
    found = without_seconds(json.loads((home / "record.json").read_text(encoding="utf-8")))
    found["attacks"] = [without_seconds(row) for row in found["attacks"]]
    del found["environment"], found["files"]
    with np.load(home / "record.npz") as file:
        arrays = {name: file[name].tobytes() for name in file.files if "seal" not in name}
    return found, arrays, (home / "record.points.npy").read_bytes()


@pytest.fixture(scope="module", name="verdicts")
def verdicts_(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("verdicts")
    with small_chunks():
        evaluate(folder, ALONE, 0)
    return record(folder)


def test_two_processes_evaluate_as_one_also_after_an_interruption(verdicts: Any, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    together(2, "evaluate", one, 10)
    with small_chunks():
        evaluate(two, ALONE, 8)
        for folder in (one, two):
            assert list((folder / "evaluation").glob("*.partial.npz"))
        evaluate(one, ALONE, 0)
    together(2, "evaluate", two, 0)
    assert record(one) == record(two) == verdicts


@pytest.mark.processes
@pytest.mark.parametrize("processes", [2, 4])
def test_processes_evaluate_as_one(processes: int, verdicts: Any, tmp_path: Path) -> None:
    together(processes, "evaluate", tmp_path, 0)
    assert record(tmp_path) == verdicts


# ---- the command line


@pytest.fixture(scope="module", name="command")
def command_(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process."""
    run = tmp_path_factory.mktemp("command") / "run"
    assert main([*TRAIN, "--out", str(run)]) == 0
    return run


def sihg(*words: str | Path) -> list[str]:
    return ["-m", "sihg", *map(str, words)]


def test_torchrun_trains_and_evaluates_with_one_voice(command: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = launch(2, sihg(*TRAIN, "--out", run))
    assert result.returncode == 0, result.stderr
    assert_equal_runs(run, command)
    assert [len(lines_of(result, word)) for word in ("samples: ", "epoch 1: ", "epoch 2: ", "next: ")] == [1] * 4
    assert result.stdout.count("held out natural / robust") == 1
    result = launch(2, sihg("evaluate", run, "--attacks", "natural,pgd-3", "--threads", "1", "--json"))
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["attacks"][0]["attack"] == "natural"
    assert len(lines_of(result, "record: ")) == 1
    assert main(["evaluate", str(command), "--attacks", "natural,pgd-3", "--threads", "1"]) == 0
    ours, theirs = (attack_rows(path) for path in (run, command))
    assert ours == theirs


def attack_rows(run: Path) -> list[Any]:
    (path,) = (run / "evaluation").glob("*.json")
    return [without_seconds(row) for row in json.loads(path.read_text(encoding="utf-8"))["attacks"]]


METHOD = """
from dataclasses import dataclass

from sihg.errors import InputError
from sihg.robust.methods import AdversarialMethod


@dataclass(kw_only=True)
class Fails(AdversarialMethod):
    def step(self, model, batch, optimizer):
        if batch.lane == 1 and batch.step == 3:
            raise InputError("sample 17 cannot be used")
        return self.train_on(model, batch, batch.x, optimizer, 1.0)
"""


def test_an_error_in_one_lane_ends_all_processes_and_is_printed_once(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(METHOD, encoding="utf-8")
    words = ["train", "--samples", "300", "--lanes", "4", "--batch-size", "50", "--out", str(tmp_path / "run")]
    result = launch(2, sihg(*words, "--method", f"{tmp_path / 'fails.py'}:Fails"))
    assert result.returncode != 0
    assert lines_of(result, "sihg: error") == ["sihg: error: process 1: sample 17 cannot be used"]


def test_mistakes_are_printed_once(tmp_path: Path) -> None:
    result = launch(2, sihg("train", "--lanes", "4", "--norm", "l1", "--out", tmp_path / "run"))
    assert result.returncode != 0
    assert len(lines_of(result, "sihg: error")) == 1
    assert not (tmp_path / "run").exists()


def test_three_processes_cannot_share_four_lanes(tmp_path: Path) -> None:
    result = launch(3, sihg(*TRAIN, "--out", tmp_path / "run"))
    assert result.returncode != 0
    (line,) = lines_of(result, "sihg: error")
    assert "4 lanes cannot be divided evenly among 3 processes" in line
    assert "[lanes-processes]" in line
    assert not (tmp_path / "run").exists()


LOGGER = """
import time

from sihg.robust.training.events import StepDone


def wait(event):
    if isinstance(event, StepDone):
        open({path!r}, "a").close()
        time.sleep(0.1)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_saves_a_checkpoint_and_resume_ends_as_if_nobody_had_pressed_it(
    number: signal.Signals, command: Path, tmp_path: Path
) -> None:
    run, begun = tmp_path / "run", tmp_path / "begun"
    (tmp_path / "slow.py").write_text(LOGGER.format(path=str(begun)), encoding="utf-8")
    started = begin(2, sihg(*TRAIN, "--out", run, "--logger", f"{tmp_path / 'slow.py'}:wait"))
    wait_for(begun, started)
    started.send_signal(number)  # to torchrun, which passes it on
    result = finish(started)
    assert result.returncode != 0
    assert len(lines_of(result, "to continue: sihg resume")) == 1
    assert lines_of(result, "sihg: error") == []
    assert main(["resume", str(run)]) == 0
    assert_equal_runs(run, command)


def wait_for(path: Path, started: "subprocess.Popen[str]") -> None:
    """Wait until a file is there; `finish` ends a launch that never makes it."""
    while not path.exists():
        assert started.poll() is None
        time.sleep(0.05)
