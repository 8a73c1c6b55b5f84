"""Folders of results: the files of a run, the lock of any folder, and what its results were made with."""

import os
import platform
import shlex
import shutil
import stat
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Self

from sihg.errors import InputError, SihgError
from sihg.launch import launch_id
from sihg.store.files import list_names, make_parents, refuse_link, status, temporary_of, write_bytes
from sihg.store.manifest import newest_manifest
from sihg.store.schema import Environment, Failure, read_record, toml_bytes, write_record
from sihg.store.trust import OWNER, is_own, mark_own

LOCK_NAME = ".lock"
GRID = "grid.toml"  # the settings of a folder of runs that `sihg reproduce` made
OUTPUT = "output.log"  # what a grid's process prints; exists before the run does
_ENDINGS = {  # of the files in the folders of a run
    "checkpoints": (".safetensors", "manifest.json"),
    "evaluation": (".json", ".npz", ".npy", ".svg", ".png"),
    "memory": (".bin", "memory.json"),
    "report": (".svg", ".png", ".csv", ".md", ".html"),
    "tensorboard": (".events",),
}


class RunFolder:
    """The paths of one run's folder, and the rules for making, opening and clearing it.

    Args:
        path: The folder. It is neither made nor checked: see `create` and `open`.
    Example:
        >>> folder = RunFolder.create("runs/first")
        >>> folder.begin({"method": {"name": "pgd", "eps": 0.1}}, threads=1)
        >>> RunFolder.open("runs/first").config.name
        'config.toml'
    """

    # What a run writes. While config.toml is there, a removal cut short can be repeated, and the launch that began the
    # run can continue it; the two files after it are no run.
    NAMES = (
        *("checkpoints", "evaluation", "memory"),
        *("index.html", "report", "tensorboard"),
        *("gallery.npz", "metrics.csv", "log.jsonl", "memory.csv"),
        *("accepted.json", "failure.json", "loggers.jsonl"),
        *("config.toml", OWNER, "environment.json"),
    )

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.toml"
        self.metrics = self.path / "metrics.csv"
        self.log = self.path / "log.jsonl"
        self.environment = self.path / "environment.json"
        self.failure = self.path / "failure.json"  # why a launch has ended and is not to be tried again
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
            make_parents(folder.path / "any")
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
        if status(folder.path) is None:
            raise InputError("missing-run", path=path)
        if status(folder.config) is None:
            what = "has no config.toml" if folder.path.is_dir() else "is a file"
            raise InputError("not-a-run", path=path, what=what)
        return folder

    def begin(
        self,
        settings: Mapping[str, object],
        comments: Mapping[str, str] | None = None,
        *,
        threads: int,
        data_folder: Path | None = None,
    ) -> None:
        """Write what a run begins with: its mark and its environment, and last config.toml, which makes it a run."""
        config = toml_bytes(settings, comments)
        where = None if data_folder is None else str(data_folder)
        mark_own(self.path, config)
        environment = describe_environment(threads=threads, data_folder=where, launch=launch_id())
        write_record(self.environment, environment)
        write_bytes(self.config, config)

    def read_environment(self) -> Environment:
        """Read what the run was made with; an empty record if that was never written."""
        if status(self.environment) is None:
            return Environment()
        return read_record(self.environment, Environment)

    def threads(self) -> int | None:
        """Return the number of threads that the run computes with, by its newest checkpoint or from its beginning."""
        manifest = newest_manifest(self.checkpoints, "last")
        found = None if manifest is None else manifest.state.get("threads")
        return found if isinstance(found, int) else self.read_environment().threads

    def is_of_launch(self) -> bool:
        """Return whether the folder has a run that torchrun began, and whose processes it now starts again."""
        begun = status(self.path) is not None and status(self.config) is not None
        return begun and bool(launch_id()) and self.read_environment().launch == launch_id()

    def keep_failure(self, error: SihgError) -> None:
        """Record an error that every restart of this launch would meet again."""
        if launch_id():
            write_record(self.failure, Failure(launch=launch_id(), code=error.code, message=str(error)))

    def check_failure(self) -> None:
        """Raise InputError if an error has ended this launch before torchrun started its processes again."""
        if status(self.failure) is None:
            return
        failure = read_record(self.failure, Failure)
        if failure.launch == launch_id():
            resume = f"sihg resume {shlex.quote(str(self.path))}"
            raise InputError("launch-failed", path=self.failure, error=failure.code, resume=resume)

    def forget_failure(self) -> None:
        """Remove the error of an earlier launch: somebody has decided to try again."""
        self.failure.unlink(missing_ok=True)

    def is_own(self) -> bool:
        """Return whether this user's own command made the run."""
        return is_own(self.path, self.config)

    def data_folder(self, *, trust: bool = False) -> Path | None:
        """Return where the run found its data; None if that is gone, or if the folder is foreign and not trusted."""
        found = self.read_environment().data_folder
        if not found or not Path(found).is_dir():
            return None
        return Path(found) if trust or self.is_own() else None

    def clear(self, *, whole: bool) -> None:
        """Remove what a run has written, with `whole` also the folder itself; warn about what cannot be removed."""
        for path in [self.path / name for name in self.NAMES]:
            try:
                self._check_known(path)
                _remove(path)
            except (OSError, InputError) as error:
                reason = getattr(error, "strerror", None) or error
                warnings.warn(f"cannot remove {path} ({reason}): remove it yourself", stacklevel=2)
        if whole:
            with suppress(OSError):  # it holds something else, which stays
                (self.path / LOCK_NAME).unlink(missing_ok=True)
                self.path.rmdir()

    def check_links(self) -> None:
        """Raise InputError if a folder in which the run writes is a link: it would write elsewhere."""
        for path in (self.checkpoints, self.evaluation, self.memory):
            refuse_link(path)

    def _contents(self) -> list[str]:
        """List what lies in the folder, except its lock, its output and leftovers of interrupted writes.

        What a run writes before config.toml is such a leftover, too, as long as there is no config.toml.
        """
        present = [name for name in list_names(self.path) if name not in (LOCK_NAME, OUTPUT)]
        present = [name for name in present if not self._is_leftover(name)]
        return [] if set(present) <= {OWNER, self.environment.name} else present

    def _is_leftover(self, name: str) -> bool:
        return temporary_of(name) in self.NAMES

    def _make_room(self, *, overwrite: bool) -> None:
        if status(self.config) is None:
            raise InputError("folder-not-empty", path=self.path, name=self._contents()[0])
        if not overwrite:
            resume = f"sihg resume {shlex.quote(str(self.path))}"
            raise InputError("run-folder-exists", path=self.path, resume=resume)
        with locked(self.path):
            if foreign := [name for name in self._contents() if name not in self.NAMES]:
                raise InputError("foreign-file", path=self.path, name=foreign[0])
            for name in self.NAMES:
                self._check_known(self.path / name)
            for name in (*filter(self._is_leftover, list_names(self.path)), *self.NAMES):
                _remove(self.path / name)

    def _check_known(self, path: Path) -> None:
        """Raise InputError if a folder of the run holds a file that no command of ours wrote."""
        found, endings = status(path), _ENDINGS.get(path.name, ())
        if found is None or not stat.S_ISDIR(found.st_mode):
            return
        for folder, _, files in os.walk(path, onerror=_raise):
            for name in files:
                if not name.endswith(endings) and temporary_of(name) is None:
                    raise InputError("foreign-file", path=self.path, name=Path(folder, name).relative_to(self.path))

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"


