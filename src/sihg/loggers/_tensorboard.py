"""TensorBoard, through tensorboardX: event files in the folder `tensorboard` of the run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

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
        self._writer = SummaryWriter(str(place), filename_suffix=ENDING)
        if known is None:
            rows = "\n".join(f"| {name} | `{value}` |" for name, value in run.config.items())
            self.note("config", f"| setting | value |\n|---|---|\n{rows}", 0)
        return {"folder": FOLDER}

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
