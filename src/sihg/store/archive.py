"""Keep the records of many runs in one zip file, and read them from there.

Records are settings, tables, logs and evaluations: what tables and figures are made of. Weights, perturbation memories,
pictures and verdicts per sample stay behind.
"""

import io
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from sihg.errors import InputError
from sihg.store.files import MAX_TEXT_BYTES, list_names, read_regular, status, write_bytes
from sihg.store.schema import json_bytes, read_json
from sihg.store.verify import check_file

RECORDS = ("config.toml", "environment.json", "metrics.csv", "memory.csv", "log.jsonl", "accepted.json")  # of a run
GRID = "grid.toml"
ENDINGS = (".toml", ".json", ".csv", ".jsonl")
MAX_FILES = 100_000
MAX_BYTES = 2**30  # of all files together
MAX_ARCHIVE_BYTES = 2**30
SAME_DATE = (1980, 1, 1, 0, 0, 0)  # of every file, so that equal records give equal archives


def is_archive(path: str | Path) -> bool:
    """Return whether a path names an archive of records."""
    return Path(path).suffix == ".zip" and Path(path).is_file()


def pack_runs(paths: Sequence[Path], out: str | Path, *, overwrite: bool = False) -> int:
    """Write the records of the runs in these folders into one zip file; return how many runs there are."""
    out = Path(out)
    if out.suffix != ".zip":
        raise InputError("archive-suffix", path=out)
    if status(out) is not None and not overwrite:
        raise InputError("archive-exists", path=out)
    members: dict[str, Path] = {}
    for path in paths:
        found = {_member(path, record, alone=len(paths) == 1): record for record in _records(path)}
        if not any(record.name == "config.toml" for record in found.values()):
            raise InputError("no-runs", folder=path)
        if twice := sorted(members.keys() & found.keys()):
            raise InputError("archive-same-name", name=twice[0], first=members[twice[0]], second=found[twice[0]])
        members |= found
    for record in members.values():
        check = check_file(record)
        if check.result == "wrong":
            raise InputError("archive-wrong-record", message=check.message)
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, record in sorted(members.items()):
            archive.writestr(zipfile.ZipInfo(name, SAME_DATE), _without_places(record), zipfile.ZIP_DEFLATED)
    write_bytes(out, data.getvalue())
    return sum(record.name == "config.toml" for record in members.values())


class Unpacked(NamedTuple):
    """Folders in place of archives, and where these folders are."""

    folders: list[Path]
    places: dict[Path, Path]  # a temporary folder by archive

    def shown(self, path: Path) -> str:
        """Return a path as the user knows it: inside an archive, it begins with the archive."""
        home = next((archive for archive, place in self.places.items() if path.is_relative_to(place)), None)
        return str(path) if home is None else str(home / path.relative_to(self.places[home]))


@contextmanager
def unpacked(paths: Sequence[Path]) -> Iterator[Unpacked]:
    """Give folders in place of archives, for as long as the block lasts; other paths stay as they are.

    Args:
        paths: Folders and archives.
    Returns:
        The folders. An archive gives each of its folders that holds run folders.
    Raises:
        InputError: An archive cannot be read, or has a file that is no record. Errors that are raised in the block
            about a record of an archive name the archive.
    """
    with tempfile.TemporaryDirectory(prefix="sihg-") as home:
        archives = [path for path in paths if is_archive(path)]
        same_names = len({path.stem for path in archives}) < len(archives)
        above = [Path(home) / str(i) if same_names else Path(home) for i in range(len(archives))]
        places = {path: folder / path.stem for path, folder in zip(archives, above, strict=True)}
        for path, place in places.items():
            _extract(path, place)
        folders = [folder for path in paths for folder in (_with_runs(places[path]) if path in places else [path])]
        try:
            yield Unpacked(folders, places)
        except InputError as error:
            text = str(error)
            for path, place in places.items():
                text = text.replace(str(place), str(path))
            if text == str(error):
                raise
            raise InputError("archive-record", error=text) from error


def _records(folder: Path) -> Iterator[Path]:
    """Yield the records of a run, or of all runs below a folder."""
    if status(folder / "config.toml") is not None:
        yield from (folder / name for name in RECORDS if status(folder / name) is not None)
        evaluations = folder / "evaluation"
        yield from (evaluations / name for name in list_names(evaluations) if name.endswith(".json"))
    elif folder.is_dir() and not folder.is_symlink():
        if status(folder / GRID) is not None:
            yield folder / GRID
        for name in list_names(folder):
            if not name.startswith("."):
                yield from _records(folder / name)


def _member(folder: Path, record: Path, *, alone: bool) -> str:
    """Return the name of a record in the archive; the folder's own name is kept if it is a run or one of several."""
    is_run = status(folder / "config.toml") is not None
    inside = record.relative_to(folder)
    return (Path(folder.resolve().name) / inside if is_run or not alone else inside).as_posix()


def _without_places(record: Path) -> bytes:
    """Return a record without the folders of this machine: where the data lie, and the path above the run."""
    data = read_regular(record)
    if record.suffix != ".json":
        return data
    content = read_json(record, "restore the file, or remove it")
    weights = Path(str(content.get("weights", "")))
    shared = {key: value for key, value in content.items() if key != "data_folder"}
    if weights.is_absolute():
        shared["weights"] = Path(*weights.parts[-2:]).as_posix()  # the checkpoint in its run
    return data if shared == content else json_bytes(shared)


def _extract(path: Path, place: Path) -> None:
    """Write the records of an archive into a new folder, after a check of every name and size."""
    try:
        with zipfile.ZipFile(io.BytesIO(read_regular(path, MAX_ARCHIVE_BYTES))) as archive:
            members = archive.infolist()
            _check_members(path, members)
            for member in members:
                target = place / member.filename
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(member))
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError("archive-unreadable", path=path, error=error) from error


def _check_members(path: Path, members: Sequence[zipfile.ZipInfo]) -> None:
    if len(members) > MAX_FILES or sum(member.file_size for member in members) > MAX_BYTES:
        raise InputError("archive-too-large", path=path, files=MAX_FILES, bytes=MAX_BYTES)
    seen: set[str] = set()
    for member in members:
        name = member.filename
        parts = name.split("/")
        plain = name.isprintable() and not any(part in ("", ".", "..") or set(part) & set("\\:") for part in parts)
        if not plain or PurePosixPath(name).suffix not in ENDINGS or member.file_size > MAX_TEXT_BYTES or name in seen:
            raise InputError("archive-member", path=path, name=name)
        seen.add(name)


def _with_runs(home: Path) -> list[Path]:
    """Return the folders that hold run folders; if no folder does, the home itself, which the error then names."""
    found = []
    for folder, names, _ in os.walk(home):
        names.sort()
        if any(status(Path(folder) / name / "config.toml") is not None for name in names):
            found.append(Path(folder))
    return found or [home]
