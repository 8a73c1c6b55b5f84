"""Trackio: a local database, in TRACKIO_DIR or the cache folder of Hugging Face; `trackio show` draws it."""

import os
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any
from uuid import uuid4

import trackio
from trackio.sqlite_storage import SQLiteStorage

from sihg.loggers.base import PROJECT, LoggedRun, Logger


class TrackioLogger(Logger):
    """Writes to a run of Trackio, which has a name of its own: Trackio finds runs by their names."""

    _run: Any

    def begin(self, run: LoggedRun, known: Mapping[str, str] | None) -> dict[str, str]:
        """Open the run; what Trackio prints must not get between our results."""
        project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        chosen = dict(known) if known else {"project": project, "name": f"{run.name}-{uuid4().hex[:8]}"}
        with redirect_stdout(sys.stderr):
            self._run = trackio.init(
                **chosen,
                config=dict(run.config),
                resume="never" if known is None else "must",
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )
        return chosen

    def last_steps(self) -> tuple[int, int]:
        """Read them in the database: the writer is another thread."""
        rows = SQLiteStorage.get_logs(self._run.project, self._run.name)
        inside, ends = ([int(row["step"]) for row in rows if name in row] for name in ("step/loss", "loss"))
        return max(inside, default=0), max(ends, default=0)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Add a row of numbers."""
        self._run.log(dict(values), step=step)

    def note(self, title: str, text: str, step: int) -> None:
        """Add a row with a text."""
        self._run.log({title: text}, step=step)

    def end(self, *, finished: bool) -> None:  # noqa: ARG002
        """Wait until all is written."""
        with redirect_stdout(sys.stderr):
            self._run.finish()
