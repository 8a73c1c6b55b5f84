"""Checkpoints that are whole or absent, and that notice every changed bit.

A checkpoint is a folder: tensors as safetensors, and `manifest.json` with the size and the SHA-256 of each file, the
state of the run, and a SHA-256 of its own content. Nothing is ever unpickled.
"""

import hashlib
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from sihg.errors import InputError
from sihg.store.files import Json, make_parents, sync_folder

FORMAT, VERSION, MANIFEST = "sihg-checkpoint", 1, "manifest.json"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
_NUMBERED = re.compile(r"(?P<prefix>.+)-(?P<number>[0-9]+)", re.ASCII)
# Folders that are not checkpoints: tmp is being written, old is being replaced, gone is being removed.
_HIDDEN = re.compile(r"\.(?P<name>.+)\.(?P<role>tmp|old|gone)-[0-9a-f]+", re.ASCII)


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint whose files have all been verified."""

    path: Path
    state: dict[str, Any]
    tensors: dict[str, dict[str, Tensor]]


@dataclass(frozen=True)
class Skipped:
    """A checkpoint that cannot be used, and why."""

    name: str
    reason: str


class _File(msgspec.Struct, frozen=True):
    bytes: int
    sha256: str


class _Manifest(msgspec.Struct, frozen=True):
    files: dict[str, _File]
    state: dict[str, Any]


def write_checkpoint(
    folder: str | Path,
    name: str,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, object],
    keep: int = 2,
) -> Path:
    """Write the checkpoint `folder/name` durably; a failure or a kill at any moment leaves the older ones.

    Each group of `tensors` becomes one file; `state` is JSON. Of names PREFIX-NUMBER, keep this one and the `keep` - 1
    before it.
    """
    folder = Path(folder)
    for part in (name, *tensors):
        if not _PLAIN_NAME.fullmatch(part):
            raise InputError("checkpoint-name", name=part)
    if keep < 1:
        raise InputError("checkpoint-keep", keep=keep)
    _check_json(state := dict(state), "state")
    temporary = _hidden(folder, name, "tmp")
    try:
        make_parents(temporary)
        _tidy(folder, name)
        temporary.mkdir()
        files = {f"{key}.safetensors": _write_tensors(temporary, key, group) for key, group in tensors.items()}
        _write_durably(temporary / MANIFEST, _manifest(files, state))
        sync_folder(temporary)
        _put(temporary, folder / name)
    except OSError as error:
        raise InputError("cannot-write-checkpoint", folder=folder, name=name, reason=error.strerror or error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    with suppress(OSError):  # the new one is safe; the next call removes what could not be removed now
        _prune(folder, name, keep)
    return folder / name


def read_checkpoint(path: str | Path, only: Collection[str] | None = None) -> Checkpoint:
    """Read one checkpoint, or `only` these groups of tensors; raise InputError with everything that is wrong."""
    checkpoint, problems = _read(_find(Path(path)), only)
    if checkpoint is None:
        raise InputError("checkpoint-damaged", path=path, problems=problems, names="; ".join(problems))
    return checkpoint


def newest_checkpoint(
    folder: str | Path, prefix: str, only: Collection[str] | None = None
) -> tuple[Checkpoint, list[Skipped]]:
    """Read the valid checkpoint PREFIX-NUMBER with the highest number; also return the newer ones that are damaged.

    With `only` these groups of tensors, damage to the others does not matter.
    """
    folder = Path(folder)
    skipped: list[Skipped] = []
    for name in _names(folder, prefix):
        checkpoint, problems = _read(_find(folder / name), only)
        if checkpoint is not None:
            return checkpoint, skipped
        skipped.append(Skipped(name, "; ".join(problems)))
    if not skipped:
        raise InputError("no-checkpoint", folder=folder, prefix=prefix)
    listed = ", ".join(f"{s.name} ({s.reason})" for s in skipped)
    raise InputError("no-valid-checkpoint", folder=folder, prefix=prefix, listed=listed)


def verify_checkpoint(path: str | Path) -> list[str]:
    """List what is wrong with a checkpoint; nothing if it is valid."""
    return _read(_find(Path(path)))[1]


# ---- writing


def _write_tensors(folder: Path, key: str, group: Mapping[str, Tensor]) -> Json:
    try:
        data = save(_separate(group))
    except (SafetensorError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise InputError("checkpoint-tensors", group=key, error=error) from error
    _write_durably(folder / f"{key}.safetensors", data)
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _separate(group: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous tensors on the CPU that share no memory; copy only where necessary."""
    separate, seen = {}, set()
    for name, tensor in group.items():
        t = tensor.detach().cpu()
        if t.layout == torch.strided and t.device.type == "cpu":  # safetensors refuses the others by name
            t = t.resolve_conj().resolve_neg().contiguous()
            place = t.untyped_storage().data_ptr()
            t = t.clone() if place in seen else t
            seen.add(place)
        separate[name] = t
    return separate


def _manifest(files: Mapping[str, object], state: Mapping[str, object]) -> bytes:
    rest = {"format": FORMAT, "version": VERSION, "files": files, "state": state}
    return _pretty({**rest, "sha256": _sum(rest)})


def _sum(rest: Mapping[str, object]) -> str:
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _pretty(manifest: Mapping[str, object]) -> bytes:
    return (json.dumps(manifest, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()


def _check_json(value: object, name: str) -> None:
    """Raise InputError for what JSON would drop or change: NaN, infinity, tuples, keys that are not text."""
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        for key, item in value.items():
            _check_json(item, f"{name}.{key}")
    elif isinstance(value, list):
        for i, item in enumerate(value):
            _check_json(item, f"{name}[{i}]")
    elif not (value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))):
        raise InputError("checkpoint-state", name=name, value=value)


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _put(temporary: Path, path: Path) -> None:
    """Rename a durable temporary folder; an older checkpoint of that name moves aside only for that moment."""
    with _aside(path):
        temporary.replace(path)
    sync_folder(path.parent)


