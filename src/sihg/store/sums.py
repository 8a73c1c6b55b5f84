"""sums.json: the sums of the files of a solve that carry none of their own: pages, pictures, tables for people.

It is removed before any of these files is written, and written once they are complete, so it never names a file wrong
that only a kill has left half done.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from sihg.errors import InputError
from sihg.store.files import list_names, sha256_of_file, status, temporary_of
from sihg.store.schema import Record, read_record, write_record
from sihg.store.trust import OWNER

NAME = "sums.json"
FOR_PEOPLE = ("history.csv", "table.csv", "costs.csv")  # tables without a sum: nothing reads them again
KINDS = (".md", ".tex", ".html", ".svg", ".png")


class FileSums(Record, frozen=True, kw_only=True):
    """The content of sums.json."""

    sums_with_seconds: dict[str, str]  # SHA-256 by path within the folder; some of these files hold seconds


@contextmanager
def refresh_sums(folder: Path) -> Iterator[None]:
    """Forget the sums of a folder before the block, and write those of its files after it."""
    forget_sums(folder)
    yield
    write_sums(folder)


def forget_sums(folder: Path) -> None:
    """Remove sums.json, before a file that it names is written."""
    path = folder / NAME
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise InputError("cannot-write-file", path=path, reason=error.strerror or error) from error


def write_sums(folder: Path) -> None:
    """Write sums.json for the files in a folder that carry no sum."""
    write_record(folder / NAME, FileSums(sums_with_seconds=_sums_of(folder)))


def accept_edits(folder: Path) -> None:
    """Write sums.json anew for the files that are there. A file that is gone keeps its sum, so it stays missed."""
    earlier = read_record(folder / NAME, FileSums).sums_with_seconds
    write_record(folder / NAME, FileSums(sums_with_seconds=earlier | _sums_of(folder)))


def find_changed(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield each file that sums.json names, with what is wrong with it: "" or a sentence.

    A damaged sums.json yields nothing; it carries a sum of its own, by which it is found.
    """
    path = folder / NAME
    if status(path) is None:
        return
    try:
        sums = read_record(path, FileSums).sums_with_seconds
    except InputError:
        return
    for name, expected in sums.items():
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            continue  # no file of this folder
        yield folder / name, _fault(folder / name, path, expected)


def _fault(path: Path, record: Path, expected: str) -> str:
    try:
        if status(path) is None:
            return str(InputError("sums-file-missing", path=path, record=record))
        return "" if sha256_of_file(path) == expected else str(InputError("seal-wrong", path=path))
    except (InputError, OSError) as error:
        return f"cannot read {path} ({error})"


def _sums_of(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): sha256_of_file(path) for path in _without_sum(folder)}


def _without_sum(folder: Path) -> Iterator[Path]:
    for name in list_names(folder):
        path = folder / name
        if path.is_symlink() or temporary_of(name):
            continue
        if path.is_dir():
            yield from _without_sum(path)
        elif path.suffix in KINDS or name in FOR_PEOPLE or name == OWNER:
            yield path
