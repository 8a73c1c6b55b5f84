"""Keep what an evaluation has found so far in a file, so that an interrupted evaluation can continue."""

import json
import math
import os
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sihg.errors import InputError
from sihg.robust.attacks.runner import Outcome, Part
from sihg.store.arrays import write_arrays
from sihg.store.files import make_parents
from sihg.store.schema import Json

SECONDS_BETWEEN_WRITES = 5.0
ARRAYS = ("attacked", "broken", "prediction", "margin")
SCALARS = ("attack", "passes", "forwards", "seconds", "done", "remark", "proof")


class EvaluationWarning(UserWarning):
    """A file of an evaluation that could not be read or written; the evaluation itself continues."""


class PartialResults:
    """The outcomes of one evaluation so far, in NAME.partial.npz, which is written every few seconds.

    Used in a `with` statement, it is also written when the block ends with an exception, such as Ctrl-C.

    Args:
        folder: Where the files go; None keeps everything in memory.
        name: The name of the evaluation's record.
        identity: What tells this evaluation from others. A file of another identity is not used.
        points: Whether to keep the point found for each sample, in NAME.points.npy: that of the first attack that broke
            the sample, else that of the smallest margin.
    """

    def __init__(self, folder: Path | None, name: str, identity: Mapping[str, Json], *, points: bool = False) -> None:
        self.path = None if folder is None else folder / f"{name}.partial.npz"
        self.points_path = None if folder is None or not points else folder / f"{name}.points.npy"
        self.identity = json.dumps({**identity, "points": points}, sort_keys=True)
        self._keep_points = points
        self._points: NDArray[np.floating] | None = None
        lost_points = self.points_path is not None and not self.points_path.is_file()
        self._outcomes = {} if self.path is None or lost_points else self._read(self.path)
        self._written = time.monotonic()

    def known(self) -> dict[str, Outcome]:
        """Return copies of the outcomes so far, by the key of the attack."""
        return {key: _copy(outcome) for key, outcome in self._outcomes.items()}

    @property
    def verdicts(self) -> int:
        """How many verdicts on samples are known."""
        return sum(outcome.done for outcome in self._outcomes.values())

    @property
    def points(self) -> Tensor | None:
        """The point found for each sample; None if they are not kept, or nothing was attacked yet."""
        if self._points is None and self.points_path is not None and self._outcomes:
            self._points = np.load(self.points_path, mmap_mode="r+")
        return None if self._points is None else torch.from_numpy(self._points)

    def keep(self, part: Part) -> None:
        """Remember a part of an attack; the file follows every few seconds."""
        if part.verdict is None:
            return
        if self._keep_points:
            self._update_points(part, part.verdict.x_adv.detach().cpu())
        self._outcomes[part.key] = _copy(part.outcome)
        if self.path is not None and time.monotonic() - self._written >= SECONDS_BETWEEN_WRITES:
            try:
                self.write()
            except InputError as error:  # such as a full disk: the results are still shown at the end
                message = f"{error}; if this evaluation is interrupted, it starts over"
                warnings.warn(message, EvaluationWarning, stacklevel=2)
                self._written = math.inf

    def _update_points(self, part: Part, x_adv: Tensor) -> None:
        outcome, numbers = part.outcome, part.numbers
        n = len(outcome.broken)
        if self._points is None:
            shape, dtype = (n, *x_adv.shape[1:]), x_adv.numpy().dtype
            if self.points_path is None:
                self._points = np.zeros(shape, dtype)
            else:
                self._points = _map_points(self.points_path, shape, dtype, fresh=not self._outcomes)
        broken, least = torch.zeros(n, dtype=torch.bool), torch.full((n,), math.inf)
        for key, other in self._outcomes.items():
            if key != part.key and not other.proof:
                broken |= other.attacked & other.broken
                least = torch.fmin(least, other.margin)
        better = ~broken & (outcome.broken | ~(outcome.margin >= least))
        if outcome.proof:  # finds no point: the sample itself stands there until an attack finds one
            better = ~broken & least.isinf()
        mine = better[numbers]
        self._points[numbers[mine].numpy()] = x_adv[mine].numpy()

    def write(self) -> None:
        """Bring the files up to date."""
        self._flush()
        if self.path is None:
            return
        scalars = {key: {name: getattr(found, name) for name in SCALARS} for key, found in self._outcomes.items()}
        arrays = {
            f"{key}/{name}": getattr(found, name).numpy() for key, found in self._outcomes.items() for name in ARRAYS
        }
        text = json.dumps({"about": self.identity, "outcomes": scalars})
        write_arrays(self.path, {"text": np.array(text), **arrays}, compressed=False)
        self._written = time.monotonic()

    def remove(self) -> None:
        """Remove the file of outcomes, since the record is written; points stay."""
        self._flush()
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _flush(self) -> None:
        if isinstance(self._points, np.memmap):
            self._points.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self.verdicts:
            try:
                self.write()
            except InputError as error:
                warnings.warn(f"the results so far are lost: {error}", EvaluationWarning, stacklevel=2)
                self._outcomes.clear()

    def _read(self, path: Path) -> dict[str, Outcome]:
        if not path.is_file():
            return {}
        try:
            with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                text = json.loads(str(file["text"]))
                if text["about"] == self.identity:
                    found = {}
                    for key, scalars in text["outcomes"].items():
                        arrays = {name: torch.from_numpy(file[f"{key}/{name}"]) for name in ARRAYS}
                        found[key] = Outcome(**(scalars | arrays))
                    return found
            why = "it is of other weights, data, attacks or another version of sihg"
        except Exception as error:  # a damaged archive can raise anything
            why = f"it cannot be read: {(str(error) or repr(error)).splitlines()[0]}"
        warnings.warn(f"{path} is not used ({why}): the evaluation starts over", EvaluationWarning, stacklevel=3)
        return {}


def _copy(outcome: Outcome) -> Outcome:
    return replace(outcome, **{name: getattr(outcome, name).clone() for name in ARRAYS})


def _map_points(
    path: Path, shape: tuple[int, ...], dtype: np.dtype[np.floating], *, fresh: bool
) -> NDArray[np.floating]:
    """Map the file of points; a new one takes its whole space at once, since a full disk later would kill us."""
    try:
        make_parents(path)
        points = np.lib.format.open_memmap(path, mode="w+" if fresh else "r+", dtype=dtype, shape=shape)
        if fresh and hasattr(os, "posix_fallocate"):
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    except (OSError, ValueError) as error:
        raise InputError("cannot-write-points", path=path, error=error) from error
    found = points.shape
    if found != shape or points.dtype != dtype:
        raise InputError("points-file-shape", path=path, found=found, shape=shape)
    return points
