"""Weights & Biases: online if this machine is logged in, else in local files, which `wandb sync` uploads."""

import json
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import wandb
from requests.utils import get_netrc_auth
from wandb.proto.wandb_internal_pb2 import Record

from sihg.loggers.base import PROJECT, LoggedRun, Logger

HEADER_BYTES, RECORD_HEADER_BYTES, BLOCK_BYTES = 7, 7, 2**15  # of a .wandb file
WHOLE_OR_LAST = (1, 4)  # kinds of parts that end a record
MAX_TITLE = 64  # characters of an alert


class WandbLogger(Logger):
    """Writes to a run of W&B. Its own variables, such as WANDB_PROJECT, WANDB_MODE and WANDB_DIR, have their effect."""

    _run: Any
    _known: dict[str, str]

    def begin(self, run: LoggedRun, known: Mapping[str, str] | None) -> dict[str, str]:
        """Open the run; output of the training stays on the terminal alone."""
        folder = os.environ.get("WANDB_DIR", str(Path.cwd()))  # W&B would take that of an earlier run of this process
        new = {"id": uuid4().hex[:12], "project": os.environ.get("WANDB_PROJECT", PROJECT), "dir": folder}
        self._known = known = dict(known or new)
        mode = os.environ.get("WANDB_MODE") or ("online" if _is_logged_in() else "offline")
        self._run = wandb.init(
            project=known["project"],
            id=known["id"],
            name=run.name,
            config=dict(run.config),
            mode=mode,
            dir=known["dir"],
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(console="off"),
        )
        return known

    def last_steps(self) -> tuple[int, int]:
        """Ask the server, or read them in the files of this run: the writer is another process."""
        if not self._run.offline:
            step = int(self._run.starting_step) - 1
            return step, step
        last = {"step/loss": 0, "loss": 0}
        place = Path(self._known["dir"], "wandb")
        for file in place.glob(f"offline-run-*-{self._known['id']}/*.wandb"):
            for row in _history(file.read_bytes()):
                for name in last.keys() & row.keys():
                    last[name] = max(last[name], int(row["_step"]))
        return last["step/loss"], last["loss"]

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


def _history(content: bytes) -> Iterator[dict[str, Any]]:
    """Yield the rows of history in a .wandb file; the last record may be cut short."""
    for data in _records(content):
        record = Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            yield {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def _records(content: bytes) -> Iterator[bytes]:
    """Yield the records: after a header, LevelDB's log format, in blocks that records do not cross undivided."""
    at, parts = HEADER_BYTES, b""
    while at + RECORD_HEADER_BYTES <= len(content):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < RECORD_HEADER_BYTES:
            at += left
            continue
        size, kind = struct.unpack("<HB", content[at + 4 : at + RECORD_HEADER_BYTES])  # after a checksum
        at += RECORD_HEADER_BYTES
        if at + size > len(content):
            return
        parts += content[at : at + size]
        at += size
        if kind in WHOLE_OR_LAST:
            yield parts
            parts = b""
