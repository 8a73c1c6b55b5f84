"""What an evaluation has found so far, in a file, so that one that was cut short goes on where it was."""

import json
import math
import time
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sihg.errors import InputError
from sihg.robust.attacks.attack import Verdict
from sihg.robust.cascade import Outcome
from sihg.runs.files import write_whole

EVERY = 5.0  # seconds between two writes
ARRAYS = ("attacked", "broken", "prediction", "margin")
NUMBERS = ("passes", "forwards", "seconds", "done")


class LedgerWarning(UserWarning):
    """A file of earlier findings that is of no use."""


class FileLedger:
    """Outcomes of one question, kept in `path` every few seconds; `about` tells this question from others.

    With `points`, a .npy file beside it gets the point found for each sample: that of the first attack that broke it,
    else that of the last one.
    """

    def __init__(self, path: Path, about: dict[str, Any], points: Path | None = None) -> None:
        self.path, self.about, self.points = path, json.dumps(about, sort_keys=True), points
        self.outcomes = self._read()
        self.written = time.monotonic()
        self._mapped: np.memmap[Any, Any] | None = None

    def known(self, key: str) -> Outcome | None:
        """The outcome of that key, if some of it is known."""
        return self.outcomes.get(key)

    def keep(self, key: str, outcome: Outcome, numbers: Tensor, verdict: Verdict) -> None:
        """Remember an outcome; the file follows every few seconds."""
        if self.points:
            self._keep_points(self.points, numbers, verdict.x_adv.cpu(), len(outcome.broken))
        self.outcomes[key] = outcome
        if time.monotonic() - self.written >= EVERY:
            try:
                self.write()
            except InputError as error:  # a full disk: what is found is still told at the end
                warnings.warn(f"{error}; an evaluation cut short now begins anew", LedgerWarning, stacklevel=2)
                self.written = math.inf

    def _keep_points(self, path: Path, numbers: Tensor, x_adv: Tensor, n: int) -> None:
        if self._mapped is None:
            shape, dtype = (n, *x_adv.shape[1:]), x_adv.numpy().dtype
            mode = "r+" if self.outcomes and path.is_file() else "w+"
            self._mapped = np.lib.format.open_memmap(path, mode=mode, dtype=dtype, shape=shape)
        known = torch.zeros(n, dtype=torch.bool)
        for one in self.outcomes.values():
            known |= one.attacked & one.broken
        mine = ~known[numbers]
        self._mapped[numbers[mine].numpy()] = x_adv[mine].numpy()

    def write(self) -> None:
        """Bring the file up to date."""
        if self._mapped is not None:
            self._mapped.flush()
        scalars = {key: {name: getattr(one, name) for name in NUMBERS} for key, one in self.outcomes.items()}
        arrays = {f"{key}/{name}": getattr(one, name).numpy() for key, one in self.outcomes.items() for name in ARRAYS}
        text = json.dumps({"about": self.about, "outcomes": scalars})

        def save(path: Path) -> None:
            with path.open("wb") as file:
                np.savez(file, text=np.array(text), **arrays)

        write_whole(self.path, save)
        self.written = time.monotonic()

    def forget(self) -> None:
        """Remove the file: the record is written."""
        self.path.unlink(missing_ok=True)

    @property
    def verdicts(self) -> int:
        """How many are known."""
        return sum(one.done for one in self.outcomes.values())

    def _read(self) -> dict[str, Outcome]:
        if not self.path.is_file():
            return {}
        try:
            with np.load(self.path, allow_pickle=False) as file:
                text = json.loads(str(file["text"]))
                if text["about"] != self.about:
                    return {}
                found = {}
                for key, numbers in text["outcomes"].items():
                    values: dict[str, Any] = {name: torch.from_numpy(file[f"{key}/{name}"]) for name in ARRAYS}
                    values |= {name: numbers[name] for name in NUMBERS}
                    found[key] = Outcome(attack=key.rpartition(": ")[2], **values)
                return found
        except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
            what = f"{self.path} cannot be read ({error}): the evaluation begins anew"
            warnings.warn(what, LedgerWarning, stacklevel=2)
            return {}
