"""Folders of results: the files of a run, the lock of any folder, and what its results were made with."""

import os
import platform
import shlex
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from sihg.errors import InputError
from sihg.store.files import to_toml, write_text
from sihg.store.schema import Environment, read_record, write_record

LOCK_NAME = ".lock"
GRID = "grid.toml"  # the settings of a folder of runs that `sihg reproduce` made
OUTPUT = "output.log"  # what a grid's process prints; exists before the run does


class RunFolder:
    """The paths of one run's folder, and the rules for making, opening and clearing it.

    Args:
        path: The folder. It is neither made nor checked: see `create` and `open`.
    Example:
        >>> folder = RunFolder.create("runs/first")
        >>> folder.write_config({"method": {"name": "pgd", "eps": 0.1}})
        >>> RunFolder.open("runs/first").config.name
        'config.toml'
    """

    # What a run writes. config.toml is removed last, so that a removal cut short can be repeated.
    NAMES = (
        *("checkpoints", "evaluation", "memory"),
        *("index.html", "report"),
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
        """Make the folder of a new run; `overwrite` removes an earlier run from it, and no other files."""
        folder = cls(path)
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            if folder._contents():
                folder._make_room(overwrite=overwrite)
        except OSError as error:
            why = "it is a file" if folder.path.is_file() else error.strerror or error
            raise InputError("cannot-make-run", path=path, why=why) from error
        return folder

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Return the folder of an existing run, or raise InputError."""
        folder = cls(path)
        if not folder.path.exists():
            raise InputError("missing-run", path=path)
        if not folder.config.is_file():
            what = "has no config.toml" if folder.path.is_dir() else "is a file"
            raise InputError("not-a-run", path=path, what=what)
        return folder

    def write_config(self, settings: Mapping[str, object], comments: Mapping[str, str] | None = None) -> None:
        """Write the settings. This is the first file of a run: it makes the folder a run folder."""
        write_text(self.config, to_toml(settings, comments))

    def write_environment(self, *, threads: int, data_folder: Path | None = None) -> None:
        """Write versions, hardware, the number of threads and where the data lies."""
        where = None if data_folder is None else str(data_folder)
        write_record(self.environment, describe_environment(threads=threads, data_folder=where))

    def read_environment(self) -> Environment:
        """Read what the run was made with; an empty record if that was never written."""
        if not self.environment.exists():
            return Environment()
        return read_record(self.environment, Environment)

    def data_folder(self) -> Path | None:
        """Return where the run found its data, if that is known and still exists."""
        found = self.read_environment().data_folder
        return Path(found) if found and Path(found).is_dir() else None

    def clear(self, *, whole: bool) -> None:
        """Remove what a run has written, or with `whole` the folder itself; warn about what cannot be removed."""
        for path in [self.path] if whole else [self.path / name for name in self.NAMES]:
            try:
                _remove(path)
            except OSError as error:
                warnings.warn(f"cannot remove {path} ({error.strerror or error}): remove it yourself", stacklevel=2)

    def _contents(self) -> list[Path]:
        """List what lies in the folder, except its lock, its output and leftovers of interrupted writes."""
        leftovers = tuple(f".{name}." for name in self.NAMES)
        present = (path for path in sorted(self.path.iterdir()) if path.name not in (LOCK_NAME, OUTPUT))
        return [path for path in present if not path.name.startswith(leftovers)]

    def _make_room(self, *, overwrite: bool) -> None:
        if not self.config.is_file():
            raise InputError("folder-not-empty", path=self.path, name=self._contents()[0].name)
        if not overwrite:
            resume = f"sihg resume {shlex.quote(str(self.path))}"
            raise InputError("run-folder-exists", path=self.path, resume=resume)
        if foreign := [path.name for path in self._contents() if path.name not in self.NAMES]:
            raise InputError("foreign-file", path=self.path, name=foreign[0])
        with locked(self.path):
            for name in self.NAMES:
                for path in (*self.path.glob(f".{name}.*"), self.path / name):
                    _remove(path)

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# ---- the lock of a folder


class InUseError(InputError):
    """Raised when another process holds a folder's lock."""


@contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Hold a folder's lock; the kernel frees it when the process ends, however it ends.

    The lock file stays and names its holder: removing it would let two processes lock two files of that name.

    Args:
        folder: An existing folder.
    Raises:
        InUseError: If another process, or another block of this one, holds the lock.
        InputError: If the folder is missing, cannot be written to, or lies on a disk without locks.
    Example:
        >>> with locked("."):
        ...     Path(".lock").read_text().startswith(f"{os.getpid()} on ")
        True
    """
    from filelock import FileLock, Timeout  # takes 30 ms

    path = Path(folder) / LOCK_NAME
    lock = FileLock(path, timeout=0, preserve_lock_file=True, on_acquired=_write_holder)
    try:
        path.parent.stat()  # FileLock would make a missing folder
        lock.acquire()
    except Timeout:
        raise InUseError("folder-in-use", folder=folder, holder=_read_holder(path)) from None
    except OSError as error:
        raise InputError("cannot-lock", folder=folder, reason=error.strerror or error) from error
    try:
        yield
    finally:
        with suppress(OSError):  # the name is for people; the lock itself is freed below
            os.truncate(path, 0)
        lock.release()


def _write_holder(handle: int) -> None:
    with suppress(OSError):  # a full disk: the lock holds without a name
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()} on {platform.node()}".encode())


def _read_holder(path: Path) -> str:
    with suppress(OSError):  # Windows does not let others read a locked file
        if holder := path.read_text(encoding="utf-8", errors="replace"):
            return f"process {holder}"
    return "another process"


# ---- what a result was made with


def describe_environment(
    *, threads: int | None = None, dtype: str | None = None, data_folder: str | None = None
) -> Environment:
    """Return a record of the versions and the processor here, for files that say what a result was made with."""
    return Environment(
        python=platform.python_version(),
        sihg=_version("sihg"),
        torch=_version("torch"),
        numpy=_version("numpy"),
        processor=_processor(),
        cores=str(os.cpu_count()),
        threads=threads,
        dtype=dtype,
        data_folder=data_folder,
    )


def _version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version  # takes 10 ms

    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
