"""Check every file of a folder of results against its sum, and accept files that were edited on purpose.

This is `sihg check`. Pages, pictures, `output.log` and tables for people carry no sum: nothing reads them. Of a solve,
sums.json has the sums of these too.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import msgspec

from sihg.errors import InputError
from sihg.store.arrays import reseal_arrays
from sihg.store.files import from_toml, list_names, read_regular, sha256_of_file, status, write_bytes
from sihg.store.manifest import NUMBERED, find_checkpoint, newest_manifest, read_file, read_manifest
from sihg.store.run_folder import locked
from sihg.store.schema import Record, read_json, read_record, read_toml, write_json, write_record
from sihg.store.seal import MARK, NO_SUM, SEAL_KEY, check_seal, require_seal, seal
from sihg.store.sums import FOR_PEOPLE, accept_edits, find_changed
from sihg.store.sums import NAME as SUMS
from sihg.store.tables import SUM, Mark, read_json_lines, read_table, reseal_log, reseal_table
from sihg.store.trust import OWNER

ACCEPTED = "accepted.json"  # sums of tables that were edited on purpose after a checkpoint was made
TABLES = {"metrics.csv": "metrics", "memory.csv": "memory", "log.jsonl": "log"}  # and their names in a checkpoint
SETTINGS = ("config.toml", "config.json", "grid.toml")  # of a folder that has a lock of its own
KINDS = (".json", ".jsonl", ".toml", ".csv", ".npz", ".npy", ".safetensors")
Result = Literal["good", "no sum", "wrong", "accepted"]


class Accepted(Record, frozen=True, kw_only=True):
    """accepted.json."""

    tables: dict[str, str]  # SHA-256 by name


class FileCheck(msgspec.Struct, frozen=True):
    """What the check of a file found: "no sum" is a file of an older version, "accepted" one that now has a new sum."""

    path: Path
    result: Result
    message: str = ""


def check_folder(folder: str | Path, *, accept: bool = False) -> list[FileCheck]:
    """Check the files of a run, a grid, a solve or of evaluations, with all folders in it.

    Args:
        folder: The folder.
        accept: Give files that were edited on purpose a new sum. Checkpoints and memories cannot be edited.
    Returns:
        A result for each file that carries a sum.
    Raises:
        InputError: The folder is missing, cannot be read, or is in use.
    Example:
        >>> _ = write_json(Path("out/a.json"), {"eps": 0.1})
        >>> _ = Path("out/a.json").write_text(Path("out/a.json").read_text().replace("0.1", "0.2"))
        >>> [check.result for check in check_folder("out")]
        ['wrong']
        >>> [check.result for check in check_folder("out", accept=True)]
        ['accepted']
        >>> [check.result for check in check_folder("out")]
        ['good']
    """
    folder = Path(folder)
    if not folder.is_dir():
        reason = "it is a file" if status(folder) is not None else "it does not exist"
        raise InputError("not-a-folder", folder=folder, reason=reason)
    missing = [
        FileCheck(path, "wrong", f"{path} is missing: restore it")
        for home, _, _ in os.walk(folder)
        for path in _missing(Path(home))
    ]
    if not accept:
        return [*(check_file(path) for path in _files(folder)), *_check_unsealed(folder), *missing]
    with ExitStack() as locks:
        for home in {folder, *(path.parent for path in _files(folder) if path.name in SETTINGS)}:
            locks.enter_context(locked(home))
        # Arrays before the records that keep their sums.
        paths = sorted(_files(folder), key=lambda path: path.suffix == ".json")
        return [*(_accept(check_file(path)) for path in paths), *_accept_unsealed(folder), *missing]


def describe_checks(checks: Sequence[FileCheck]) -> str:
    """Return how many files had which result: "12 good, 1 wrong"."""
    counts = Counter(check.result for check in checks)
    return ", ".join(f"{count} {result}" for result, count in counts.items()) or "no files with sums"


def accepted_tables(run: Path) -> dict[str, str]:
    """Return the SHA-256 of the tables of a run that were edited on purpose, by their names."""
    if status(run / ACCEPTED) is None:
        return {}
    return read_record(run / ACCEPTED, Accepted, "restore the file").tables


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files that carry sums, and each checkpoint's folder once."""
    for name in list_names(folder):
        path = folder / name
        if name.startswith("."):  # a file that is being written, or a checkpoint that is being removed
            continue
        if path.is_dir() and not path.is_symlink():
            if name != "report":
                yield from [path] if status(path / "manifest.json") is not None else _files(path)
        elif name not in FOR_PEOPLE and path.suffix in KINDS:
            yield path


