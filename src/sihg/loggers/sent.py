"""What each logger has received of a run: loggers.jsonl, so that a resumed run repeats nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from sihg.errors import InputError
from sihg.store.files import status
from sihg.store.tables import JsonLines, read_json_lines

NAME = "loggers.jsonl"


class SentLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of loggers.jsonl."""

    to: tuple[str, ...]  # names of loggers
    known: dict[str, str] | None = None  # what it takes to continue the logger's run, which began here
    live: int | None = None  # the step whose numbers were sent
    epoch: int | None = None  # the step at the end of an epoch whose row of metrics.csv was sent
    warning: str | None = None


@dataclass
class Received:
    """What one logger has received."""

    known: dict[str, str] | None = None
    live: int = 0
    epoch: int = 0
    warnings: set[str] = field(default_factory=set)

    def add(self, line: SentLine) -> None:
        """Take one more line into account."""
        self.known = line.known or self.known
        self.live = max(self.live, line.live or 0)
        self.epoch = max(self.epoch, line.epoch or 0)
        self.warnings |= {line.warning} if line.warning else set()

    def correct(self, live: int, epoch: int) -> None:
        """Go back to the last steps that the logger really has; warnings may be of the epochs that it lost."""
        if epoch < self.epoch:
            self.warnings.clear()
        self.live, self.epoch = min(self.live, live), min(self.epoch, epoch)


class Sent:
    """What all loggers of a run have received.

    Args:
        folder: The run folder; None to keep nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder, self.by_name = folder, dict[str, Received]()
        for line in _read(folder):
            for name in line.to:
                self.by_name.setdefault(name, Received()).add(line)
        self._lines: JsonLines | None = None  # made by the first line: an evaluation only reads

    def of(self, name: str) -> Received:
        """Return what a logger has received."""
        return self.by_name.setdefault(name, Received())

    def add(self, to: Sequence[str], **what: object) -> None:
        """Note that loggers have received something."""
        line = msgspec.convert({"to": tuple(to), **what}, SentLine)
        for name in to:
            self.of(name).add(line)
        if self.folder is not None and to:
            self._lines = self._lines or JsonLines(self.folder / NAME)
            content: Mapping[str, object] = msgspec.to_builtins(line)
            self._lines.append(content)


def _read(folder: Path | None) -> list[SentLine]:
    if folder is None or status(folder / NAME) is None:
        return []
    path = folder / NAME
    try:
        return [msgspec.convert(line, SentLine) for line in read_json_lines(path, sealed=True)]
    except msgspec.ValidationError as error:
        raise InputError("loggers-unreadable", path=path, error=error) from error
