"""Files of TensorBoard's logger."""

import time
from pathlib import Path

import pytest

from sihg.loggers.base import LoggedRun

pytest.importorskip("tensorboardX", reason="the extra sihg[tensorboard] is not installed")

from sihg.loggers._tensorboard import TensorBoardLogger


def test_writers_that_begin_within_a_second_do_not_share_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1.0e9)
    known = None
    for step in (1, 2, 3):
        logger = TensorBoardLogger()
        known = logger.begin(LoggedRun("run", {}, tmp_path), known)
        assert logger.last_steps() == (0, step - 1)
        logger.scalars({"loss": 0.5}, step)
        logger.end(finished=True)
    assert len(list((tmp_path / "tensorboard").iterdir())) == 3