def _check_unsealed(folder: Path) -> list[FileCheck]:
    """Check the files whose sums are in a sums.json."""
    return [check for home in _homes_of_sums(folder) for check in _check_sums(home)]


def _homes_of_sums(folder: Path) -> list[Path]:
    return [Path(home) for home, _, names in os.walk(folder) if SUMS in names]


def _check_sums(home: Path) -> list[FileCheck]:
    return [FileCheck(path, "wrong" if fault else "good", fault) for path, fault in find_changed(home)]


def _missing(home: Path) -> Iterator[Path]:
    """Yield the files of a folder that its other files say must be there."""
    if home.name == "checkpoints":
        names = [name for name in list_names(home) if NUMBERED.fullmatch(name)]
        yield from (home / name / "manifest.json" for name in names if status(home / name / "manifest.json") is None)
    manifest = newest_manifest(home / "checkpoints", "last") if status(home / "config.toml") is not None else None
    if manifest is None:
        return
    marks = manifest.state.get("tables", {})
    kept = [name for name, table in TABLES.items() if marks.get(table, {}).get("bytes")]  # an empty log has no file
    in_files = manifest.state.get("settings", {}).get("memory_files") is True
    paths = [home / name for name in (*kept, "environment.json")]
    if in_files:
        from sihg.store.memory_files import expected_files  # imports numpy

        paths += expected_files(home / "memory")
    yield from (path for path in paths if status(path) is None)


def _is_sealed(path: Path) -> bool:
    """Return whether a file lies in a folder that a command has marked, as they do since files carry sums."""
    return any(status(folder / OWNER) is not None for folder in list(path.parents)[:3])


def check_file(path: Path) -> FileCheck:
    """Check a file, or the folder of a checkpoint, against the sum that it carries."""
    try:
        return FileCheck(path, _result(path))
    except InputError as error:
        return FileCheck(path, "wrong", str(error))
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        return FileCheck(path, "wrong", f"cannot read {path} ({getattr(error, 'strerror', None) or error})")


def _result(path: Path) -> Result:
    if status(path / "manifest.json") is not None:
        return _check_checkpoint(path)
    if path.suffix == ".csv":
        return _check_table(path)
    if path.suffix == ".jsonl":
        read_json_lines(path, sealed=_is_sealed(path), mark=_mark(path))
        return "good" if f'"{SUM}"'.encode() in read_regular(path) or _is_sealed(path) else "no sum"
    if path.suffix == ".npy":
        return "good"  # its record keeps its sum
    data = read_regular(path, 2**36)
    if path.suffix == ".json":
        content = read_json(path, "restore the file")
        _check_beside(path, content.get("files", {}))
    elif path.suffix == ".toml":
        read_toml(path)
    elif not path.name.endswith(".partial.npz"):  # sealed with the user's key
        require_seal(path, data, sealed=_is_sealed(path))
    return "good" if check_seal(data) != "missing" else "no sum"


def _check_checkpoint(path: Path) -> Result:
    manifest, problem = read_manifest(find_checkpoint(path))
    if manifest is None:
        raise InputError("checkpoint-damaged", path=path, problems=[problem], names=problem)
    for name, expected in manifest.files.items():
        data, problem = read_file(path / name, expected.bytes)
        if data is None or sha256_of_file(path / name) != expected.sha256:
            problem = problem or f"{name} has another SHA-256 than its manifest says"
            raise InputError("checkpoint-damaged", path=path, problems=[problem], names=problem)
    return "good"


