"""A grid of runs, methods times seeds, in one folder: which cells it has, and the progress of each."""

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from sihg.errors import InputError
from sihg.experiments.launcher import Progress
from sihg.parse import MAX_NAME_BYTES, file_name
from sihg.robust.training.config import Settings
from sihg.store import schema
from sihg.store.answers import AnyRecord
from sihg.store.files import list_names, make_parents, status, temporary_of, write_bytes
from sihg.store.manifest import newest_manifest
from sihg.store.run_folder import GRID, LOCK_NAME, OUTPUT, RunFolder, locked
from sihg.store.schema import EvaluationRecord, GridConfig, MetricsRow
from sihg.store.tables import read_table
from sihg.store.trust import OWNER, is_own, mark_own


class RecordWarning(UserWarning):
    """A record of a cell cannot be used."""


@dataclass(frozen=True)
class Cell:
    """One run of a grid, and its evaluation."""

    folder: Path
    settings: Settings  # complete
    attacks: tuple[str, ...]
    samples: int | None  # of the test set; None for all

    @property
    def name(self) -> str:
        """The name of its folder, such as pgd-s0."""
        return self.folder.name

    @property
    def method(self) -> str:
        """The name of its method."""
        return self.settings.method.name

    @property
    def log(self) -> Path:
        """The file that receives all output of its processes."""
        return self.folder / OUTPUT

    def begin(self, threads: int, data_dir: Path | None = None) -> None:
        """Make the run folder for the cell's process, unless there is one already."""
        from sihg.robust.training.fit import new_folder  # imports torch

        if status(RunFolder(self.folder).config) is None:
            new_folder(self.folder, self.settings, threads=threads, data_dir=data_dir)  # refuses other files

    def last_row(self) -> MetricsRow | None:
        """Return the newest row of its metrics; None before the end of the first epoch."""
        metrics = RunFolder(self.folder).metrics
        rows = read_table(metrics, sealed=True) if status(metrics) is not None else []
        return MetricsRow.from_cells(rows[-1]) if rows else None

    def epochs_done(self) -> int:
        """Return how many epochs are done."""
        last = self.last_row()
        return 0 if last is None else last.epoch

    def progress(self) -> Progress:
        """Return how far its training is, or that its evaluation has begun, from what its folder holds."""
        done, epochs = self.epochs_done(), self.settings.epochs
        return Progress("training", done, epochs) if done < epochs else Progress(self.attacks[0], 0, 1)

    def state(self) -> str:
        """Say how far it is: "to do", "3 of 20 epochs", "trained" or "done"."""
        if self.record() is not None:
            return "done"
        if status(RunFolder(self.folder).config) is None:
            return "to do"
        done, epochs = self.epochs_done(), self.settings.epochs
        return "trained" if done >= epochs else f"{done} of {epochs} epochs"

    def remaining(self, phases: Mapping[str, float]) -> float:
        """Return the seconds that are left, given the seconds of its phases."""
        if self.record() is not None:
            return 0.0
        return sum(phases.values()) - phases["training"] * min(1.0, self.epochs_done() / self.settings.epochs)

    def record(self) -> EvaluationRecord | None:
        """Return the evaluation of the finished run's newest weights, or None before that evaluation.

        A record that is damaged is made again, with a warning.
        """
        last = self.last_row()
        if last is None or last.epoch < self.settings.epochs:
            return None
        newest = newest_manifest(RunFolder(self.folder).checkpoints, "last")
        for found in self.records():
            is_newest = newest is not None and found.sha256 == newest.state.get("weights")
            if isinstance(found, EvaluationRecord) and is_newest and self._is_asked(found):
                return found
        return None

    def records(self) -> Iterator[AnyRecord]:
        """Read every evaluation of the run, also those that were made later; warn of damaged ones."""
        folder = RunFolder(self.folder).evaluation
        for name in list_names(folder):
            if not name.endswith(".json") or name.startswith("."):
                continue
            try:
                yield schema.read_evaluation(folder / name)
            except InputError as error:
                warnings.warn(f"{error}; it is made again", RecordWarning, stacklevel=2)

    def _is_asked(self, record: EvaluationRecord) -> bool:
        """Whether a record answers the question of this cell."""
        run = self.settings
        expected = ("test", 0, "last", "any iterate", run.data, self.samples or record.of, run.eps, run.norm)
        found = (record.split, record.seed, record.checkpoint, record.rule, record.data, record.samples)
        attacks = {row.attack for row in record.attacks} - {"all"}
        is_same_ball = (*found, record.eps, record.norm) == expected and record.bounds == run.bounds
        return is_same_ball and record.precision == "float32" and attacks == set(self.attacks)


