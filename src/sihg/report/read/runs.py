"""Read the run folders that `sihg train ... --out DIR` leaves, finished or not: settings, epochs, evaluations."""

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sihg.errors import InputError
from sihg.report.read.evaluations import Evaluation, RadiusCurve, counted, finite, read_evaluations
from sihg.store.files import read_json
from sihg.store.run_folder import GRID, RunFolder
from sihg.store.tables import read_json_lines, read_table
from sihg.store.toml import from_toml

Row = Mapping[str, float | None]
NUMBERS = ("epoch", "step", "accuracy", "natural", "robust", "passes", "seconds")  # of metrics.csv


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """All that a run folder says."""

    name: str
    folder: RunFolder
    config: str  # the file as it is
    settings: Mapping[str, Any]  # by dotted name
    rows: tuple[Row, ...]
    warnings: tuple[str, ...]
    environment: Mapping[str, Any]
    evaluations: tuple[Evaluation, ...]
    radii: tuple[RadiusCurve, ...]
    doubts: tuple[str, ...]  # about its evaluations

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.settings.get("method.name", "unknown"))

    @property
    def epochs(self) -> int:
        """Epochs that are done."""
        return int(self.rows[-1]["epoch"] or 0) if self.rows else 0

    @property
    def asked(self) -> int | None:
        """Epochs that the run shall have."""
        asked = self.settings.get("epochs")
        return asked if isinstance(asked, int) else None

    @property
    def is_finished(self) -> bool:
        """Whether it has all its epochs."""
        return self.asked is None or self.epochs >= self.asked

    @property
    def last(self) -> Row:
        """The row of the last evaluation on held-out samples; empty where there was none."""
        return next((row for row in reversed(self.rows) if row["robust"] is not None), {})

    @property
    def best(self) -> Row:
        """The row of the best robust accuracy on held-out samples, the first of equals; empty where there is none."""
        return max((row for row in self.rows if row["robust"] is not None), key=_robust, default={})


def run_folders(folder: Path) -> list[Path]:
    """The run folders there: the folder itself, or those right inside it; maybe none.

    They are in the order people count, those of a grid by method as it has them.
    """
    if (folder / "config.toml").is_file():
        return [folder]
    inside = [path.parent for path in folder.glob("*/config.toml") if path.is_file()]
    methods = from_toml(folder / GRID).get("methods") if (folder / GRID).is_file() else None
    rank = {method: i for i, method in enumerate(methods)} if isinstance(methods, dict) else {}
    return sorted(inside, key=lambda path: (rank.get(path.name.rpartition("-s")[0], len(rank)), counted(path.name)))


def called(folder: Path) -> str:
    """The name of a folder as text, `.` and `..` by what they are."""
    return _text(folder.name if folder.name not in ("", "..") else folder.resolve().name)


def read_run(path: Path, name: str = "") -> TrainingRun:
    """Read a run folder; only the config has to be there, and what is damaged is named."""
    folder = RunFolder.open(path)
    settings = _dotted(from_toml(folder.config))
    evaluations, radii, doubts = read_evaluations(folder, settings)
    return TrainingRun(
        name=name or called(path),
        folder=folder,
        config=folder.config.read_text(encoding="utf-8"),
        settings=settings,
        rows=_rows(folder.metrics),
        warnings=_warnings(folder.log),
        environment=read_json(folder.environment) if folder.environment.exists() else {},
        evaluations=evaluations,
        radii=radii,
        doubts=doubts,
    )


def read_runs(folders: Sequence[Path]) -> list[TrainingRun]:
    """All runs in the folders; those of the same name are called by their paths, from where these part."""
    found: dict[Path, Path] = {}  # a run that is named in two ways is one
    for folder in folders:
        inside = run_folders(folder)
        if not inside and folder.is_dir():
            raise InputError(f"{folder} has no config.toml, nor has a folder in it: give what `sihg train --out` made")
        found |= {_whole(path): path for path in inside or [folder]}  # what is no folder is refused when it is read
    times = Counter(called(path) for path in found)
    alike = [path for path in found if times[called(path)] > 1]
    above = _above(alike)
    names = {path: _text(str(path.relative_to(above) if above else path)) for path in alike}
    return [read_run(path, names.get(whole, called(whole))) for whole, path in found.items()]


def as_text(value: Any) -> str:
    """A value of a setting for reading."""
    if value is None:
        return "—"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _whole(path: Path) -> Path:
    return Path(os.path.normpath(path.absolute()))


def _above(paths: Sequence[Path]) -> Path | None:
    """The folder in which the paths part; None where they have none in common."""
    try:
        return Path(os.path.commonpath([path.parent for path in paths]))
    except ValueError:  # there are none, or they lie on several drives
        return None


def _text(name: str) -> str:
    """A name of the file system as text."""
    return name.encode(errors="backslashreplace").decode()


def _robust(row: Row) -> float:
    return row["robust"] or 0.0


def _dotted(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _dotted(value, f"{before}{key}.") if isinstance(value, Mapping) else {before + key: value}
    return flat


def _rows(source: Path) -> tuple[Row, ...]:
    rows = read_table(source) if source.exists() else []
    try:
        return tuple({key: finite(float(row.get(key) or "nan")) for key in NUMBERS} for row in rows)
    except ValueError as error:
        raise InputError(f"{source} has a cell that is no number ({error}): repair that cell") from error


def _warnings(source: Path) -> tuple[str, ...]:
    entries = read_json_lines(source) if source.exists() else []
    return tuple(
        str(entry.get("text", "")) for entry in entries if isinstance(entry, dict) and entry.get("event") == "warning"
    )
