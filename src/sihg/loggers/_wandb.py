"""Weights & Biases: online if this machine is logged in, else in local files, which `wandb sync` uploads."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import wandb
from requests.utils import get_netrc_auth

from sihg.loggers.base import PROJECT, LoggedRun, Logger

MAX_TITLE = 64  # characters of an alert


class WandbLogger(Logger):
    """Writes to a run of W&B. Its own variables, such as WANDB_PROJECT, WANDB_MODE and WANDB_DIR, have their effect."""

    _run: Any

    def begin(self, run: LoggedRun, known: Mapping[str, str] | None) -> dict[str, str]:
        """Open the run; output of the training stays on the terminal alone."""
        known = known or {"id": uuid4().hex[:12], "project": os.environ.get("WANDB_PROJECT", PROJECT)}
        mode = os.environ.get("WANDB_MODE") or ("online" if _is_logged_in() else "offline")
        self._run = wandb.init(
            project=known["project"],
            id=known["id"],
            name=run.name,
            config=dict(run.config),
            mode=mode,
            dir=os.environ.get("WANDB_DIR", str(Path.cwd())),  # else that of an earlier run of this process
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(console="off"),
        )
        return dict(known)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Add a row of history; numbers of the same step share one."""
        self._run.log(dict(values), step=step)

    def note(self, title: str, text: str, step: int) -> None:  # noqa: ARG002
        """Raise an alert for a warning while training; others are texts of the summary."""
        if title == "warnings":
            self._run.alert(title=text[:MAX_TITLE], text=text, level="WARN")
        else:
            earlier = dict(self._run.summary).get(title)
            self._run.summary[title] = f"{earlier}\n{text}" if earlier else text

    def results(self, values: Mapping[str, float], step: int) -> None:  # noqa: ARG002
        """Put numbers into the summary of the run."""
        self._run.summary.update(dict(values))

    def end(self, *, finished: bool) -> None:
        """Close the run; without success if it was interrupted."""
        self._run.finish(exit_code=0 if finished else 1)


def _is_logged_in() -> bool:
    """Return whether there is a key; without one, W&B would ask for it."""
    server = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    return bool(os.environ.get("WANDB_API_KEY")) or get_netrc_auth(server) is not None
