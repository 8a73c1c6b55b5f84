"""Files that are either whole or not there."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sihg.errors import InputError


def write_whole(path: str | Path, write: Callable[[Path], object]) -> Path:
    """Let `write` fill a temporary file beside `path`, then move it there; a crash leaves the old file or none."""
    path = Path(path)
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise InputError(
            f"cannot write {path} ({error.strerror or error}): free the place or choose another"
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return path


def make_folder(path: Path) -> None:
    """Make a folder, and be sure that it can be written to, before the work whose results go there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        why = "it is a file" if isinstance(error, FileExistsError) else error.strerror or error
        raise InputError(f"cannot write into the folder {path} ({why}): free the place or choose another") from error


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file, whole or not at all."""
    return write_whole(path, lambda p: p.write_text(text, encoding="utf-8", newline=""))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_json(path: Path, remedy: str = "repair it, or take it away") -> dict[str, Any]:
    """The object in a file; what is none is an error that ends with the remedy."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path} ({getattr(error, 'strerror', None) or error}): {remedy}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no JSON object: {remedy}")
    return content