def _check_table(path: Path) -> Result:
    header = read_regular(path).partition(b"\n")[0]
    read_table(path, sealed=_is_sealed(path), mark=_mark(path))
    return "good" if header.endswith(f",{SUM}".encode()) else "no sum"


def _check_beside(record: Path, files: object) -> None:
    """Check the files whose sums a record keeps."""
    for name, expected in (files if isinstance(files, dict) else {}).items():
        path = record.parent / Path(name).name
        if status(path) is None:
            raise InputError("file-missing", path=path, record=record)
        if sha256_of_file(path) != expected:
            raise InputError("seal-wrong", path=path)


def _mark(path: Path) -> Mark | None:
    """Return how far a table of a run was at its newest checkpoint, unless it was edited on purpose since."""
    if path.name not in TABLES:
        return None
    manifest = newest_manifest(path.parent / "checkpoints", "last")
    if manifest is None or accepted_tables(path.parent).get(path.name) == sha256_of_file(path):
        return None
    found = manifest.state.get("tables", {}).get(TABLES[path.name])  # older checkpoints have none
    return None if found is None else msgspec.convert(found, Mark)


# ---- accepting


def _accept(check: FileCheck) -> FileCheck:
    """Give a file that is wrong a new sum, if its content can be read."""
    path = check.path
    if check.result != "wrong" or path.is_dir():
        return check
    try:
        if path.suffix == ".csv":
            write_bytes(path, reseal_table(path))
            _keep_accepted(path)
        elif path.suffix == ".jsonl":
            write_bytes(path, reseal_log(path))
            _keep_accepted(path)
        elif path.suffix == ".json":
            _accept_json(path)
        elif path.suffix == ".toml":
            if not from_toml(path):
                return check
            write_bytes(path, _reseal_comment(read_regular(path)))
        elif path.suffix == ".npz":
            reseal_arrays(path)
        else:
            return check
    except (InputError, OSError, ValueError) as error:
        return FileCheck(path, "wrong", f"{check.message}; it cannot be accepted either: {error}")
    left = check_file(path)  # a record whose arrays are gone stays wrong
    return left if left.result == "wrong" else FileCheck(path, "accepted", f"{path} counts as it is now")


def _accept_unsealed(folder: Path) -> list[FileCheck]:
    """Give the files whose sums are in a sums.json new sums; those that are gone stay wrong."""
    results = []
    for home in _homes_of_sums(folder):
        checks = _check_sums(home)
        edited = [check.path for check in checks if check.result == "wrong" and status(check.path) is not None]
        if edited:
            accept_edits(home)
        results += [
            FileCheck(check.path, "accepted", f"{check.path} counts as it is now") if check.path in edited else check
            for check in checks
        ]
    return results


def _accept_json(path: Path) -> None:
    content = json.loads(read_regular(path))
    content.pop(SEAL_KEY, None)
    sums = content.get("files", {})  # a file that is gone keeps its sum, so it stays missed
    there = [name for name in sums if status(path.parent / Path(name).name) is not None]
    sums |= {name: sha256_of_file(path.parent / Path(name).name) for name in there}
    edited = {"edited": True} if "attacks" in content or "curves" in content else {}  # reports say so
    write_json(path, content | edited | ({"files": sums} if sums else {}))


def _reseal_comment(data: bytes) -> bytes:
    lines = [line for line in data.rstrip(b"\n").split(b"\n") if MARK not in line]
    return seal(b"\n".join([*lines, f"# {NO_SUM}".encode(), b""]))


def _keep_accepted(path: Path) -> None:
    """Note that a table counts although a checkpoint knows it otherwise."""
    if path.name in TABLES:
        tables = accepted_tables(path.parent) | {path.name: sha256_of_file(path)}
        write_record(path.parent / ACCEPTED, Accepted(tables=tables))
