"""Record what reaches the disk, in order: fsyncs of files and folders, renames and truncations."""

import os
from pathlib import Path
from typing import Any

import pytest


def record_disk_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows by "sync NAME BYTES", "sync NAME/", "replace FROM -> TO" and "mkdir NAME".

    Random endings of temporary names are shown as "*".
    """
    calls: list[str] = []
    originals = {name: getattr(os, name) for name in ("fsync", "replace", "mkdir")}

    def spy_fsync(handle: int) -> None:
        is_folder = (name := Path(f"/proc/self/fd/{handle}").readlink()).is_dir()
        calls.append(f"sync {shown(name)}/" if is_folder else f"sync {shown(name)} {os.fstat(handle).st_size}")
        originals["fsync"](handle)

    def spy_replace(source: Any, target: Any) -> None:
        calls.append(f"replace {shown(source)} -> {shown(target)}")
        originals["replace"](source, target)

    def spy_mkdir(path: Any, mode: int = 0o777, **more: Any) -> None:
        originals["mkdir"](path, mode, **more)
        calls.append(f"mkdir {shown(path)}")

    for name, spy in (("fsync", spy_fsync), ("replace", spy_replace), ("mkdir", spy_mkdir)):
        monkeypatch.setattr(os, name, spy)
    return calls


def shown(path: Any) -> str:
    """The last part of a path, with the random ending of a temporary name as "*"."""
    name = Path(os.fspath(path)).name
    return name if not name.startswith(".") else f"{name[:-8]}*"