@dataclass(frozen=True)
class Grid:
    """Methods times seeds in one folder.

    Args:
        folder: Where the runs are, each in METHOD-sSEED.
        settings: The settings of each method, by its name.
        trials: The number of seeds, from 0.
        attacks: The attacks of the evaluations.
        samples: How many test samples are attacked; None for all.
        threads: The threads of each cell. Floating-point sums depend on their number.
        trust: Whether to use what lies in the folder although no command of yours made it.
        remarks: What to tell about the settings.
        command: The command that asks for the grid, kept for its page (default: none, it was asked for in Python).
    Example:
        >>> grid = Grid(Path("runs/small"), {"pgd": Settings(epochs=2)}, trials=2, attacks=("natural", "pgd-20"))
        >>> [cell.name for cell in grid.cells()]
        ['pgd-s0', 'pgd-s1']
    """

    folder: Path
    settings: Mapping[str, Settings]
    trials: int
    attacks: tuple[str, ...]
    samples: int | None = None
    threads: int = 1
    trust: bool = False
    remarks: tuple[str, ...] = ()
    command: str = ""

    def __post_init__(self) -> None:
        for method, run in self.settings.items():
            if "auto" in (run.precision, run.train_precision):
                raise InputError("grid-precision-auto", method=method)

    def cells(self) -> list[Cell]:
        """Return all cells, seed by seed, so that methods can be compared early."""
        return [
            Cell(self.folder / _cell_name(method, seed), self._settings(run, seed), self.attacks, self.samples)
            for seed in range(self.trials)
            for method, run in self.settings.items()
        ]

    def _settings(self, run: Settings, seed: int) -> Settings:
        return replace(run, seed=seed, threads=self.threads).complete()

    def check(self) -> None:
        """Raise InputError if the folder has other files, or runs with other settings."""
        if status(self.folder) is None:
            return
        if not self.folder.is_dir():
            raise InputError("out-is-a-file", out=self.folder)
        config = self.folder / GRID
        if status(config) is not None:
            before = schema.read_grid_config(config)  # names the file if it was changed
            if not self.trust and not is_own(self.folder, config):
                raise InputError("foreign-grid", folder=self.folder)
            self._check_config(before)
        elif foreign := [name for name in list_names(self.folder) if not _is_ours(name)]:
            raise InputError("folder-not-a-grid", found=foreign[0], folder=self.folder, file=GRID)
        for cell in self.cells():
            self._check_cell(cell)

    def _check_config(self, before: GridConfig) -> None:
        shared = [name for name in self.settings if name in before.methods]  # further methods may be added
        configs = [msgspec.structs.asdict(config) for config in (before, self._config())]
        for config in configs:
            del config["command"]
            config["methods"] = {name: config["methods"][name] for name in shared}
        _check_same(self.folder, *map(schema.flatten_settings, configs))

    def _check_cell(self, cell: Cell) -> None:
        folder = RunFolder(cell.folder)
        if status(folder.config) is None:
            return
        theirs = schema.read_run_config(folder.config).settings  # compared as text: nothing that it names is loaded
        ours = schema.flatten_settings(cell.settings.as_dict())
        threads = folder.threads() or self.threads
        _check_same(cell.folder, {**theirs, "threads": threads}, {**ours, "threads": self.threads})

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Make the folder if needed, hold its lock, and keep the settings in it."""
        try:
            make_parents(self.folder / GRID)
        except OSError as error:
            raise InputError("cannot-make-folder", folder=self.folder, reason=error.strerror or error) from error
        with locked(self.folder):
            self.check()
            path, config = self.folder / GRID, self._config()
            before = schema.read_grid_config(path) if status(path) is not None else None
            if before is not None:
                command = config.command or before.command
                config = msgspec.structs.replace(config, methods={**before.methods, **config.methods}, command=command)
            if config != before:
                content = schema.grid_config_bytes(config)
                mark_own(self.folder, content)
                write_bytes(path, content)
            yield

    def _config(self) -> GridConfig:
        per_grid = ("seed", "threads")  # given for all methods
        methods = {
            name: {k: v for k, v in schema.flatten_settings(run.complete().as_dict()).items() if k not in per_grid}
            for name, run in self.settings.items()
        }
        samples = "all" if self.samples is None else self.samples
        return GridConfig(
            attacks=self.attacks,
            test_samples=samples,  # type: ignore[arg-type]
            threads=self.threads,
            methods=methods,
            command=self.command,
        )


def count_cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _is_ours(name: str) -> bool:
    """Whether a file is the lock, or left by a write that was cut short."""
    return name in (LOCK_NAME, OWNER) or temporary_of(name) in (GRID, OWNER)


def _cell_name(method: str, seed: int) -> str:
    """Return METHOD-sSEED; the path of a user's method would lead out of the grid's folder."""
    is_plain = "/" not in method and len(method.encode()) <= MAX_NAME_BYTES
    return f"{method if is_plain else file_name(method, hashed=True)}-s{seed}"


def _check_same(folder: Path, theirs: schema.Settings, ours: schema.Settings) -> None:
    if differing := schema.differing_settings(theirs, ours):
        raise InputError(
            "grid-settings-differ",
            settings=tuple(difference.name for difference in differing),
            folder=folder,
            differing=schema.describe_differences(differing),
        )
