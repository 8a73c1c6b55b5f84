"""`sihg check`: every changed or missing file is named, and edits on purpose can be accepted."""

import json
from pathlib import Path

import pytest

from sihg.cli.main import main
from sihg.report.read.runs import read_run
from sihg.store.run_folder import locked
from sihg.store.schema import write_json
from sihg.store.verify import check_folder
from tests.refused import refused
from tests.report.folders import write_checkpoint, write_evaluation, write_gallery, write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with a record, a gallery and a checkpoint, all sealed."""
    run = write_run(tmp_path / "grid" / "a")
    record = write_evaluation(run)
    write_json(record, json.loads(record.read_text()))
    write_json(run / "environment.json", {"python": "3.11"})
    write_gallery(run)
    write_checkpoint(run)
    return run


def results(folder: Path, *, accept: bool = False) -> dict[str, str]:
    return {check.path.name: check.result for check in check_folder(folder, accept=accept) if check.result != "good"}


NAMES = ["config.toml", "environment.json", "metrics.csv", "log.jsonl", "gallery.npz", "evaluation/last_test.json"]


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_cut_or_emptied_file_is_named(run: Path, name: str) -> None:
    assert results(run.parent) == {}
    data = (run / name).read_bytes()
    middle = len(data) // 2
    for damaged in (data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :], data[:middle], b""):
        (run / name).write_bytes(damaged)
        assert results(run.parent) == {Path(name).name: "wrong"}
        assert main(["check", str(run)]) == 1
    (run / name).write_bytes(data)
    assert results(run.parent) == {}


@pytest.mark.parametrize("name", ["environment.json", "metrics.csv", "log.jsonl"])
def test_a_missing_file_is_named(run: Path, name: str) -> None:
    (run / name).unlink()
    assert results(run.parent) == {name: "wrong"}
    assert results(run.parent, accept=True) == {name: "wrong"}


def test_a_checkpoint_without_its_manifest_is_named(run: Path) -> None:
    (run / "checkpoints" / "last-00000078" / "manifest.json").unlink()
    assert results(run.parent) == {"manifest.json": "wrong"}


def test_edits_on_purpose_are_accepted_and_said(run: Path) -> None:
    for name, old, new in [
        ("metrics.csv", b"\n2,", b"\n9,"),
        ("config.toml", b"seed = 0", b"seed = 00"[:7] + b"0"),
        ("evaluation/last_test.json", b"0.4375", b"0.9375"),
        ("log.jsonl", b"epoch", b"Epoch"),
    ]:
        data = (run / name).read_bytes()
        (run / name).write_bytes(data.replace(old, new) if old != new else data + b"# mine\n")
    found = results(run.parent, accept=True)
    assert set(found.values()) == {"accepted"}
    assert {"metrics.csv", "last_test.json", "log.jsonl"} <= found.keys()
    assert results(run.parent) == {}
    read = read_run(run)
    said = [*read.warnings, *(remark.text for remark in read.remarks)]
    assert sum("edited on purpose" in text for text in said) == 3
    assert [row.epoch for row in read.rows] == [1, 9, 3]


def test_nothing_is_accepted_in_a_run_that_is_in_use(run: Path) -> None:
    (run / "metrics.csv").write_bytes((run / "metrics.csv").read_bytes().replace(b"\n2,", b"\n9,"))
    before = (run / "metrics.csv").read_bytes()
    with locked(run), refused("folder-in-use", folder=run):
        check_folder(run.parent, accept=True)
    assert (run / "metrics.csv").read_bytes() == before


def test_what_cannot_be_read_is_not_accepted(run: Path) -> None:
    for name in ("config.toml", "metrics.csv", "gallery.npz", "environment.json"):
        (run / name).write_bytes(b"\xff\x00")
    assert set(results(run.parent, accept=True).values()) == {"wrong"}
