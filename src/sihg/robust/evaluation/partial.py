"""What an evaluation has found so far, in a file, so that one that was cut short goes on where it was."""

import json
import math
import os
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sihg.errors import InputError
from sihg.robust.attacks.base import Verdict
from sihg.robust.attacks.runner import Outcome
from sihg.store.files import write_arrays

EVERY = 5.0  # seconds between two writes
ARRAYS = ("attacked", "broken", "prediction", "margin")
PLAIN = ("attack", "passes", "forwards", "seconds", "done", "remark", "proof")


class LedgerWarning(UserWarning):
    """A file of earlier findings that is of no use."""


class FileLedger:
    """Outcomes of one question, kept in `path` every few seconds; `about` tells this question from others.

    With `points`, a .npy file beside it gets the point found for each sample: that of the first attack that broke it,
    else that of smallest margin.
    """

    def __init__(self, path: Path, about: dict[str, Any], points: Path | None = None) -> None:
        self.path, self.points = path, points
        self.about = json.dumps({**about, "points": points is not None}, sort_keys=True)
        self.outcomes = {} if points and not points.is_file() else self._read()
        self.written = time.monotonic()
        self._mapped: np.memmap[Any, Any] | None = None

    def known(self, key: str) -> Outcome | None:
        """The outcome of that key, if some of it is known."""
        found = self.outcomes.get(key)
        return None if found is None else _copy(found)

    def keep(self, key: str, outcome: Outcome, numbers: Tensor, verdict: Verdict) -> None:
        """Remember an outcome; the file follows every few seconds."""
        if self.points:
            self._keep_points(self.points, key, outcome, numbers, verdict.x_adv.detach().cpu())
        self.outcomes[key] = _copy(outcome)
        if time.monotonic() - self.written >= EVERY:
            try:
                self.write()
            except InputError as error:  # a full disk: what is found is still told at the end
                warnings.warn(f"{error}; an evaluation cut short now begins anew", LedgerWarning, stacklevel=2)
                self.written = math.inf

    def _keep_points(self, path: Path, key: str, outcome: Outcome, numbers: Tensor, x_adv: Tensor) -> None:
        n = len(outcome.broken)
        if self._mapped is None:
            self._mapped = _mapped(path, (n, *x_adv.shape[1:]), x_adv.numpy().dtype, fresh=not self.outcomes)
        broken, least = torch.zeros(n, dtype=torch.bool), torch.full((n,), math.inf)
        for one in (one for other, one in self.outcomes.items() if other != key and not one.proof):
            broken |= one.attacked & one.broken
            least = torch.fmin(least, one.margin)
        better = ~broken & (outcome.broken | ~(outcome.margin >= least))
        if outcome.proof:  # finds nothing: the sample itself, until an attack does
            better = ~broken & least.isinf()
        mine = better[numbers]
        self._mapped[numbers[mine].numpy()] = x_adv[mine].numpy()

    def write(self) -> None:
        """Bring the file up to date."""
        if self._mapped is not None:
            self._mapped.flush()
        scalars = {key: {name: getattr(one, name) for name in PLAIN} for key, one in self.outcomes.items()}
        arrays = {f"{key}/{name}": getattr(one, name).numpy() for key, one in self.outcomes.items() for name in ARRAYS}
        text = json.dumps({"about": self.about, "outcomes": scalars})
        write_arrays(self.path, {"text": np.array(text), **arrays}, compressed=False)
        self.written = time.monotonic()

    def forget(self) -> None:
        """Remove the file: the record is written."""
        if self._mapped is not None:
            self._mapped.flush()
        self.path.unlink(missing_ok=True)

    @property
    def verdicts(self) -> int:
        """How many are known."""
        return sum(one.done for one in self.outcomes.values())

    def _read(self) -> dict[str, Outcome]:
        if not self.path.is_file():
            return {}
        try:
            with self.path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                text = json.loads(str(file["text"]))
                if text["about"] != self.about:
                    return {}
                found = {}
                for key, plain in text["outcomes"].items():
                    values: dict[str, Any] = {name: torch.from_numpy(file[f"{key}/{name}"]) for name in ARRAYS}
                    values |= {name: plain[name] for name in PLAIN if name in plain}
                    found[key] = Outcome(**values)
                return found
        except Exception as error:  # whatever a damaged archive may look like
            why = (str(error) or repr(error)).splitlines()[0]
            what = f"{self.path} cannot be read ({why}): the evaluation begins anew"
            warnings.warn(what, LedgerWarning, stacklevel=2)
            return {}


def _copy(outcome: Outcome) -> Outcome:
    """What is added to one is not in the other."""
    return replace(outcome, **{name: getattr(outcome, name).clone() for name in ARRAYS})


def _mapped(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], *, fresh: bool) -> np.memmap[Any, Any]:
    """The array in a file; a new one takes all its place at once, since a disk that fills up later would kill us."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        found = np.lib.format.open_memmap(path, mode="w+" if fresh else "r+", dtype=dtype, shape=shape)
        if fresh and hasattr(os, "posix_fallocate"):
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write {path} ({error}): free the place, or leave out --points") from error
    if found.shape != shape or found.dtype != dtype:
        raise InputError(f"{path} is of {found.shape} {found.dtype}, not {shape} {dtype}: remove it")
    return found
