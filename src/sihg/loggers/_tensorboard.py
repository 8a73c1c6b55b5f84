"""TensorBoard, through tensorboardX: event files in the folder `tensorboard` of the run."""

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter
from tensorboardX.proto.event_pb2 import Event

from sihg.errors import InputError
from sihg.loggers.base import LoggedRun, Logger
from sihg.store.files import refuse_link

FOLDER, ENDING = "tensorboard", ".events"


class TensorBoardLogger(Logger):
    """Writes event files. TensorBoard merges all files of a folder, so a resumed run adds one."""

    _writer: Any

    def begin(self, run: LoggedRun, known: Mapping[str, str] | None) -> dict[str, str]:
        """Open a new file of events."""
        if run.folder is None:
            raise InputError("logger-without-folder", name="tensorboard")
        place = Path(run.folder, FOLDER)
        refuse_link(place)
        number = len(list(place.glob(f"*{ENDING}")))  # names have whole seconds: two of one second would be one file
        self._writer = SummaryWriter(str(place), filename_suffix=f".{number}{ENDING}")
        if known is None:
            rows = "\n".join(f"| {name} | `{value}` |" for name, value in run.config.items())
            self.note("config", f"| setting | value |\n|---|---|\n{rows}", 0)
        return {"folder": FOLDER}

    def last_steps(self) -> tuple[int, int]:
        """Read them in the files: the writer is another thread."""
        last = {"step/loss": 0, "loss": 0}
        for file in Path(self._writer.logdir).glob(f"*{ENDING}"):
            for event in _events(file.read_bytes()):
                for value in event.summary.value:
                    if value.tag in last:
                        last[value.tag] = max(last[value.tag], event.step)
        return last["step/loss"], last["loss"]

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write scalars, in float32 as TensorBoard has them."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def note(self, title: str, text: str, step: int) -> None:
        """Write a text."""
        self._writer.add_text(title, text, step)
        self._writer.flush()

    def end(self, *, finished: bool) -> None:  # noqa: ARG002
        """Close the file."""
        self._writer.close()


def _events(content: bytes) -> Iterator[Any]:
    """Yield the events of a file: each after its length and a checksum, before another; the last may be cut short."""
    at = 0
    while at + 12 <= len(content):
        (size,) = struct.unpack("<Q", content[at : at + 8])
        if at + 16 + size > len(content):
            return
        yield Event.FromString(content[at + 12 : at + 12 + size])
        at += 16 + size
