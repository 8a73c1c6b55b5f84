"""A grid of runs, methods times seeds, in one folder: which cells there are, and how far each is."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sihg.errors import InputError
from sihg.robust.training.config import SECTIONS, Settings, run_settings
from sihg.store.files import read_json, write_text
from sihg.store.lock import LOCK_NAME, locked
from sihg.store.run_folder import GRID, OUTPUT, RunFolder
from sihg.store.tables import read_table
from sihg.store.toml import from_toml, to_toml

ABOUT = "# The settings of the runs here. `sihg reproduce` may add methods and seeds, and changes nothing else.\n"
NAMED = 3  # differences that an error names


@dataclass(frozen=True)
class Cell:
    """One run of a grid and its evaluation."""

    folder: Path
    settings: Settings  # complete
    attacks: tuple[str, ...]
    samples: int | None  # of the test set; None for all

    @property
    def name(self) -> str:
        """What to call it."""
        return self.folder.name

    @property
    def method(self) -> str:
        """The name of its method."""
        return str(self.settings.method["name"])

    @property
    def log(self) -> Path:
        """What its processes have said."""
        return self.folder / OUTPUT

    def last(self) -> dict[str, str]:
        """The newest row of its metrics; empty where there is none."""
        metrics = RunFolder(self.folder).metrics
        rows = read_table(metrics) if metrics.is_file() else []
        return rows[-1] if rows else {}

    def epochs(self) -> int:
        """How many epochs are done."""
        return int(self.last().get("epoch", 0))

    def state(self) -> str:
        """How far it is, in words."""
        if self.record() is not None:
            return "done"
        if not RunFolder(self.folder).config.is_file():
            return "to do"
        done, epochs = self.epochs(), self.settings.epochs
        return "trained" if done >= epochs else f"{done} of {epochs} epochs"

    def remaining(self, phases: Mapping[str, float]) -> float:
        """The seconds that it still takes, of those of its phases; none where it is done."""
        if self.record() is not None:
            return 0.0
        return sum(phases.values()) - phases["training"] * min(1.0, self.epochs() / self.settings.epochs)

    def record(self) -> dict[str, Any] | None:
        """The evaluation of the finished run; None as long as there is none. A damaged one is made again."""
        last = self.last()
        if int(last.get("epoch", 0)) < self.settings.epochs:
            return None
        for file in sorted(RunFolder(self.folder).evaluation.glob("*.json")):
            try:
                found = read_json(file)
            except InputError:
                continue
            if self._is_answer(found) and Path(str(found["weights"])).name == f"last-{int(last['step']):08d}":
                return found
        return None

    def _is_answer(self, record: Mapping[str, Any]) -> bool:
        """Whether a record answers what is asked of this cell."""
        own = self.settings
        asked = {"split": "test", "seed": 0, "checkpoint": "last", "rule": "any iterate", "data": own.data}
        asked |= {"samples": self.samples or record.get("of"), "eps": own.eps, "norm": own.norm}
        asked["bounds"] = None if own.bounds is None else list(own.bounds)
        attacks = {row["attack"] for row in record.get("attacks", [])} - {"all"}
        return attacks == set(self.attacks) and all(record.get(key) == value for key, value in asked.items())


@dataclass(frozen=True)
class Grid:
    """Methods times seeds: the settings of each method, how often each is run, and what is asked of the results."""

    folder: Path
    settings: Mapping[str, Settings]  # by method
    trials: int
    attacks: tuple[str, ...]
    samples: int | None
    threads: int  # of each cell: sums are in another order with more

    def cells(self) -> list[Cell]:
        """All cells, seed by seed, so that methods can be compared early."""
        return [
            Cell(
                self.folder / f"{method}-s{seed}",
                replace(settings, seed=seed).complete(),
                self.attacks,
                self.samples,
            )
            for seed in range(self.trials)
            for method, settings in self.settings.items()
        ]

    def check(self) -> None:
        """Refuse a folder that is somebody else's, or that has runs with other settings."""
        if not self.folder.exists():
            return
        if not self.folder.is_dir():
            raise InputError(f"{self.folder} is a file: choose another --out")
        config = self.folder / GRID
        if config.is_file():
            self._check_same(f"{self.folder} has", dotted(from_toml(config)), dotted(self._config()))
        elif foreign := [p.name for p in sorted(self.folder.iterdir()) if not _is_ours(p.name)]:
            raise InputError(
                f"{self.folder} is not empty (it has {foreign[0]}) and has no {GRID}: choose another --out"
            )
        for cell in self.cells():
            self._check_cell(cell)

    def _check_cell(self, cell: Cell) -> None:
        folder = RunFolder(cell.folder)
        if not folder.config.is_file():
            return
        theirs, ours = (dotted(_plain(one.as_dict())) for one in (run_settings(folder.config), cell.settings))
        began = folder.read_environment().threads or self.threads
        self._check_same(f"{cell.folder} has", {**theirs, "threads": began}, {**ours, "threads": self.threads})

    def _check_same(self, what: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
        mine = {method for method in self.settings if f"methods.{method}.epochs" in theirs}
        keys = [key for key in {**theirs, **ours} if not key.startswith("methods.") or key.split(".")[1] in mine]
        if differing := [key for key in keys if theirs.get(key) != ours.get(key)]:
            shown = [f"{k} = {theirs.get(k, 'none')} (here {ours.get(k, 'none')})" for k in differing[:NAMED]]
            more = f" and {len(differing) - NAMED} more" if len(differing) > NAMED else ""
            raise InputError(f"{what} {', '.join(shown)}{more}: give the same settings, or choose another --out")

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Hold the folder, which is made where it is not there, with the settings kept in it."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make {self.folder} ({error.strerror or error}): choose another --out") from error
        with locked(self.folder):
            self.check()
            config = self.folder / GRID
            before = from_toml(config) if config.is_file() else {}
            now = self._config()
            now["methods"] = {**before.get("methods", {}), **now["methods"]}
            if now != before:
                write_text(config, ABOUT + to_toml(now))
            yield

    def _config(self) -> dict[str, Any]:
        """What is kept in the folder. The seeds are not: there may always be more."""
        methods = {}
        for name, settings in self.settings.items():
            methods[name] = {k: v for k, v in settings.complete().as_dict().items() if k != "seed"}
        samples = "all" if self.samples is None else self.samples
        return _plain({"attacks": self.attacks, "test_samples": samples, "threads": self.threads, "methods": methods})


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _is_ours(name: str) -> bool:
    """Whether a name is that of the lock, or of a half file of a write that was cut short."""
    return name == LOCK_NAME or name.startswith(f".{GRID}.")


def _plain(table: Mapping[str, Any]) -> dict[str, Any]:
    """As a file gives it back: lists for tuples."""
    plain: dict[str, Any] = json.loads(json.dumps(table))
    return plain


def dotted(table: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their dotted names."""
    flat = dict(table)
    for section in ("methods", *SECTIONS):
        for key, value in flat.pop(section, {}).items():
            inner = dotted(value) if isinstance(value, Mapping) else {"": value}
            flat |= {f"{section}.{key}.{name}".rstrip("."): item for name, item in inner.items()}
    return flat