def _raise(error: OSError) -> None:
    raise error


def _remove(path: Path) -> None:
    found = status(path)
    if found is not None and stat.S_ISDIR(found.st_mode):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# ---- the lock of a folder


class InUseError(InputError):
    """Raised when another process holds a folder's lock.

    Example:
        >>> issubclass(InUseError, ValueError)
        True
    """


class WaitWarning(UserWarning):
    """Another process holds a folder's lock, and is waited for."""


class FolderHandle:
    """A folder in which work goes on. It notices that the folder was moved, removed or replaced.

    The folder is held open, so that no other one can get its inode.

    Args:
        folder: An existing folder.
    Example:
        >>> _ = RunFolder.create("runs/first")
        >>> handle = FolderHandle("runs/first")
        >>> _ = Path("runs/first").rename("runs/second")
        >>> handle.check()
        Traceback (most recent call last):
        sihg.errors.InputError: runs/first was moved, removed or replaced while it was in use: ...
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder)
        self._known: dict[Path, tuple[int, int]] = {}
        self._handle: int | None = None
        with suppress(OSError):  # Windows cannot open folders
            self._handle = os.open(self.path, os.O_RDONLY)
        self.include(self.path)

    def include(self, path: Path) -> None:
        """Check also that this file stays the one that it is now."""
        found = path.stat()
        self._known[path] = (found.st_dev, found.st_ino)

    def check(self) -> None:
        """Raise InputError unless the path still leads to the folder that it was at the beginning."""
        for path, known in self._known.items():
            try:
                found = path.stat()
            except FileNotFoundError:
                found = None
            except OSError as error:
                raise InputError("cannot-look", path=path, reason=error.strerror or error) from error
            if found is None or (found.st_dev, found.st_ino) != known:
                raise InputError("folder-moved", path=self.path)

    def close(self) -> None:
        """Let the folder go."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __del__(self) -> None:
        self.close()


@contextmanager
def locked(folder: str | Path, *, wait_seconds: float = 0.0) -> Iterator[FolderHandle]:
    """Hold a folder's lock; the kernel frees it when the process ends, however it ends.

    The lock file stays and names its holder: removing it would let two processes lock two files of that name.

    Args:
        folder: An existing folder.
        wait_seconds: How long to wait for a process that holds the lock and may be about to end.
    Yields:
        The folder's handle, which also notices that the lock file was removed or replaced.
    Warns:
        WaitWarning: Once, before it waits.
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
    lock = FileLock(path, timeout=0.0, preserve_lock_file=True, on_acquired=_write_holder)
    try:
        path.parent.stat()  # FileLock would make a missing folder
        _check_lock_file(path)
        try:
            lock.acquire()
        except Timeout:
            if not wait_seconds:
                raise
            about = f"{folder} is in use by {_read_holder(path)}: waiting up to {wait_seconds:g} seconds for its end"
            warnings.warn(about, WaitWarning, stacklevel=3)
            lock.acquire(timeout=wait_seconds)
    except Timeout:
        raise InUseError("folder-in-use", folder=folder, holder=_read_holder(path)) from None
    except OSError as error:
        raise InputError("cannot-lock", folder=folder, reason=error.strerror or error) from error
    try:
        with closing(FolderHandle(folder)) as handle:
            handle.include(path)
            try:
                yield handle
            finally:
                with suppress(OSError, InputError):  # the name is for people; the lock itself is freed below
                    handle.check()
                    os.truncate(path, 0)
    finally:
        lock.release()


def _check_lock_file(path: Path) -> None:
    """Raise InputError if the lock file is a link or has another name: its holder's name is written into it."""
    found = status(path)
    if found is not None and (not stat.S_ISREG(found.st_mode) or found.st_nlink > 1):
        raise InputError("linked-file", path=path, what="a link or has a second name")


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
    *, threads: int | None = None, dtype: str | None = None, data_folder: str | None = None, launch: str = ""
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
        launch=launch,
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
