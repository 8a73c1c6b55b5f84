"""What torchrun's variables say about this process."""

import os

import pytest

from sihg.launch import is_launched, launch_id, rank, world_size


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_alone_there_is_no_launch() -> None:
    assert (is_launched(), rank(), world_size(), launch_id()) == (False, 0, 1, "")


def test_a_launch_has_its_given_name(launched: pytest.MonkeyPatch) -> None:
    launched.setenv("TORCHELASTIC_RUN_ID", "night")
    assert (is_launched(), rank(), world_size(), launch_id()) == (True, 2, 4, "night")


def test_launches_without_a_name_differ_by_their_process_and_its_start(launched: pytest.MonkeyPatch) -> None:
    launched.setenv("TORCHELASTIC_RUN_ID", "none")
    here = launch_id()
    assert here == launch_id()
    assert f"process {os.getppid()} on " in here
    launched.setattr(os, "getppid", os.getpid)
    assert launch_id() != here
