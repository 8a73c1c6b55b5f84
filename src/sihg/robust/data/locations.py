"""Data sets in files: which files, where they may lie, and where they are published."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sihg.errors import InputError
from sihg.parse import expand_home

if TYPE_CHECKING:
    from sihg.robust.data.samples import Samples

Arrays = tuple[NDArray[np.uint8], ...]


class DataWarning(UserWarning):
    """Data that is used although something about it is missing or unknown.

    Example:
        >>> import warnings
        >>> warnings.simplefilter("error", DataWarning)  # end a script instead of going on
    """


class UnreadableError(Exception):
    """Raised by a reader; the caller adds the file's name, its md5 sums and the remedy."""


@dataclass(frozen=True)
class Published:
    """A file that can be downloaded to `path`, which is relative to the data folder."""

    path: str
    md5: str
    size: int
    urls: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """One file in which a part may lie: `path` below the data folder, `member` inside it if it is an archive."""

    path: str
    member: str = ""
    md5: str = ""  # of the whole file, if it is published
    size: int = 0  # if every good file of this form has it


@dataclass(frozen=True)
class Part:
    """A piece of a data set that is read as a whole, such as the training images."""

    name: str
    shape: tuple[int, ...]  # of its first array
    places: tuple[Place, ...]  # the first that exists is used
    content: str = ""  # md5 of its arrays' bytes in row order, one after the other, if known
    optional: bool = False  # the set can be used, with a warning, without it


@dataclass(frozen=True)
class Source:
    """A data set that lies in published files."""

    name: str
    about: str
    shape: tuple[int, ...]  # of one sample
    classes: tuple[str, ...]
    n: tuple[int, int]  # for training, for testing
    parts: tuple[Part, ...]
    published: tuple[Published, ...]
    read: Callable[[bytes, Sequence["Piece"]], list[Arrays]]  # the arrays of some parts, from the bytes of one file
    join: "Callable[[Source, dict[str, Arrays]], tuple[Samples, Samples]]"  # from the arrays of the parts found
    licence: str = ""  # shown before a download


Piece = tuple[Part, Place]


def data_folder(data_dir: str | Path | None = None) -> Path:
    """Return `data_dir`, else $SIHG_DATA, else sihg/data in the user's cache folder."""
    if data_dir is None:
        data_dir = os.environ.get("SIHG_DATA") or None
    if data_dir is not None:
        return expand_home(data_dir)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or ".cache")
    try:
        return (cache if cache.is_absolute() else Path.home() / ".cache") / "sihg" / "data"
    except RuntimeError:
        raise InputError("no-data-folder") from None


def locate(source: Source, folder: Path) -> tuple[dict[Path, list[Piece]], list[Part]]:
    """Return the pieces found, by file, and the missing parts."""
    found: dict[Path, list[Piece]] = {}
    missing = []
    for part in source.parts:
        for place in part.places:
            path = folder / place.path
            if path.is_file():
                found.setdefault(path, []).append((part, place))
                break
        else:
            missing.append(part)
    return found, missing


def usable(source: Source, missing: Sequence[Part]) -> bool:
    """Return whether the set can be used without the missing parts: optional ones, but not all of them."""
    optional = [part for part in source.parts if part.optional]
    return all(part.optional for part in missing) and (not missing or len(missing) < len(optional))


def missing_error(source: Source, folder: Path, missing: Sequence[Part]) -> InputError:
    """Make the error that names the missing parts, the folders searched, and how to get them."""
    names = ", ".join(part.name for part in missing)
    places = dict.fromkeys(str(Path(place.path).parent) for part in missing for place in part.places)
    return InputError("data-missing", name=source.name, names=names, folder=folder, places=", ".join(places))
