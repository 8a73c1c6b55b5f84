"""Tell which data sets are on this machine, and check their files."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec

from sihg.errors import UnknownNameError
from sihg.robust.data import digits
from sihg.robust.data.file_checks import Verdict, examine, md5
from sihg.robust.data.locations import Source, data_folder, locate, usable
from sihg.robust.data.sources import SOURCES


class DataSetStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A named data set, and what this machine has of it."""

    name: str
    about: str
    shape: tuple[int, ...]
    classes: int
    train: int  # samples
    test: int
    state: Literal["bundled", "present", "absent", "partial", "damaged"]  # damaged: a file of an impossible size
    missing: tuple[str, ...]
    path: str


def overview(data_dir: str | Path | None = None) -> list[DataSetStatus]:
    """List the named data sets and what is on this machine of each, without reading the files.

    Args:
        data_dir: The folder of the data files (default: $SIHG_DATA, else the cache folder).
    Returns:
        The status of each data set.
    """
    train, test = digits.load()
    bundled = DataSetStatus(
        name="digits",
        about="handwritten digits",
        shape=train.shape,
        classes=len(train.classes),
        train=len(train),
        test=len(test),
        state="bundled",
        missing=(),
        path="with the package",
    )
    return [bundled, *(_status(source, data_folder(data_dir)) for source in SOURCES.values())]


def check_data_set(name: str, data_dir: str | Path | None = None) -> tuple[list[Verdict], list[str], bool]:
    """Read and hash every file of a set; return verdicts, missing parts, and whether `load` would succeed."""
    if name == "digits":
        verdict = Verdict(digits.PATH, "ok", digits.MD5, md5(digits.PATH.read_bytes()))
        if verdict.found == verdict.expected:
            return [verdict], [], True
        return [replace(verdict, state="damaged", reason="other than in the package: install it again")], [], False
    if name not in SOURCES:
        raise UnknownNameError("data set to check", name, ["digits", *SOURCES])
    source, folder = SOURCES[name], data_folder(data_dir)
    found, missing = locate(source, folder)
    verdicts = [examine(source, path, pieces)[0] for path, pieces in found.items()]
    good = usable(source, missing) and all(verdict.state != "damaged" for verdict in verdicts)
    return verdicts, [part.name for part in missing], good


def _status(source: Source, folder: Path) -> DataSetStatus:
    found, missing = locate(source, folder)
    sizes = [(path.stat().st_size, place.size) for path, pieces in found.items() for _, place in pieces]
    state: Literal["present", "absent", "partial", "damaged"] = "present"
    if any(size == 0 or (expected and size != expected) for size, expected in sizes):
        state = "damaged"
    elif missing:
        state = "partial" if found else "absent"
    where = next(iter(found)) if found else folder / source.published[0].path
    return DataSetStatus(
        name=source.name,
        about=source.about,
        shape=source.shape,
        classes=len(source.classes),
        train=source.n[0],
        test=source.n[1],
        state=state,
        missing=tuple(part.name for part in missing),
        path=str(where.parent),
    )
