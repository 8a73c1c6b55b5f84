"""A run never writes over another by accident, and never removes what is not a run's."""

import errno
import json
import os
from pathlib import Path

import pytest

from sihg.errors import InputError
from sihg.store.manifest import manifest_bytes
from sihg.store.run_folder import OUTPUT, RunFolder, locked
from sihg.store.schema import FORMAT, Environment, read_toml
from sihg.store.trust import OWNER
from sihg.store.verify import ACCEPTED, check_folder
from tests.refused import refused
from tests.store.permissions import forbid_listing


def a_run(path: Path) -> RunFolder:
    folder = RunFolder.create(path)
    folder.begin({"eps": 8 / 255}, threads=1)
    folder.metrics.write_text("epoch\n1\n")
    (folder.checkpoints / "last-0000001").mkdir(parents=True)
    (folder.checkpoints / "last-0000001" / "manifest.json").write_text("{}")
    return folder


def tree(path: Path) -> set[str]:
    return {str(p.relative_to(path)) for p in path.rglob("*")}


def test_a_new_folder_takes_config_and_environment(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "runs" / "a")
    folder.begin({"eps": 8 / 255, "tau": None}, {"eps": "radius"}, threads=2)
    again = RunFolder.open(str(tmp_path / "runs" / "a"))
    assert read_toml(again.config) == {"format": FORMAT, "eps": 8 / 255}
    assert json.loads(again.environment.read_text())["threads"] == again.read_environment().threads == 2
    assert again.read_environment().torch
    assert tree(folder.path) == {".owner", "config.toml", "environment.json"}
    assert again.is_own()


def test_every_path_is_a_known_name() -> None:
    folder = RunFolder("x")
    paths = {p.name for p in vars(folder).values() if p != folder.path}
    report, loggers = {"index.html", "report"}, {"loggers.jsonl", "tensorboard"}
    assert paths | report | loggers | {OWNER, ACCEPTED} == set(RunFolder.NAMES)
    assert set(RunFolder.NAMES[RunFolder.NAMES.index("config.toml") :]) == {"config.toml", OWNER, "environment.json"}


def test_an_earlier_run_is_refused_with_remedies(tmp_path: Path) -> None:
    path = a_run(tmp_path / "my run").path
    before = tree(path)
    with pytest.raises(InputError, match=r"`sihg resume '.*my run'`.*--overwrite.*--out") as caught:
        RunFolder.create(path)
    assert caught.value.code == "run-folder-exists"
    assert tree(path) == before


def test_overwrite_removes_a_run_and_nothing_else(tmp_path: Path) -> None:
    path = a_run(tmp_path / "a").path
    (path / "notes.txt").write_text("mine")
    before = tree(path)
    with refused("foreign-file", path=path, name="notes.txt"):
        RunFolder.create(path, overwrite=True)
    assert tree(path) == before | {".lock"}
    (path / "notes.txt").unlink()
    (path / ".config.toml.0123abcd").write_text("cut sh")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("kept")
    (path / "memory").symlink_to(elsewhere)
    RunFolder.create(path, overwrite=True)
    assert tree(path) == {".lock"}
    assert (elsewhere / "kept").read_text() == "kept"


def test_overwrite_refuses_a_folder_without_a_run(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "checkpoints").mkdir()
    for overwrite in (False, True):
        with refused("folder-not-empty", path=tmp_path):
            RunFolder.create(tmp_path, overwrite=overwrite)
    assert tree(tmp_path) == {"thesis.tex", "checkpoints"}


def test_overwrite_refuses_a_run_in_use(tmp_path: Path) -> None:
    path = a_run(tmp_path / "a").path
    with locked(path), refused("folder-in-use", folder=path):
        RunFolder.create(path, overwrite=True)
    assert (path / "metrics.csv").exists()


def test_a_folder_with_only_a_lock_its_output_or_a_half_config_is_new(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / OUTPUT).write_text("epoch 1")
    (tmp_path / ".config.toml.0123abcd").write_text("eps =")
    assert RunFolder.create(tmp_path).path == tmp_path


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot make the run folder .*file \(it is a file\): choose another --out"):
        RunFolder.create(tmp_path / "file")
    with refused("cannot-make-run", path=tmp_path / "file" / "below"):
        RunFolder.create(tmp_path / "file" / "below")
    with refused("not-a-run", path=tmp_path / "file"):
        RunFolder.open(tmp_path / "file")


def test_a_missing_run_is_refused(tmp_path: Path) -> None:
    with refused("missing-run", path=tmp_path / "nowhere"):
        RunFolder.open(tmp_path / "nowhere")
    with refused("not-a-run", path=tmp_path):
        RunFolder.open(tmp_path)


def test_the_data_folder_is_known_while_it_exists(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    assert (folder.read_environment(), folder.data_folder()) == (Environment(), None)
    (tmp_path / "data").mkdir()
    folder.begin({}, threads=1, data_folder=tmp_path / "data")
    assert folder.data_folder() == tmp_path / "data"
    (tmp_path / "data").rmdir()
    assert folder.data_folder() is None


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[1]", "record-unreadable"),
        ("{", "record-unreadable"),
        ('{"threads": "x"}', "record-invalid"),
        ('{"format": 2, "threads": 1}', "seal-missing"),
    ],
)
def test_a_damaged_environment_is_refused(tmp_path: Path, text: str, code: str) -> None:
    folder = RunFolder.create(tmp_path / "run")
    folder.environment.write_text(text)
    with refused(code):
        folder.read_environment()


