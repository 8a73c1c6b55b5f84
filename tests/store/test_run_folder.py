"""A run never writes over another by accident, and never removes what is not a run's."""

import json
from pathlib import Path

import pytest

from sihg.errors import InputError
from sihg.store.lock import locked
from sihg.store.run_folder import RunFolder


def a_run(path: Path) -> RunFolder:
    folder = RunFolder.create(path)
    folder.write_config({"eps": 8 / 255})
    folder.metrics.write_text("epoch\n1\n")
    (folder.checkpoints / "last-0000001").mkdir(parents=True)
    (folder.checkpoints / "last-0000001" / "manifest.json").write_text("{}")
    return folder


def tree(path: Path) -> set[str]:
    return {str(p.relative_to(path)) for p in path.rglob("*")}


def test_a_new_folder_takes_config_and_environment(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "runs" / "a")
    folder.write_config({"eps": 8 / 255, "tau": None}, {"eps": "radius"})
    folder.write_environment({"threads": 2})
    again = RunFolder.open(str(tmp_path / "runs" / "a"))
    assert again.read_config() == {"eps": 8 / 255}
    found = json.loads(again.environment.read_text())
    assert found["threads"] == 2
    assert "torch" in found
    assert tree(folder.path) == {"config.toml", "environment.json"}


def test_every_path_is_a_known_name() -> None:
    folder = RunFolder("x")
    paths = {p.name for p in vars(folder).values() if p != folder.path}
    report = {"index.html", "report"}
    assert paths | report == set(RunFolder.NAMES)
    assert RunFolder.NAMES[-1] == "config.toml"


def test_an_earlier_run_is_refused_with_remedies(tmp_path: Path) -> None:
    path = a_run(tmp_path / "my run").path
    before = tree(path)
    with pytest.raises(InputError, match=r"already has a run: go on .*`sihg resume '.*my run'`.*--overwrite.*--out"):
        RunFolder.create(path)
    assert tree(path) == before


def test_overwrite_removes_a_run_and_nothing_else(tmp_path: Path) -> None:
    path = a_run(tmp_path / "a").path
    (path / "notes.txt").write_text("mine")
    before = tree(path)
    with pytest.raises(InputError, match=r"has notes\.txt, which no run writes: move it away"):
        RunFolder.create(path, overwrite=True)
    assert tree(path) == before
    (path / "notes.txt").unlink()
    (path / ".config.toml.abcd").write_text("cut sh")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("kept")
    (path / "memory").symlink_to(elsewhere)
    RunFolder.create(path, overwrite=True)
    assert tree(path) == {".lock"}
    assert (elsewhere / "kept").read_text() == "kept"


def test_overwrite_refuses_a_folder_that_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "checkpoints").mkdir()
    for overwrite in (False, True):
        with pytest.raises(InputError, match=r"not empty \(it has checkpoints\) and is not a run folder: choose"):
            RunFolder.create(tmp_path, overwrite=overwrite)
    assert tree(tmp_path) == {"thesis.tex", "checkpoints"}


def test_overwrite_refuses_a_run_in_use(tmp_path: Path) -> None:
    path = a_run(tmp_path / "a").path
    with locked(path), pytest.raises(InputError, match="is in use by process"):
        RunFolder.create(path, overwrite=True)
    assert (path / "metrics.csv").exists()


def test_a_folder_with_only_a_lock_or_a_half_config_is_new(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / ".config.toml.x1y2").write_text("eps =")
    assert RunFolder.create(tmp_path).path == tmp_path


def test_what_cannot_be_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot make the run folder .*file \(it is a file\): choose another --out"):
        RunFolder.create(tmp_path / "file")
    with pytest.raises(InputError, match=r"cannot make the run folder .*below \(Not a directory\)"):
        RunFolder.create(tmp_path / "file" / "below")
    with pytest.raises(InputError, match="is a file, not a run folder"):
        RunFolder.open(tmp_path / "file")


def test_open_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere does not exist: give the folder"):
        RunFolder.open(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"has no config\.toml, so it is not a run folder"):
        RunFolder.open(tmp_path)


def test_where_the_data_was_is_known_as_long_as_it_is_there(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    assert (folder.read_environment(), folder.data_folder()) == ({}, None)
    (tmp_path / "data").mkdir()
    folder.write_environment({"data_folder": str(tmp_path / "data")})
    assert folder.data_folder() == tmp_path / "data"
    (tmp_path / "data").rmdir()
    assert folder.data_folder() is None
    for damaged in ("[1]", "{", ""):
        folder.environment.write_text(damaged)
        assert folder.read_environment() == {}


def test_clearing_takes_what_a_run_wrote(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "a")
    (folder.path / "notes.txt").write_text("mine")
    folder.clear(whole=False)
    assert tree(folder.path) == {"notes.txt"}
    folder.clear(whole=True)
    assert not folder.path.exists()
