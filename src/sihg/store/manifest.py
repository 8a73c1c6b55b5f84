"""The manifest of a checkpoint: its files with their sizes and sums, and the state of the run. Needs no torch.

A checkpoint is a folder PREFIX-NUMBER with a `manifest.json`, which also holds a SHA-256 of its own content.
"""

import hashlib
import json
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from sihg.errors import InputError
from sihg.store.files import MAX_TEXT_BYTES, list_names, read_regular, status

FORMAT, VERSION, MANIFEST = "sihg-checkpoint", 1, "manifest.json"
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
NUMBERED = re.compile(r"(?P<prefix>.+)-(?P<number>[0-9]{1,18})", re.ASCII)
# Folders that are not checkpoints: tmp is being written, old is being replaced, gone is being removed.
HIDDEN = re.compile(r"\.(?P<name>.+)\.(?P<role>tmp|old|gone)-[0-9a-f]+", re.ASCII)


class File(msgspec.Struct, frozen=True):
    """A file of a checkpoint."""

    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """What a checkpoint holds."""

    files: dict[str, File]
    state: dict[str, Any]


def manifest_bytes(files: Mapping[str, object], state: Mapping[str, object]) -> bytes:
    """Return the content of manifest.json."""
    rest = {"format": FORMAT, "version": VERSION, "files": files, "state": state}
    return _pretty({**rest, "sha256": _sum(rest)})


def _sum(rest: Mapping[str, object]) -> str:
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _pretty(manifest: Mapping[str, object]) -> bytes:
    return (json.dumps(manifest, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()


def read_manifest(path: Path) -> tuple[Manifest | None, str]:
    """Return the verified manifest of a checkpoint's folder, or what is wrong with it."""
    data, problem = read_file(path / MANIFEST)
    return _parse_manifest(data) if data is not None else (None, problem)


def _parse_manifest(data: bytes) -> tuple[Manifest | None, str]:
    """Return a verified manifest, or what is wrong with it."""
    try:
        content = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return None, f"{MANIFEST} is not JSON ({error})"
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        return None, f"{MANIFEST} is not a manifest: expected the format {FORMAT!r}"
    if content.get("version") != VERSION:
        version = content.get("version")
        return None, f"{MANIFEST} has version {version!r}, expected {VERSION}: a newer sihg may read it"
    rest = {key: value for key, value in content.items() if key != "sha256"}
    if (found := _sum(rest)) != content.get("sha256"):
        return None, f"{MANIFEST} has the SHA-256 {found}, expected {content.get('sha256')}"
    if data != _pretty(content):  # the sum is of the values; this compares every byte
        return (
            None,
            f"{MANIFEST} has other bytes than sihg writes, {len(data)} instead of {len(_pretty(content))}",
        )
    try:
        manifest = msgspec.convert(content, Manifest)
    except msgspec.ValidationError as error:
        return None, f"{MANIFEST} is not a valid manifest ({error})"
    for file in manifest.files:
        if not PLAIN_NAME.fullmatch(file) or not file.endswith(".safetensors"):
            return None, f"{MANIFEST} lists {file!r}, which is not the plain name of a safetensors file"
    return manifest, ""


def read_file(path: Path, expected: int | None = None) -> tuple[bytes | None, str]:
    """Return the bytes of a regular file of the expected size, or what is wrong.

    Raises:
        InputError: It may not be read. This is no damage, and may pass: an older checkpoint must not take its place.
    """
    try:
        found = status(path)
        if found is None:
            return None, f"{path.name} is missing"
        if not stat.S_ISREG(found.st_mode):
            return None, f"{path.name} is not a regular file"
        if expected is not None and found.st_size != expected:
            return None, f"{path.name} has {found.st_size} bytes, expected {expected}"
        return read_regular(path, MAX_TEXT_BYTES if expected is None else expected), ""
    except PermissionError as error:
        raise InputError("cannot-look", path=path, reason=error.strerror or error) from error
    except OSError as error:
        return None, f"{path.name} cannot be read ({error.strerror or error})"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


# ---- names


def checkpoint_names(folder: Path, prefix: str) -> list[str]:
    """List the checkpoints PREFIX-NUMBER of a folder, also those moved aside, the highest number first."""
    names = set()
    for entry in list_names(folder):
        hidden = HIDDEN.fullmatch(entry)
        name = hidden["name"] if hidden and hidden["role"] == "old" else entry
        match = NUMBERED.fullmatch(name)
        if match and match["prefix"] == prefix and _is_folder(folder / entry):
            names.add(name)
    return sorted(names, key=lambda name: (number_of(name), name), reverse=True)


def find_checkpoint(path: Path) -> Path:
    """Return the folder of a checkpoint: its own, or where it was moved aside when a kill came."""
    if status(path) is None:
        for other in list_names(path.parent):
            match = HIDDEN.fullmatch(other)
            if match and match["role"] == "old" and match["name"] == path.name:
                return path.parent / other
    return path


def newest_manifest(folder: Path, prefix: str) -> Manifest | None:
    """Return the newest valid manifest of the checkpoints PREFIX-NUMBER, or None."""
    for name in checkpoint_names(folder, prefix):
        manifest, _ = read_manifest(find_checkpoint(folder / name))
        if manifest is not None:
            return manifest
    return None


def _is_folder(path: Path) -> bool:
    found = status(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


def prefix_of(name: str) -> str:
    """Return PREFIX of PREFIX-NUMBER, or the name itself."""
    match = NUMBERED.fullmatch(name)
    return match["prefix"] if match else name


def number_of(name: str) -> int:
    """Return NUMBER of PREFIX-NUMBER."""
    return int(name.rpartition("-")[2])
