"""Check that data files are those of the publisher. The rule, for every set:

- ok: the file has the md5 that its publisher gives, or the arrays in it have the known md5 of that part (the same data
  unpacked or packed again).
- damaged: it cannot be read in full (sizes, magic numbers, label ranges, the CRC of gzip), or the md5 of its arrays is
  known and differs. Never used.
- unknown: it can be read, but its md5 is not a published one, and that of its arrays is not known. Used with a warning.

A file is hashed whenever it is read, and the bytes that were hashed are those that are parsed. For the 184 MB of
CIFAR-10, md5 takes 0.4 s (440 MB/s, measured on one core). Nothing is remembered in the data folder: whoever can change
a data file there could change the memory of its check as well.
"""

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np

from sihg.errors import InputError
from sihg.robust.data.locations import Arrays, DataWarning, Piece, Source, UnreadableError
from sihg.store.files import read_regular

MAX_BYTES_PER_VALUE = 2  # of a file; packing again or pickling makes it at most a little larger than its values
SPARE_BYTES = 2**20  # of a file, for names and headers


@dataclass(frozen=True)
class Verdict:
    """The result of a check: state is ok, unknown or damaged; `expected` and `found` are md5 sums."""

    path: Path
    state: str
    expected: str
    found: str
    reason: str = ""

    def __str__(self) -> str:
        if self.state == "ok":
            packed = "" if self.found == self.expected else " (the published values in another packing)"
            return f"{self.path}: md5 {self.found}{packed}"
        sums = f"md5 expected {self.expected or 'unknown'}, found {self.found or 'none, since it was not read'}"
        if self.state == "unknown":
            return f"{self.path} reads well, but is not a published file ({sums})"
        return f"{self.path} is damaged ({self.reason}; {sums})"


def md5(data: bytes) -> str:
    """Return the md5 of the bytes of a file."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def content_md5(arrays: Arrays) -> str:
    """Return the md5 of arrays: their bytes in row order, one array after the other."""
    digest = hashlib.md5(usedforsecurity=False)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def read_checked(source: Source, path: Path, pieces: Sequence[Piece]) -> list[Arrays]:
    """Read pieces of one file; raise InputError if it is damaged, warn if it is unknown."""
    verdict, arrays = examine(source, path, pieces)
    if verdict.state == "damaged":
        raise InputError("data-damaged", path=str(path), verdict=verdict, name=source.name)
    if verdict.state == "unknown":
        warnings.warn(f"{verdict}: used as it is", DataWarning, stacklevel=5)
    return arrays


def examine(source: Source, path: Path, pieces: Sequence[Piece]) -> tuple[Verdict, list[Arrays]]:
    """Read pieces of one file once, hash its bytes and parse them."""
    verdict = Verdict(path, "damaged", pieces[0][1].md5, "")
    try:
        data = read_regular(path, max_bytes(source, pieces))
    except InputError as error:  # a pipe, a device, or too large
        return replace(verdict, reason=error.code.replace("-", " ")), []
    except OSError as error:
        raise InputError("data-unreadable", path=str(path), reason=error.strerror or error) from error
    verdict = replace(verdict, found=md5(data))
    try:
        arrays = source.read(data, pieces)
    except UnreadableError as error:
        return replace(verdict, reason=str(error)), []
    if verdict.found != verdict.expected:
        return _by_content(replace(verdict, state="ok"), pieces, arrays), arrays
    return replace(verdict, state="ok"), arrays


def max_bytes(source: Source, pieces: Sequence[Piece]) -> int:
    """Return the most bytes that a file with these pieces may have; an archive may hold all parts of the set."""
    parts = source.parts if pieces[0][1].member else [part for part, _ in pieces]
    return MAX_BYTES_PER_VALUE * sum(prod(part.shape) for part in parts) + SPARE_BYTES


def _by_content(verdict: Verdict, pieces: Sequence[Piece], arrays: Sequence[Arrays]) -> Verdict:
    """Decide by the md5 of the arrays, where that of the file is not the published one."""
    for (part, _), content in zip(pieces, arrays, strict=True):
        if not part.content:
            verdict = replace(verdict, state="unknown")
        elif (found := content_md5(content)) != part.content:
            reason = f"other values than published in {part.name}"
            if verdict.expected:
                return replace(verdict, state="damaged", reason=reason)
            return replace(
                verdict, state="damaged", reason=f"{reason}; of the values", expected=part.content, found=found
            )
    return verdict
