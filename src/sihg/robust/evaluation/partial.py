"""Keep what an evaluation has found so far in a file, so that an interrupted evaluation can continue."""

import json
import math
import os
import secrets
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sihg.errors import InputError
from sihg.robust.attacks.outcome import Outcome
from sihg.robust.attacks.runner import Part
from sihg.robust.attacks.verdict import PointsTo
from sihg.store.arrays import read_arrays, write_arrays
from sihg.store.files import make_parents, open_in_place, status, sync_folder
from sihg.store.run_folder import FolderHandle
from sihg.store.schema import Json
from sihg.store.trust import user_key

SECONDS_BETWEEN_WRITES = 5.0
ARRAYS = ("attacked", "broken", "prediction", "margin", "distance")
VOTED = ("wrong",)  # of random models
SCALARS = ("attack", "passes", "forwards", "seconds", "done", "remark", "proof", "votes")


class EvaluationWarning(UserWarning):
    """A file of an evaluation that could not be read or written; the evaluation itself continues.

    Example:
        >>> import warnings
        >>> warnings.simplefilter("error", EvaluationWarning)  # end a script instead of going on
    """


class PartialResults:
    """The outcomes of one evaluation so far, in NAME.partial.npz, which is written every few seconds.

    Used in a `with` statement, it is also written when the block ends with an exception, such as Ctrl-C.

    Args:
        folder: Where the files go; None keeps everything in memory.
        name: The name of the evaluation's record.
        identity: What tells this evaluation from others. A file of another identity is not used.
        points: Whether to keep the point found for each sample, in NAME.points.npy: that of the first attack that broke
            the sample, else that of the smallest margin.
        nearest: Whether to keep the nearest misclassified point instead, else the sample itself.
        handle: Of the run that gets the files: notices that it was moved, removed or replaced.

    The file is sealed with the user's key: verdicts that somebody else has put there are not used.
    """

    def __init__(
        self,
        folder: Path | None,
        name: str,
        identity: Mapping[str, Json],
        *,
        points: bool = False,
        nearest: bool = False,
        handle: FolderHandle | None = None,
    ) -> None:
        self.path = None if folder is None else folder / f"{name}.partial.npz"
        self.points_path = None if folder is None or not points else folder / f"{name}.points.npy"
        self.identity = json.dumps({**identity, "points": points}, sort_keys=True)
        self._keep_points, self._keep_nearest, self._handle = points, nearest, handle
        self.points_to: PointsTo = "none" if not points else "all" if folder is None else "first"
        self._key = user_key() or secrets.token_bytes()  # without a kept key, an interrupted evaluation starts over
        self._points: NDArray[np.floating] | None = None
        self._outcomes = {} if self.path is None else self._read(self.path)
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
            self._points = map_points(self.points_path)
        return None if self._points is None else torch.from_numpy(self._points)

    def stay_in_memory(self) -> None:
        """Write no files from now on, and keep no points: another process does."""
        self.path = self.points_path = None
        self._keep_points = False

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
                if not self._outcomes:
                    self._check_folder()
                    _make_points(self.points_path, shape, dtype)
                self._points = map_points(self.points_path)
                if self._points.shape != shape or self._points.dtype != dtype:
                    raise InputError("points-file-shape", path=self.points_path, found=self._points.shape, shape=shape)
        broken, least = torch.zeros(n, dtype=torch.bool), torch.full((n,), math.inf)
        nearest = least
        for key, other in self._outcomes.items():
            if key != part.key and not other.proof:
                broken |= other.attacked & other.broken
                least = torch.fmin(least, other.margin)
        better = ~broken & (outcome.broken | ~(outcome.margin >= least))
        if outcome.proof:  # finds no point: the sample itself stands there until an attack finds one
            better = ~broken & least.isinf()
        if self._keep_nearest:
            others = (other.distance for key, other in self._outcomes.items() if key != part.key)
            for distance in others:
                nearest = torch.fmin(nearest, distance)
            better = ~(outcome.distance > nearest)
        mine = better[numbers]
        self._points[numbers[mine].numpy()] = x_adv[mine].numpy()

    def write(self) -> None:
        """Bring the files up to date."""
        if self.path is None:
            return
        self._check_folder()
        self.flush()
        scalars = {key: {name: getattr(found, name) for name in SCALARS} for key, found in self._outcomes.items()}
        arrays = {
            f"{key}/{name}": value.numpy() for key, found in self._outcomes.items() for name, value in _arrays(found)
        }
        text = json.dumps({"about": self.identity, "outcomes": scalars, "points": self._points_inode()})
        write_arrays(self.path, {"text": np.array(text), **arrays}, compressed=False, key=self._key)
        self._written = time.monotonic()

    def remove(self) -> None:
        """Remove the file of outcomes, since the record is written; points stay."""
        self.flush()
        if self.path is not None:
            try:
                self.path.unlink(missing_ok=True)
            except OSError as error:  # the record is there; what remains is not used again
                message = f"{self.path} cannot be removed ({error.strerror or error}): remove it yourself"
                warnings.warn(message, EvaluationWarning, stacklevel=2)

    def flush(self) -> None:
        """Bring the points to the disk, with the name of their file."""
        if isinstance(self._points, np.memmap) and self.points_path is not None:
            try:
                self._points.flush()
                sync_folder(self.points_path.parent)
            except OSError as error:
                raise InputError("cannot-write-points", path=self.points_path, error=error) from error

    def _check_folder(self) -> None:
        if self._handle is not None:
            self._handle.check()

    def _points_inode(self) -> int | None:
        """Return which file holds the points: verdicts and points of two evaluations are never mixed."""
        found = None if self.points_path is None else status(self.points_path)
        return None if found is None else found.st_ino

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
        if status(path) is None:
            return {}
        try:
            arrays = read_arrays(path, key=self._key)
            text = json.loads(str(arrays["text"]))
            if text["about"] == self.identity and text["points"] == self._points_inode():
                found = {}
                for key, scalars in text["outcomes"].items():
                    names = (*ARRAYS, *VOTED) if scalars["votes"] > 1 else ARRAYS
                    tensors = {name: torch.from_numpy(arrays[f"{key}/{name}"]) for name in names}
                    found[key] = Outcome(**(scalars | tensors))
                return found
            why = "it is of other weights, data, attacks, points or another version of sihg"
        except InputError as error:
            why = "it was damaged, or not written by you" if error.code.startswith("seal-") else str(error)
        except (ValueError, KeyError, TypeError) as error:
            why = f"it cannot be read: {(str(error) or repr(error)).split(chr(10))[0]}"
        warnings.warn(f"{path} is not used ({why}): the evaluation starts over", EvaluationWarning, stacklevel=3)
        return {}


def _copy(outcome: Outcome) -> Outcome:
    copies: dict[str, Any] = {name: value.clone() for name, value in _arrays(outcome)}
    return replace(outcome, **copies)


def _arrays(outcome: Outcome) -> list[tuple[str, Tensor]]:
    return [(name, getattr(outcome, name)) for name in ((*ARRAYS, *VOTED) if outcome.votes > 1 else ARRAYS)]


def _make_points(path: Path, shape: tuple[int, ...], dtype: np.dtype[np.floating]) -> None:
    """Make the file of points with its whole space, since a full disk later would kill us; a link is replaced."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        make_parents(path)
        points = np.lib.format.open_memmap(temporary, mode="w+", dtype=dtype, shape=shape)
        points.flush()
        with temporary.open("r+b") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, temporary.stat().st_size)
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except (OSError, ValueError) as error:
        raise InputError("cannot-write-points", path=path, error=error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def map_points(path: Path) -> np.memmap[tuple[int, ...], np.dtype[np.floating]]:
    """Map the file of points, which must be a file of its own."""
    try:
        os.close(open_in_place(path))
        return np.lib.format.open_memmap(path, mode="r+")
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError("cannot-write-points", path=path, error=error) from error
