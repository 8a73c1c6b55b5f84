"""Check that data files are those of the publisher. The rule, for every set:

- ok: the file has the md5 that its publisher gives, or the arrays in it have the known md5 of that part (the same data
  unpacked or packed again).
- damaged: it cannot be read in full (sizes, magic numbers, label ranges, the CRC of gzip), or the md5 of its arrays is
  known and differs. Never used.
- unknown: it can be read, but its md5 is not a published one, and that of its arrays is not known. Used with a warning.

Files are hashed once: the verdict is kept with the file's size and time in `.sihg-checked.json` in the data folder.
`sihg data check` hashes them again.
"""

import hashlib
import json
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sihg.errors import InputError
from sihg.robust.data.locations import Arrays, DataWarning, Piece, Source, UnreadableError
from sihg.store.files import write_text

MEMORY = ".sihg-checked.json"


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
        sums = f"md5 expected {self.expected or 'unknown'}, found {self.found}"
        if self.state == "unknown":
            return f"{self.path} reads well, but is not a published file ({sums})"
        return f"{self.path} is damaged ({self.reason}; {sums})"


def md5(path: Path) -> str:
    """Return the md5 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def content_md5(arrays: Arrays) -> str:
    """Return the md5 of arrays: their bytes in row order, one array after the other."""
    digest = hashlib.md5(usedforsecurity=False)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def read_checked(source: Source, path: Path, pieces: Sequence[Piece], folder: Path) -> list[Arrays]:
    """Read pieces of one file; raise InputError if it is damaged, warn if it is unknown."""
    verdict, arrays = examine(source, path, pieces, folder)
    if verdict.state == "damaged":
        raise InputError("data-damaged", path=str(path), verdict=verdict, name=source.name)
    if verdict.state == "unknown":
        warnings.warn(f"{verdict}: used as it is", DataWarning, stacklevel=4)
    return arrays


def examine(
    source: Source, path: Path, pieces: Sequence[Piece], folder: Path, *, afresh: bool = False
) -> tuple[Verdict, list[Arrays]]:
    """Read pieces of one file and check it; `afresh` ignores the result of an earlier check."""
    parts = [part.name for part, _ in pieces]
    expected = pieces[0][1].md5
    try:
        stamp = _stamp(path)
        try:
            arrays = source.read(path, pieces)
        except UnreadableError as error:
            return Verdict(path, "damaged", expected, md5(path), str(error)), []
        if not afresh and (known := _remembered(folder, path, parts)):
            return Verdict(path, known["state"], expected, known["md5"]), arrays
        verdict = Verdict(path, "ok", expected, md5(path))
    except OSError as error:
        raise InputError("data-unreadable", path=str(path), reason=error.strerror or error) from error
    if verdict.found != expected:
        verdict = _by_content(verdict, pieces, arrays)
    if verdict.state != "damaged":
        _remember(folder, path, parts, stamp, verdict)
    return verdict, arrays


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


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _key(folder: Path, path: Path) -> str:
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _load(folder: Path) -> dict[str, Any]:
    try:
        entries = json.loads((folder / MEMORY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _remembered(folder: Path, path: Path, parts: Sequence[str]) -> dict[str, Any] | None:
    """Return the result of an earlier check if the file has not changed since."""
    entry = _load(folder).get(_key(folder, path))
    match entry:
        case {"size": size, "mtime_ns": time, "state": "ok" | "unknown", "md5": str(), "parts": list(checked)}:
            return entry if (size, time) == _stamp(path) and set(parts) <= set(checked) else None
    return None


def _remember(folder: Path, path: Path, parts: Sequence[str], stamp: tuple[int, int], verdict: Verdict) -> None:
    entry = {"size": stamp[0], "mtime_ns": stamp[1], "state": verdict.state, "md5": verdict.found, "parts": list(parts)}
    with suppress(InputError):  # a read-only folder: hash again next time
        write_text(folder / MEMORY, json.dumps({**_load(folder), _key(folder, path): entry}, indent=1) + "\n")
