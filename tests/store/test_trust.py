"""Only a folder that this user's own command made, with these settings, may name code to run."""

import os
import shutil
import stat
from pathlib import Path

import pytest

from sihg.store.run_folder import RunFolder
from sihg.store.schema import toml_bytes
from sihg.store.trust import OWNER, check_code, is_own, mark_own, user_key
from tests.refused import refused


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder without a key."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def a_run(path: Path) -> RunFolder:
    folder = RunFolder.create(path)
    folder.begin({"model": "nets.py:make"}, threads=1)
    return folder


def may_name_code(path: Path, *, trust: bool = False) -> bool:
    folder, named = RunFolder(path), {"model": "nets.py:make"}
    check_code(path, folder.config, {}, trust=False)  # no code, no question
    if folder.is_own() or trust:
        check_code(path, folder.config, named, trust=trust)
        return True
    with refused("foreign-code", folder=path, settings=folder.config) as caught:
        check_code(path, folder.config, named, trust=trust)
    assert caught.value.values["code"] == "model nets.py:make"
    return False


def test_the_key_is_made_once_and_only_its_user_can_read_it(state: Path) -> None:
    key = user_key()
    assert key is not None
    assert (len(key), user_key()) == (32, key)
    file = state / "sihg" / "key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["key"]


def test_a_folder_of_ones_own_may_name_code(tmp_path: Path) -> None:
    assert may_name_code(a_run(tmp_path / "a").path)


def test_a_folder_that_was_moved_stays_ones_own(tmp_path: Path) -> None:
    path = a_run(tmp_path / "a").path.rename(tmp_path / "b")
    assert may_name_code(path)
    path.rename(tmp_path / "a")
    assert may_name_code(tmp_path / "a")


def test_a_copy_is_foreign(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "a")
    shutil.copytree(folder.path, tmp_path / "b")
    assert not may_name_code(tmp_path / "b")
    assert may_name_code(tmp_path / "b", trust=True)
    assert may_name_code(folder.path)


def test_changed_settings_are_foreign(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "a")
    before = folder.config.read_bytes()
    folder.config.write_bytes(toml_bytes({"model": "evil.py:make"}))  # with a right seal
    assert not may_name_code(folder.path)
    folder.config.write_bytes(before)
    assert may_name_code(folder.path)


def test_a_mark_of_somebody_else_is_foreign(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = a_run(tmp_path / "a")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    assert not may_name_code(folder.path)
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    for content in (b"", b"0" * 64, b"\xff" * 64, (folder.path / OWNER).read_bytes() + b"0", b"0" * 10_000):
        before = (folder.path / OWNER).read_bytes()
        (folder.path / OWNER).write_bytes(content)
        assert not may_name_code(folder.path)
        (folder.path / OWNER).write_bytes(before)
    (folder.path / OWNER).unlink()
    assert not may_name_code(folder.path)


def test_the_data_folder_of_a_foreign_folder_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    folder = RunFolder.create(tmp_path / "a")
    folder.begin({}, threads=1, data_folder=tmp_path / "data")
    assert folder.data_folder() == tmp_path / "data"
    shutil.copytree(folder.path, tmp_path / "b")
    copy = RunFolder.open(tmp_path / "b")
    assert (copy.data_folder(), copy.data_folder(trust=True)) == (None, tmp_path / "data")
    assert copy.threads() == 1  # which is harmless


def test_without_a_home_there_is_no_key_and_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert user_key() is None
    folder = a_run(tmp_path / "a")
    assert not (folder.path / OWNER).exists()
    assert not may_name_code(folder.path)
    assert may_name_code(folder.path, trust=True)


@pytest.mark.parametrize("kind", ["a file in its way", "a folder", "short", "not hexadecimal", "a pipe", "not ASCII"])
def test_a_key_that_cannot_be_read_is_none(tmp_path: Path, state: Path, kind: str) -> None:
    if kind == "a file in its way":
        state.write_text("")
    else:
        (state / "sihg").mkdir(parents=True)
        file = state / "sihg" / "key"
        if kind == "a folder":
            file.mkdir()
        elif kind == "a pipe":
            os.mkfifo(file)
        else:
            file.write_bytes({"short": b"ab" * 31, "not hexadecimal": b"xy" * 32, "not ASCII": b"\xff" * 64}[kind])
    assert user_key() is None
    mark_own(tmp_path, b"settings")
    assert not (tmp_path / OWNER).exists()
    assert not is_own(tmp_path, tmp_path / "config.toml")


def test_a_relative_state_folder_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert user_key() is not None
    assert (tmp_path / "home" / ".local" / "state" / "sihg" / "key").is_file()
    assert not (tmp_path / "relative").exists()
