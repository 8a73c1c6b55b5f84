"""Checkpoints that are whole or absent, and that notice every changed bit.

A checkpoint is a folder: tensors as safetensors, and `manifest.json` with the size and the SHA-256 of each file, the
state of the run, and a SHA-256 of its own content. Nothing is ever unpickled.
"""

import hashlib
import math
import os
import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from sihg.errors import InputError
from sihg.store.files import Json, list_names, status, sync_folder
from sihg.store.manifest import (
    HIDDEN,
    MANIFEST,
    NUMBERED,
    PLAIN_NAME,
    checkpoint_names,
    find_checkpoint,
    manifest_bytes,
    number_of,
    prefix_of,
    read_file,
    read_manifest,
)


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
    if keep < 1:
        raise InputError("checkpoint-keep", keep=keep)
    _check_json(state := dict(state), "state")
    temporary = begin_checkpoint(folder, name)
    try:
        return finish_checkpoint(temporary, name, write_groups(temporary, tensors), state, keep)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


# ---- the same in three parts, for several processes: one begins and finishes, all write their groups between


def begin_checkpoint(folder: str | Path, name: str) -> Path:
    """Make the temporary folder of a checkpoint; the next call for the same prefix removes what a kill has left."""
    folder = Path(folder)
    if not PLAIN_NAME.fullmatch(name):
        raise InputError("checkpoint-name", name=name)
    temporary = _hidden(folder, name, "tmp")
    with _named_errors(folder, name):
        if not folder.is_dir():
            folder.mkdir()  # not its parents: a run that was removed is not made anew
            sync_folder(folder.parent)
        _tidy(folder, name)
        temporary.mkdir()
    return temporary


def write_groups(temporary: Path, tensors: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Json]:
    """Write groups of tensors durably into a checkpoint's temporary folder; return what the manifest says of them."""
    for key in tensors:
        if not PLAIN_NAME.fullmatch(key):
            raise InputError("checkpoint-name", name=key)
    hidden = HIDDEN.fullmatch(temporary.name)
    with _named_errors(temporary.parent, hidden["name"] if hidden else temporary.name):
        return {f"{key}.safetensors": _write_tensors(temporary, key, group) for key, group in tensors.items()}


def finish_checkpoint(
    temporary: Path, name: str, files: Mapping[str, Json], state: Mapping[str, object], keep: int = 2
) -> Path:
    """Write the manifest and give the checkpoint its name, durably; remove older ones beyond `keep`."""
    folder = temporary.parent
    with _named_errors(folder, name):
        _write_durably(temporary / MANIFEST, manifest_bytes(files, state))
        sync_folder(temporary)
        _put(temporary, folder / name)
    with suppress(OSError):  # the new one is safe; the next call removes what could not be removed now
        _prune(folder, name, keep)
    return folder / name


@contextmanager
def _named_errors(folder: Path, name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError("cannot-write-checkpoint", folder=folder, name=name, reason=error.strerror or error) from error


def read_checkpoint(path: str | Path, only: Collection[str] | None = None) -> Checkpoint:
    """Read one checkpoint, or `only` these groups of tensors; raise InputError with everything that is wrong."""
    checkpoint, problems = _read(find_checkpoint(Path(path)), only)
    if checkpoint is None:
        raise InputError("checkpoint-damaged", path=path, problems=problems, names="; ".join(problems))
    return checkpoint


def newest_checkpoint(
    folder: str | Path,
    prefix: str,
    only: Collection[str] | None = None,
    *,
    twin: str = "",
    most: int | None = None,
) -> tuple[Checkpoint, list[Skipped]]:
    """Read the valid checkpoint PREFIX-NUMBER with the highest number; also return the newer ones that are damaged.

    With `only` these groups of tensors, damage to the others does not matter. TWIN-NUMBER is a second copy of
    PREFIX-NUMBER, which is read if that one is damaged. Numbers above `most` are left out.
    """
    folder = Path(folder)
    skipped: list[Skipped] = []
    names = checkpoint_names(folder, prefix) + (checkpoint_names(folder, twin) if twin else [])
    names = [name for name in names if most is None or number_of(name) <= most]
    for name in sorted(names, key=number_of, reverse=True):  # stable: a checkpoint comes before its twin
        checkpoint, problems = _read(find_checkpoint(folder / name), only)
        if checkpoint is not None:
            return checkpoint, skipped
        skipped.append(Skipped(name, "; ".join(problems)))
    if not skipped:
        raise InputError("no-checkpoint", folder=folder, prefix=prefix)
    listed = ", ".join(f"{s.name} ({s.reason})" for s in skipped)
    raise InputError("no-valid-checkpoint", folder=folder, prefix=prefix, listed=listed)


def verify_checkpoint(path: str | Path) -> list[str]:
    """List what is wrong with a checkpoint; nothing if it is valid."""
    return _read(find_checkpoint(Path(path)))[1]


def sha256_of_tensors(tensors: Mapping[str, object]) -> str:
    """Return the SHA-256 of named tensors, in the order of their names; a state dict may hold other things too."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name]
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode() + bytes_of(value))
    return digest.hexdigest()


def bytes_of(value: Tensor) -> bytes:
    """Return the values of a tensor in row order as bytes."""
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


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
    if status(path) is None:
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
    if not (match := NUMBERED.fullmatch(written)):
        return
    left = keep - 1
    for name in checkpoint_names(folder, match["prefix"]):
        if number_of(name) >= number_of(written):
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
    for path in (folder / entry for entry in list_names(folder)):
        match = HIDDEN.fullmatch(path.name)
        if not match or prefix_of(match["name"]) != prefix_of(name):  # other prefixes may have other writers
            continue
        if match["role"] == "old" and status(folder / match["name"]) is None:
            path.replace(folder / match["name"])
        else:
            shutil.rmtree(path, ignore_errors=True)


# ---- reading


def _read(path: Path, only: Collection[str] | None = None) -> tuple[Checkpoint | None, list[str]]:
    """Open each file once, so that what was verified is what is used; return the content or the problems."""
    manifest, problem = read_manifest(path)
    if manifest is None:
        return None, [problem]
    tensors, problems = {}, []
    for file, expected in manifest.files.items():
        group = file.removesuffix(".safetensors")
        if only is not None and group not in only:
            continue
        data, problem = read_file(path / file, expected.bytes)
        if data is not None and (found := hashlib.sha256(data).hexdigest()) != expected.sha256:
            problem = f"{file} has the SHA-256 {found}, expected {expected.sha256}"
        elif data is not None:
            try:
                tensors[group] = load(data)
            except (SafetensorError, RuntimeError, ValueError, KeyError, TypeError, AssertionError) as error:
                problem = f"{file} is not safetensors ({error})"
        problems += [problem] if problem else []
    return (None if problems else Checkpoint(path, manifest.state, tensors)), problems


def _is_incomplete(path: Path) -> bool:
    """Check the manifest and the sizes; the sums of large files are left to the reader."""
    manifest, _ = read_manifest(path)
    try:
        return manifest is None or any((path / f).stat().st_size != e.bytes for f, e in manifest.files.items())
    except OSError:
        return True


def _hidden(folder: Path, name: str, role: str) -> Path:
    return folder / f".{name}.{role}-{secrets.token_hex(4)}"