@contextmanager
def _aside(path: Path) -> Iterator[None]:
    if not path.exists():
        yield
        return
    old = _hidden(path.parent, path.name, "old")  # `_find` finds it if the process is killed before the second rename
    path.replace(old)
    try:
        yield
    except BaseException:
        old.replace(path)
        raise
    sync_folder(path.parent)
    _remove(old, path.name)


def _prune(folder: Path, written: str, keep: int) -> None:
    """Remove older checkpoints beyond `keep`; incomplete ones do not count, higher numbers stay."""
    if not (match := _NUMBERED.fullmatch(written)):
        return
    left = keep - 1
    for name in _names(folder, match["prefix"]):
        if _number(name) >= _number(written):
            continue
        if left == 0:
            _remove(folder / name, name)
        elif not _is_incomplete(folder / name):
            left -= 1
    sync_folder(folder)


def _remove(path: Path, name: str) -> None:
    """Rename a folder before removing it, so that half of a checkpoint never looks like one."""
    gone = _hidden(path.parent, name, "gone")
    path.replace(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _tidy(folder: Path, name: str) -> None:
    """Remove what kills have left of this prefix; a checkpoint that was moved aside comes back."""
    for path in sorted(folder.iterdir()):
        match = _HIDDEN.fullmatch(path.name)
        if not match or _prefix(match["name"]) != _prefix(name):  # other prefixes may have other writers
            continue
        if match["role"] == "old" and not (folder / match["name"]).exists():
            path.replace(folder / match["name"])
        else:
            shutil.rmtree(path, ignore_errors=True)


# ---- reading


def _read(path: Path, only: Collection[str] | None = None) -> tuple[Checkpoint | None, list[str]]:
    """Open each file once, so that what was verified is what is used; return the content or the problems."""
    manifest, problem = _read_manifest(path)
    if manifest is None:
        return None, [problem]
    tensors, problems = {}, []
    for file, expected in manifest.files.items():
        group = file.removesuffix(".safetensors")
        if only is not None and group not in only:
            continue
        data, problem = _read_file(path / file, expected.bytes)
        if data is not None and (found := hashlib.sha256(data).hexdigest()) != expected.sha256:
            problem = f"{file} has the SHA-256 {found}, expected {expected.sha256}"
        elif data is not None:
            try:
                tensors[group] = load(data)
            except (SafetensorError, RuntimeError, ValueError, KeyError, TypeError, AssertionError) as error:
                problem = f"{file} is not safetensors ({error})"
        problems += [problem] if problem else []
    return (None if problems else Checkpoint(path, manifest.state, tensors)), problems


def _read_manifest(path: Path) -> tuple[_Manifest | None, str]:
    data, problem = _read_file(path / MANIFEST)
    return _parse_manifest(data) if data is not None else (None, problem)


def _parse_manifest(data: bytes) -> tuple[_Manifest | None, str]:
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
        manifest = msgspec.convert(content, _Manifest)
    except msgspec.ValidationError as error:
        return None, f"{MANIFEST} is not a valid manifest ({error})"
    for file in manifest.files:
        if not _PLAIN_NAME.fullmatch(file) or not file.endswith(".safetensors"):
            return None, f"{MANIFEST} lists {file!r}, which is not the plain name of a safetensors file"
    return manifest, ""


def _read_file(path: Path, expected: int | None = None) -> tuple[bytes | None, str]:
    """Return the bytes of a regular file of the expected size, or what is wrong."""
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            return None, f"{path.name} is not a regular file"
        with path.open("rb") as file:
            found = os.fstat(file.fileno()).st_size
            if expected is not None and found != expected:
                return None, f"{path.name} has {found} bytes, expected {expected}"
            return file.read(), ""
    except FileNotFoundError:
        return None, f"{path.name} is missing"
    except OSError as error:
        return None, f"{path.name} cannot be read ({error.strerror or error})"


def _is_incomplete(path: Path) -> bool:
    """Check the manifest and the sizes; the sums of large files are left to the reader."""
    manifest, _ = _read_manifest(path)
    try:
        return manifest is None or any((path / f).stat().st_size != e.bytes for f, e in manifest.files.items())
    except OSError:
        return True


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


# ---- names


def _names(folder: Path, prefix: str) -> list[str]:
    """List the checkpoints PREFIX-NUMBER of a folder, also those moved aside, the highest number first."""
    names = set()
    for path in folder.iterdir() if folder.is_dir() else ():
        hidden = _HIDDEN.fullmatch(path.name)
        name = hidden["name"] if hidden and hidden["role"] == "old" else path.name
        match = _NUMBERED.fullmatch(name)
        if path.is_dir() and match and match["prefix"] == prefix:
            names.add(name)
    return sorted(names, key=lambda name: (_number(name), name), reverse=True)


def _find(path: Path) -> Path:
    """Return the folder of a checkpoint: its own, or where it was moved aside when a kill came."""
    if not path.exists() and path.parent.is_dir():
        for other in sorted(path.parent.iterdir()):
            match = _HIDDEN.fullmatch(other.name)
            if match and match["role"] == "old" and match["name"] == path.name:
                return other
    return path


def _prefix(name: str) -> str:
    match = _NUMBERED.fullmatch(name)
    return match["prefix"] if match else name


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])


def _hidden(folder: Path, name: str, role: str) -> Path:
    return folder / f".{name}.{role}-{secrets.token_hex(4)}"
