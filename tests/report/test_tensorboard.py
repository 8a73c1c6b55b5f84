"""What TensorBoard is given is what metrics.csv says."""

import struct
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from sihg.cli.main import main
from sihg.report.tensorboard import write_events
from tests.report.folders import rows, write_run

pytest.importorskip("tensorboardX", reason="the extra sihg[tensorboard] is not installed")


def scalars(folder: Path) -> dict[tuple[str, int], tuple[float, float]]:
    """By name and step: the value, and the time."""
    event_of: Any = import_module("tensorboardX.proto.event_pb2").Event.FromString
    (file,) = folder.glob("events.out.tfevents.*")
    content, found = file.read_bytes(), {}
    while content:
        (size,) = struct.unpack("<Q", content[:8])
        event = event_of(content[12 : 12 + size])  # after the length and its checksum
        for value in event.summary.value:
            found[value.tag, event.step] = (value.simple_value, event.wall_time)
        content = content[16 + size :]
    return found


def test_every_number_of_every_epoch_is_there(tmp_path: Path) -> None:
    done = rows([0.5, None, 0.875], [0.25, None, 0.5])
    write_run(tmp_path / "a", done)
    write_run(tmp_path / "b", done[:1])
    for _ in range(2):  # written again, not twice
        assert write_events(tmp_path) == [tmp_path / "report" / "tensorboard" / name for name in ("a", "b")]
    found = scalars(tmp_path / "report" / "tensorboard" / "a")
    numbers = {(key, row["step"]): (row[key], row["seconds"]) for row in done for key in row if key != "step"}
    assert found == {at: pytest.approx(value) for at, value in numbers.items() if value[0] is not None}
    assert len(scalars(tmp_path / "report" / "tensorboard" / "b")) == 9


def test_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "a")
    assert main(["report", str(run), "--tensorboard"]) == 0
    assert str(run / "report" / "tensorboard" / "a") in capsys.readouterr().out
    assert main(["report", str(run)]) == 0  # which leaves them
    assert scalars(run / "report" / "tensorboard" / "a")
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    assert main(["report", str(run), "--tensorboard"]) == 2
    assert "pip install 'sihg[tensorboard]'" in capsys.readouterr().err
