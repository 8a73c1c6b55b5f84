"""Files whose sums are right but whose content is not, and places that cannot be read or written: one sentence each."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sihg
from sihg.cli.main import main
from sihg.cli.terminal import format_table
from sihg.robust.evaluation import EvaluationRequest, evaluate_run
from sihg.store.files import from_toml
from sihg.store.manifest import manifest_bytes
from sihg.store.schema import read_json, write_json, write_toml
from tests.refused import refused

TINY = [
    *("--data", "digits", "--method", "pgd", "--steps", "1", "--samples", "60", "--validation", "10"),
    *("--epochs", "1", "--batch-size", "20", "--width", "0.25", "--threads", "1"),
]
QUICK = ["--samples", "20", "--attacks", "natural"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("made") / "run"
    assert main(["train", *TINY, "--out", str(run)]) == 0
    return run


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def rewrite_manifest(run: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Change the manifest of the last checkpoint, and give it a right sum; return the checkpoint."""
    checkpoint = max(run.glob("checkpoints/last-*"))
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    change(manifest)
    (checkpoint / "manifest.json").write_bytes(manifest_bytes(manifest["files"], manifest["state"]))
    return checkpoint


MALFORMED: dict[str, tuple[str, Callable[[dict[str, Any]], None]]] = {
    "settings are a number": ("record-invalid", lambda manifest: manifest["state"].update(settings=5)),
    "a setting is a table": ("record-invalid", lambda manifest: manifest["state"]["settings"].update(eps={"a": 1})),
    "no state": ("record-invalid", lambda manifest: manifest["state"].clear()),
    "data is a text": ("record-invalid", lambda manifest: manifest["state"].update(data="digits")),
    "no files": ("checkpoint-damaged", lambda manifest: manifest["files"].clear()),
    "no weights": ("checkpoint-damaged", lambda manifest: manifest["files"].pop("weights.safetensors")),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_checkpoint_is_named(run: Path, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, change = MALFORMED[case]
    checkpoint = rewrite_manifest(run, change)
    for words in (["evaluate", str(run), *QUICK], ["evaluate", str(checkpoint), *QUICK]):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert f"[{code}]" in said
        assert str(checkpoint) in said
    with refused(code):
        sihg.load(run)
    assert not (run / "evaluation").exists()


def test_a_checkpoint_without_settings_is_read(run: Path) -> None:
    """The first versions did not keep them."""
    rewrite_manifest(run, lambda manifest: manifest["state"].pop("settings"))
    assert main(["evaluate", str(run), *QUICK]) == 0


@pytest.mark.parametrize("threads", [-3, 1025, 10**6, 10**15])
def test_a_run_does_not_ask_for_any_number_of_threads(
    run: Path, threads: int, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite_manifest(run, lambda manifest: manifest["state"].update(threads=threads))
    assert main(["resume", str(run)]) == 2
    said = capsys.readouterr().err
    assert "[threads-range]" in said
    assert f"got {threads}:" in said
    shutil.rmtree(run / "checkpoints")
    write_json(run / "environment.json", {**read_json(run / "environment.json", ""), "threads": threads})
    assert main(["resume", str(run)]) == 2
    assert "[threads-range]" in capsys.readouterr().err


@pytest.mark.parametrize("threads", ["0", "1025"])
def test_the_user_does_not_either(run: Path, threads: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), *QUICK, "--threads", threads]) == 2
    assert "[threads-range]" in capsys.readouterr().err


def test_a_record_that_may_not_be_read_is_not_to_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(_path: Path) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    path = write_json(tmp_path / "a.json", {})
    monkeypatch.setattr("sihg.store.schema.record.read_regular", forbid)
    with refused("cannot-look", path=path, reason=os.strerror(errno.EACCES)):
        read_json(path, "remove it")


def test_a_config_of_another_run_is_to_be_restored(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = {name: value for name, value in from_toml(run / "config.toml").items() if name != "format"}
    write_toml(run / "config.toml", {**table, "eps": 0.01})
    for words in (["evaluate", str(run), *QUICK], ["report", str(run)]):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert "[config-not-of-checkpoint]" in said
        assert "restore config.toml" in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_table_that_cannot_be_printed(run: Path) -> None:
    code = f"import sys; from sihg.cli.main import main; sys.exit(main(['compare', {str(run)!r}]))"
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert ended.returncode == 2
    assert "[cannot-print]" in ended.stderr


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_table_is_drawn_with_characters_that_the_output_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    with (tmp_path / "out").open("w", encoding=encoding) as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert format_table("title", ["a", "b"], [["c", "d"]]).isascii() == (encoding == "ascii")


@pytest.mark.parametrize("before", [False, True])
def test_a_run_that_cannot_be_written_is_not_attacked(
    run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: bool
) -> None:
    if before:
        assert main(["evaluate", str(run), *QUICK]) == 0
    original = tempfile.TemporaryFile

    def forbid(*args: Any, **options: Any) -> Any:
        if Path(options.get("dir") or "/").is_relative_to(run):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return original(*args, **options)

    def attacked(event: object) -> None:
        raise AssertionError(event)

    monkeypatch.setattr(tempfile, "TemporaryFile", forbid)
    with refused("cannot-write-folder", path=run / "evaluation" if before else run):
        evaluate_run(run, EvaluationRequest("natural,fgsm", samples=30), progress=attacked)
    assert (run / "evaluation").exists() == before
    evaluate_run(run, EvaluationRequest("natural", samples=10), out=tmp_path / "elsewhere")
