"""Checkpoints that are whole or not there, and that tell when a bit of them has changed.

A checkpoint is a folder: tensors as safetensors, and `manifest.json` with the size and the SHA-256 of each file, the
state of the run, and a SHA-256 of its own. Nothing is ever unpickled.
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

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from sihg.errors import InputError

FORMAT, VERSION, MANIFEST = "sihg-checkpoint", 1, "manifest.json"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
_NUMBERED = re.compile(r"(?P<prefix>.+)-(?P<number>[0-9]+)", re.ASCII)
# Folders that are no checkpoints (yet, any more): being written, waiting to be replaced, being removed.
_HIDDEN = re.compile(r"\.(?P<name>.+)\.(?P<role>tmp|old|gone)-[0-9a-f]+", re.ASCII)


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds, checked."""

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
    state: Mapping[str, Any],
    keep: int = 2,
) -> Path:
    """Write the checkpoint `folder/name` durably; of names PREFIX-NUMBER keep this one and the `keep` - 1 before it.

    Each entry of `tensors` becomes one file; `state` is JSON. A failure or a kill at any moment leaves the older ones.
    """
    folder = Path(folder)
    for part in (name, *tensors):
        if not _PLAIN_NAME.fullmatch(part):
            raise InputError(f"{part!r} cannot name a checkpoint or its file: use letters, digits, '_', '-' and '.'")
    if keep < 1:
        raise InputError(f"keep must be at least 1, got {keep}: the checkpoint just written is one of them")
    _check_json(state := dict(state), "state")
    temporary = _hidden(folder, name, "tmp")
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True)
            _sync_folder(folder.parent)
        _tidy(folder, name)
        temporary.mkdir()
        files = {f"{key}.safetensors": _write_tensors(temporary, key, group) for key, group in tensors.items()}
        _write_durably(temporary / MANIFEST, _manifest(files, state))
        _sync_folder(temporary)
        _put(temporary, folder / name)
    except OSError as error:
        raise InputError(
            f"cannot write checkpoint {name} in {folder} ({error.strerror or error}): free the place, then resume; "
            "earlier checkpoints are untouched"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    with suppress(OSError):  # the new one is safe; what cannot be removed now is removed after a later one
        _prune(folder, name, keep)
    return folder / name


def read_checkpoint(path: str | Path, only: Collection[str] | None = None) -> Checkpoint:
    """Read one checkpoint, or some of its tensors, or say everything that is wrong with it."""
    checkpoint, problems = _read(_where(Path(path)), only)
    if checkpoint is None:
        raise InputError(f"{path} is not a whole checkpoint ({'; '.join(problems)}): use another, or a copy of it")
    return checkpoint


def newest_checkpoint(
    folder: str | Path, prefix: str, only: Collection[str] | None = None
) -> tuple[Checkpoint, list[Skipped]]:
    """Give the valid checkpoint PREFIX-NUMBER of the highest number, and what was skipped to find it.

    Where `only` some of its tensors are asked for, damage of the others does not matter.
    """
    folder = Path(folder)
    skipped: list[Skipped] = []
    for name in _names(folder, prefix):
        checkpoint, problems = _read(_where(folder / name), only)
        if checkpoint is not None:
            return checkpoint, skipped
        skipped.append(Skipped(name, "; ".join(problems)))
    if not skipped:
        raise InputError(f"{folder} has no checkpoint {prefix}-NUMBER: start the run anew, or give another folder")
    listed = ", ".join(f"{s.name} ({s.reason})" for s in skipped)
    raise InputError(f"{folder} has no valid checkpoint, only {listed}: put back a copy of one, or start the run anew")


def verify_checkpoint(path: str | Path) -> list[str]:
    """List what is wrong with a checkpoint; nothing when it is valid."""
    return _read(_where(Path(path)))[1]


# ---- writing


def _write_tensors(folder: Path, key: str, group: Mapping[str, Tensor]) -> dict[str, Any]:
    try:
        data = save(_separate(group))
    except (SafetensorError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"the tensors {key!r} cannot be saved ({error}): give dense tensors with data") from error
    _write_durably(folder / f"{key}.safetensors", data)
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _separate(group: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, contiguous and each with memory of its own; copied only where they are not."""
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


def _manifest(files: Mapping[str, Any], state: Mapping[str, Any]) -> bytes:
    rest = {"format": FORMAT, "version": VERSION, "files": files, "state": state}
    return _pretty({**rest, "sha256": _sum(rest)})


def _sum(rest: Mapping[str, Any]) -> str:
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _pretty(manifest: Mapping[str, Any]) -> bytes:
    return (json.dumps(manifest, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()


def _check_json(value: Any, name: str) -> None:
    """Refuse what JSON would drop or change: numbers that are not finite, tuples, keys that are no strings."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise InputError(f"{name} has the key {key!r} of type {type(key).__name__}: use a string")
            _check_json(item, f"{name}.{key}")
    elif isinstance(value, list):
        for i, item in enumerate(value):
            _check_json(item, f"{name}[{i}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{name} is {value}, which JSON cannot hold: keep it as a tensor or as None")
    elif value is not None and not isinstance(value, (str, int, float)):
        raise InputError(
            f"{name} is a {type(value).__name__}, {value!r:.60}: a state holds only JSON, tensors go apart"
        )


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # folders cannot be opened there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _put(temporary: Path, path: Path) -> None:
    """Rename a durable temporary; an old checkpoint of that name steps aside only for that moment."""
    with _aside(path):
        temporary.replace(path)
    _sync_folder(path.parent)


@contextmanager
def _aside(path: Path) -> Iterator[None]:
    if not path.exists():
        yield
        return
    old = _hidden(path.parent, path.name, "old")  # found by `_where` if the process is killed before the second rename
    path.replace(old)
    try:
        yield
    except BaseException:
        old.replace(path)
        raise
    _sync_folder(path.parent)
    _remove(old, path.name)


def _prune(folder: Path, written: str, keep: int) -> None:
    """Remove older checkpoints beyond `keep`; incomplete ones do not count, higher numbers are left alone."""
    if not (match := _NUMBERED.fullmatch(written)):
        return
    left = keep - 1
    for name in _names(folder, match["prefix"]):
        if _number(name) >= _number(written):
            continue
        if left == 0:
            _remove(folder / name, name)
        elif not _incomplete(folder / name):
            left -= 1
    _sync_folder(folder)


def _remove(path: Path, name: str) -> None:
    """Remove a folder under a name that is no checkpoint's, so that half of one never looks like one."""
    gone = _hidden(path.parent, name, "gone")
    path.replace(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _tidy(folder: Path, name: str) -> None:
    """Clear away what kills have left of this prefix; a checkpoint that had stepped aside comes back."""
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
    """Read, check and parse each file once, or only some: what was checked is what is used."""
    manifest, problems = _read_manifest(path)
    if manifest is None:
        return None, problems
    tensors = {}
    for file, expected in manifest["files"].items():
        if only is not None and file.removesuffix(".safetensors") not in only:
            continue
        data, problem = _bytes(path / file, expected["bytes"])
        if data is not None and (found := hashlib.sha256(data).hexdigest()) != expected["sha256"]:
            problem = f"{file} has the SHA-256 {found}, expected {expected['sha256']}"
        elif data is not None:
            try:
                tensors[file.removesuffix(".safetensors")] = load(data)
            except (SafetensorError, RuntimeError, ValueError, KeyError, TypeError, AssertionError) as error:
                problem = f"{file} is not safetensors ({error})"
        problems += [problem] if problem else []
    return (None if problems else Checkpoint(path, manifest["state"], tensors)), problems


def _read_manifest(path: Path) -> tuple[dict[str, Any] | None, list[str]]:
    data, problem = _bytes(path / MANIFEST)
    if data is None:
        return None, [problem]
    try:
        manifest = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return None, [f"{MANIFEST} is not JSON ({error})"]
    problem = _manifest_problem(manifest, data)
    return (None, [problem]) if problem else (manifest, [])


def _manifest_problem(manifest: Any, data: bytes) -> str:
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        return f"{MANIFEST} is not a manifest: expected the format {FORMAT!r}"
    if manifest.get("version") != VERSION:
        return f"{MANIFEST} has version {manifest.get('version')!r}, expected {VERSION}: a newer sihg may read it"
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    if (found := _sum(rest)) != manifest.get("sha256"):
        return f"{MANIFEST} has the SHA-256 {found}, expected {manifest.get('sha256')}"
    if data != _pretty(manifest):  # the sum is of the values; this is every byte
        return f"{MANIFEST} has {len(data)} bytes that are not as they were written, expected {len(_pretty(manifest))}"
    files = manifest.get("files")
    if not isinstance(files, dict) or not isinstance(manifest.get("state"), dict):
        return f"{MANIFEST} lists no files or no state"
    for file, expected in files.items():
        if not _PLAIN_NAME.fullmatch(file) or not file.endswith(".safetensors"):
            return f"{MANIFEST} lists {file!r}, which is not the plain name of a safetensors file"
        if not isinstance(expected, dict) or type(expected.get("bytes")) is not int or "sha256" not in expected:
            return f"{MANIFEST} gives no size or no SHA-256 of {file}"
    return ""


def _bytes(path: Path, expected: int | None = None) -> tuple[bytes | None, str]:
    """The bytes of a plain file of the expected size, or what is wrong."""
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            return None, f"{path.name} is not a plain file"
        with path.open("rb") as file:
            found = os.fstat(file.fileno()).st_size
            if expected is not None and found != expected:
                return None, f"{path.name} has {found} bytes, expected {expected}"
            return file.read(), ""
    except FileNotFoundError:
        return None, f"{path.name} is missing"
    except OSError as error:
        return None, f"{path.name} cannot be read ({error.strerror or error})"


def _incomplete(path: Path) -> bool:
    """Whether the manifest or a size is wrong; the sums of large files are left to the reader."""
    manifest, _ = _read_manifest(path)
    try:
        return manifest is None or any((path / f).stat().st_size != e["bytes"] for f, e in manifest["files"].items())
    except OSError:
        return True


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


# ---- names


def _names(folder: Path, prefix: str) -> list[str]:
    """The checkpoints PREFIX-NUMBER of a folder, those that stepped aside too; the highest number first."""
    names = set()
    for path in folder.iterdir() if folder.is_dir() else ():
        hidden = _HIDDEN.fullmatch(path.name)
        name = hidden["name"] if hidden and hidden["role"] == "old" else path.name
        match = _NUMBERED.fullmatch(name)
        if path.is_dir() and match and match["prefix"] == prefix:
            names.add(name)
    return sorted(names, key=lambda name: (_number(name), name), reverse=True)


def _where(path: Path) -> Path:
    """The folder of a checkpoint: its own, or where it stepped aside if a kill came just then."""
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