def test_clearing_warns_about_what_it_cannot_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, original = a_run(tmp_path / "a"), Path.unlink

    def fail(path: Path, missing_ok: bool = False) -> None:
        if path == folder.metrics:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        original(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", fail)
    with pytest.warns(UserWarning, match=r"cannot remove .*metrics\.csv \(Permission denied\): remove it yourself"):
        folder.clear(whole=False)
    assert tree(folder.path) == {"metrics.csv"}


def test_clearing_removes_what_a_run_wrote(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "a")
    (folder.path / "notes.txt").write_text("mine")
    folder.clear(whole=False)
    assert tree(folder.path) == {"notes.txt"}
    folder.clear(whole=True)
    assert tree(folder.path) == {"notes.txt"}
    (folder.path / "notes.txt").unlink()
    folder.clear(whole=True)
    assert not folder.path.exists()


@pytest.mark.parametrize(
    "name", ["evaluation/notes.txt", "checkpoints/weights.pt", "checkpoints/last-0000001/mine.txt", "memory/a.csv"]
)
def test_a_foreign_file_inside_a_folder_of_the_run_stays(tmp_path: Path, name: str) -> None:
    folder = a_run(tmp_path / "a")
    (folder.path / name).parent.mkdir(parents=True, exist_ok=True)
    (folder.path / name).write_text("mine")
    before = tree(folder.path)
    with refused("foreign-file", path=folder.path, name=Path(name)):
        RunFolder.create(folder.path, overwrite=True)
    assert tree(folder.path) == before | {".lock"}
    with pytest.warns(UserWarning, match="cannot remove"):
        folder.clear(whole=True)
    assert (folder.path / name).read_text() == "mine"


def test_overwrite_removes_what_a_kill_left_of_files(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "a")
    folder.evaluation.mkdir()
    (folder.evaluation / ".last.json.0123abcd").write_text("{")
    (folder.evaluation / "last.json").write_text("{}")
    RunFolder.create(folder.path, overwrite=True)
    assert tree(folder.path) == {".lock"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_may_not_be_read_is_neither_new_nor_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    folder = a_run(tmp_path / "a")
    before = tree(folder.path)
    with monkeypatch.context() as patch:
        forbid_listing(patch, folder.path)
        with refused("cannot-look", path=folder.path):
            RunFolder.create(folder.path, overwrite=overwrite)
    assert tree(folder.path) == before


def test_overwrite_removes_nothing_if_it_may_not_look_into_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = a_run(tmp_path / "a")
    before = tree(folder.path)
    with monkeypatch.context() as patch:
        forbid_listing(patch, folder.checkpoints)
        with refused("cannot-make-run", path=folder.path):
            RunFolder.create(folder.path, overwrite=True)
    assert tree(folder.path) == before | {".lock"}


def test_the_config_comes_last_and_without_it_the_folder_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, replaced, original = RunFolder.create(tmp_path / "a"), list[str](), os.replace

    def spy(source: Path, target: Path) -> None:
        original(source, target)
        replaced.append(Path(target).name)

    monkeypatch.setattr(os, "replace", spy)
    folder.begin({"eps": 0.1}, threads=1)
    assert replaced == [".owner", "environment.json", "config.toml"]
    folder.config.unlink()  # a kill before the last one
    RunFolder.create(folder.path).begin({"eps": 0.2}, threads=1)
    assert read_toml(folder.config)["eps"] == 0.2
    assert folder.is_own()


def test_the_threads_of_the_newest_checkpoint_come_first(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "a")
    assert folder.threads() is None
    folder.begin({}, threads=3)
    assert folder.threads() == 3
    for number, threads in ((1, 2), (2, 4)):
        path = folder.checkpoints / f"last-{number:08d}"
        path.mkdir(parents=True)
        (path / "manifest.json").write_bytes(manifest_bytes({}, {"threads": threads}))
        assert folder.threads() == threads
    (path / "manifest.json").write_bytes(b"damaged")
    assert folder.threads() == 2


def test_folders_that_are_links_are_refused(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "a")
    folder.check_links()
    (tmp_path / "elsewhere").mkdir()
    for path in (folder.evaluation, folder.memory):
        path.symlink_to(tmp_path / "elsewhere")
        with refused("linked-folder", path=path):
            folder.check_links()
        path.unlink()
    folder.checkpoints.rename(tmp_path / "moved")
    folder.checkpoints.symlink_to(tmp_path / "moved")
    with refused("linked-folder", path=folder.checkpoints):
        folder.check_links()


def test_a_failure_ends_its_own_launch_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = a_run(tmp_path / "run")
    folder.keep_failure(InputError("out-missing"))
    assert not folder.failure.exists()  # nobody starts a process again that was started alone
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "here", "TORCHELASTIC_RUN_ID": "first"}.items():
        monkeypatch.setenv(name, value)
    folder.check_failure()
    folder.keep_failure(InputError("out-missing"))
    with refused("launch-failed", path=folder.failure, error="out-missing"):
        folder.check_failure()
    assert [check.result for check in check_folder(folder.path) if check.path == folder.failure] == ["good"]
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "second")
    folder.check_failure()
    folder.forget_failure()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "first")
    folder.check_failure()
