"""What earlier versions wrote is read by this one: it loads, resumes, evaluates, reports and compares."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch

import sihg
from sihg.cli.main import main
from sihg.robust import data
from sihg.robust.training.fit import fit, resume_run
from sihg.store.checkpoint import newest_checkpoint
from sihg.store.schema import EvaluationRecord, read_evaluation
from sihg.store.tables import read_table
from tests.compat.make import CLASSES, EPOCHS, SAMPLES, SHAPE, STOPPED_AFTER, TINY, WIDTH

SETS = sorted(path.parent for path in Path(__file__).parent.glob("*/files.tar.xz"))


@pytest.fixture(name="expected", params=SETS, ids=lambda path: str(path.name), scope="module")
def expected_(request: pytest.FixtureRequest) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((request.param / "expected.json").read_text(encoding="utf-8"))
    return {**content, "files": request.param / "files.tar.xz"}


@pytest.fixture(name="files")
def files_(expected: dict[str, Any], tmp_path: Path) -> Path:
    """The unpacked files, as somebody else's: no key of theirs is here."""
    with tarfile.open(expected["files"]) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_there_is_a_set_of_the_first_release() -> None:
    assert "0.1.0" in [path.name for path in SETS]


def test_weights_load_and_have_the_accuracy_of_the_record(files: Path, expected: dict[str, Any]) -> None:
    (path,) = (files / "train" / "evaluation").glob("*natural*.json")
    stored = read_evaluation(path)
    assert isinstance(stored, EvaluationRecord)
    assert {row.attack: row.accuracy for row in stored.attacks} == expected["accuracy"]
    request = sihg.EvaluationRequest("natural,pgd-2", samples=stored.samples, trust=True)
    made = sihg.evaluate_run(files / "train", request, again=True)
    assert made.record.sha256 == stored.sha256 == expected["weights"]
    assert isinstance(made, sihg.Evaluation)
    for row in made.rows():  # one sample may be on the edge on another processor
        assert row.accuracy == pytest.approx(expected["accuracy"][row.attack], abs=1.01 / stored.samples)
    model = sihg.load(files / "train", trust=True)
    with torch.no_grad():
        assert model(torch.zeros(2, *SHAPE)).shape == (2, CLASSES)


def test_the_perturbation_memory_is_read_bit_by_bit(files: Path, expected: dict[str, Any]) -> None:
    checkpoint, skipped = newest_checkpoint(files / "fit" / "checkpoints", "last")
    assert checkpoint is not None
    assert skipped == []
    found = {name: float(tensor.double().abs().sum()) for name, tensor in checkpoint.tensors["memory"].items()}
    assert found == expected["memory"]


@pytest.mark.parametrize("name", ["fit", "fit-memory-files"])
def test_a_run_resumes(name: str, files: Path, expected: dict[str, Any]) -> None:
    out = files / name
    before = read_table(out / "metrics.csv", sealed=True)
    model = sihg.robust.models.build("small-cnn", SHAPE, CLASSES, width=WIDTH)
    samples = data.load("digits")[0].take(slice(SAMPLES))
    own: dict[str, Any] = {"validation": 10} if name == "fit" else {"memory_files": True}
    trained = fit(model, samples, **TINY, **own, epochs=EPOCHS, out=out, resume=True)
    assert trained.finished
    after = read_table(out / "metrics.csv", sealed=True)
    assert len(before) == STOPPED_AFTER
    assert len(after) == EPOCHS
    assert after[:STOPPED_AFTER] == before
    if name == "fit":
        assert [row["loss"] for row in before] == expected["losses"]
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())


def test_a_finished_run_is_known_as_finished(files: Path) -> None:
    assert resume_run(files / "train", trust=True).stopped.endswith("done")


def test_a_solve_continues_and_is_drawn(files: Path) -> None:
    assert main(["solve", "--resume", str(files / "solve"), "--iterations", "30"]) == 0
    assert main(["report", str(files / "solve")]) == 0
    assert (files / "solve" / "index.html").is_file()


def test_runs_are_checked_and_drawn(files: Path) -> None:
    for name in ("train", "fit", "fit-memory-files"):
        assert main(["check", str(files / name)]) == 0
    assert main(["report", str(files / "train")]) == 0
    assert "pgd-2" in (files / "train" / "index.html").read_text(encoding="utf-8")


def test_runs_and_archives_are_compared(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(files / "grid.zip"), str(files / "train"), "--json"]) == 0
    said = capsys.readouterr().out
    for name in ("natural-s0", "pgd-s1", "train"):
        assert name in said
