"""The folder of one run: what lies where, and when it may be written."""

import json
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from sihg.errors import InputError
from sihg.store.environment import environment
from sihg.store.files import write_text
from sihg.store.lock import LOCK_NAME, locked
from sihg.store.toml import from_toml, to_toml

GRID = "grid.toml"  # the settings of a folder of runs that `sihg reproduce` made
OUTPUT = "output.log"  # what a process that trains and evaluates for a grid says; it is there before the run


class RunFolder:
    """Paths and rules of one run's folder."""

    # What a run writes; the config goes last when a run is removed, so that a removal cut short can be repeated.
    NAMES = (
        *("checkpoints", "evaluation", "memory"),
        *("index.html", "report"),  # its report
        *("gallery.npz", "metrics.csv", "log.jsonl", "memory.csv", "environment.json", "config.toml"),
    )

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.toml"
        self.metrics = self.path / "metrics.csv"
        self.log = self.path / "log.jsonl"
        self.environment = self.path / "environment.json"
        self.checkpoints = self.path / "checkpoints"
        self.memory = self.path / "memory"  # mapped files of the perturbation memory
        self.memory_table = self.path / "memory.csv"
        self.evaluation = self.path / "evaluation"
        self.gallery = self.path / "gallery.npz"

    @classmethod
    def create(cls, path: str | Path, *, overwrite: bool = False) -> Self:
        """Make the folder of a new run; `overwrite` removes an earlier run from it, and nothing else."""
        folder = cls(path)
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            if folder._contents():
                folder._make_room(overwrite=overwrite)
        except OSError as error:
            why = "it is a file" if folder.path.is_file() else error.strerror or error
            raise InputError(f"cannot make the run folder {path} ({why}): choose another --out") from error
        return folder

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Give the folder of an existing run."""
        folder = cls(path)
        if not folder.path.is_dir():
            what = "is a file, not a run folder" if folder.path.exists() else "does not exist"
            raise InputError(f"{path} {what}: give the folder that a run was told with --out")
        if not folder.config.is_file():
            raise InputError(f"{path} has no config.toml, so it is not a run folder: give the folder of a run")
        return folder

    def write_config(self, settings: Mapping[str, Any], comments: Mapping[str, str] | None = None) -> None:
        """Write the settings of the run; the first file of a run, since it makes the folder one."""
        write_text(self.config, to_toml(settings, comments))

    def read_config(self) -> dict[str, Any]:
        """Read the settings of the run."""
        return from_toml(self.config)

    def write_environment(self, extra: Mapping[str, Any]) -> None:
        """Write what the run was made with: versions, hardware, and `extra`."""
        write_text(self.environment, json.dumps({**environment(), **extra}, indent=1) + "\n")

    def read_environment(self) -> dict[str, Any]:
        """Read what the run was made with; nothing where that is lost, since no result depends on it."""
        try:
            found = json.loads(self.environment.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def data_folder(self) -> Path | None:
        """Where the run found its data, if that is known and still there."""
        found = self.read_environment().get("data_folder")
        return Path(found) if isinstance(found, str) and Path(found).is_dir() else None

    def clear(self, *, whole: bool) -> None:
        """Remove what a run has written, as far as it can be; `whole`: and the folder itself with all that is in it."""
        for path in [self.path] if whole else [self.path / name for name in self.NAMES]:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def _contents(self) -> list[Path]:
        """What lies in the folder, apart from its lock, its output and half files of writes that were cut short."""
        cut_short = tuple(f".{name}." for name in self.NAMES)
        there = (p for p in sorted(self.path.iterdir()) if p.name not in (LOCK_NAME, OUTPUT))
        return [p for p in there if not p.name.startswith(cut_short)]

    def _make_room(self, *, overwrite: bool) -> None:
        if not self.config.is_file():
            raise InputError(
                f"{self.path} is not empty (it has {self._contents()[0].name}) and is not a run folder: "
                "choose another --out"
            )
        if not overwrite:
            resume = f"sihg resume {shlex.quote(str(self.path))}"
            raise InputError(
                f"{self.path} already has a run: go on with it (`{resume}`), replace it (--overwrite) "
                "or choose another --out"
            )
        if foreign := [path.name for path in self._contents() if path.name not in self.NAMES]:
            raise InputError(
                f"{self.path} has {foreign[0]}, which no run writes: move it away, or choose another --out"
            )
        with locked(self.path):
            for path in (p for name in self.NAMES for p in (*self.path.glob(f".{name}.*"), self.path / name)):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"
