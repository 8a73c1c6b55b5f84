"""Read the run folders of `sihg train --out`, finished or not, and group runs that differ only in their seed."""

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import msgspec
import numpy as np

from sihg.errors import InputError
from sihg.report.read.evaluations import (
    Evaluation,
    Floats,
    Gallery,
    RadiusCurve,
    Remark,
    check_same_samples,
    collect_evaluations,
    natural_order,
    own_records,
    read_gallery,
    read_records,
)
from sihg.report.read.palette import Look, looks
from sihg.store.files import list_names, sha256_of_file, status
from sihg.store.manifest import Manifest, checkpoint_names, find_checkpoint, read_manifest
from sihg.store.run_folder import GRID, RunFolder
from sihg.store.schema import (
    METRICS_COLUMNS,
    SEALED_FORMAT,
    Environment,
    MetricsRow,
    Settings,
    check_config,
    convert_record,
    differing_settings,
    merit,
    read_grid_config,
    read_run_config,
)
from sihg.store.tables import Mark, read_json_lines, read_table
from sihg.store.verify import TABLES, accepted_tables


class _CheckpointState(msgspec.Struct):
    """What a report needs of a checkpoint's state."""

    settings: Settings = {}
    tables: dict[str, Mark | int] = {}  # before format 2 only the sizes


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """All that a run folder says."""

    name: str
    folder: RunFolder
    config: str  # the text of config.toml
    settings: Settings
    rows: tuple[MetricsRow, ...]  # NaN and infinite values are None
    warnings: tuple[str, ...]
    environment: Environment
    evaluations: tuple[Evaluation, ...]
    radii: tuple[RadiusCurve, ...]
    remarks: tuple[Remark, ...]  # about its evaluations
    not_run: tuple[Remark, ...]  # checks of its evaluations, and why
    sealed: bool = True  # whether its files carry sums, as they do since format 2

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.settings.get("method.name", "unknown"))

    @property
    def epochs(self) -> int:
        """The number of finished epochs."""
        return self.rows[-1].epoch if self.rows else 0

    @property
    def planned_epochs(self) -> int | None:
        """The number of epochs in the settings."""
        planned = self.settings.get("epochs")
        return planned if isinstance(planned, int) else None

    @property
    def is_finished(self) -> bool:
        """Whether all epochs are done."""
        return self.planned_epochs is None or self.epochs >= self.planned_epochs

    @property
    def last(self) -> MetricsRow | None:
        """The row of the last evaluation on held-out samples."""
        return next((row for row in reversed(self.rows) if row.robust is not None), None)

    @property
    def best(self) -> MetricsRow | None:
        """The row of the best robust accuracy on held-out samples, chosen as in training."""
        held_out = [row for row in self.rows if row.robust is not None]
        return max(held_out, key=merit, default=None)


@dataclass(frozen=True, eq=False)
class Entry:
    """Runs with the same settings and different seeds: the trials of one experiment."""

    name: str
    trials: tuple[TrainingRun, ...]
    look: Look  # in every figure and table

    @property
    def settings(self) -> Settings:
        """The settings of its first run."""
        return self.trials[0].settings

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.trials[0].method

    @property
    def counted(self) -> tuple[TrainingRun, ...]:
        """The trials whose numbers count: the finished ones, or all if none is finished."""
        return tuple(run for run in self.trials if run.is_finished) or self.trials


def run_folders(folder: Path) -> list[Path]:
    """List the run folders: the folder itself, or those directly inside it, which may be none.

    Numbers in names are sorted by value. The runs of a grid come in the order of its methods.
    """
    if status(folder / "config.toml") is not None:
        return [folder]
    names = list_names(folder) if folder.is_dir() else []
    inside = [folder / name for name in names if status(folder / name / "config.toml") is not None]
    methods = read_grid_config(folder / GRID).methods if status(folder / GRID) is not None else {}
    rank = {method: i for i, method in enumerate(methods)}
    return sorted(
        inside, key=lambda path: (rank.get(path.name.rpartition("-s")[0], len(rank)), natural_order(path.name))
    )


def result_kind(folder: Path) -> str:
    """Return what a folder holds: "solve", "profile", "runs" or "evaluations".

    Raises:
        InputError: It holds none of them.
    """
    if (folder / "summary.json").is_file():
        return "solve"
    if (folder / "profile.json").is_file():
        return "profile"
    if run_folders(folder):
        return "runs"
    if any(folder.glob("evaluation/*.json")) or own_records(folder):
        return "evaluations"
    if not folder.is_dir():
        reason = "it is a file" if folder.exists() else "it does not exist"
        raise InputError("not-a-folder", folder=folder, reason=reason)
    raise InputError("no-results", folder=folder)


def folder_name(folder: Path) -> str:
    """Return the name of a folder as text, also of `.` and `..`."""
    return _as_printable(folder.name if folder.name not in ("", "..") else folder.resolve().name)


def read_run(path: Path, name: str = "") -> TrainingRun:
    """Read a run folder. Only config.toml must exist; a damaged file raises an InputError that names it."""
    folder = RunFolder.open(path)
    config = read_run_config(folder.config)
    settings, sealed = config.settings, config.format >= SEALED_FORMAT
    manifests = _read_manifests(folder)
    for checkpoint, manifest in manifests.items():
        check_config(settings, _read_state(folder, checkpoint, manifest).settings, folder.checkpoints / checkpoint)
    marks = _read_marks(folder, manifests)
    weights = {name: manifest.state.get("weights") for name, manifest in manifests.items()}
    evaluations = collect_evaluations(read_records(folder.evaluation), settings, weights)
    return TrainingRun(
        name=name or folder_name(path),
        folder=folder,
        config=folder.config.read_text(encoding="utf-8"),
        settings=settings,
        rows=_read_metrics(folder.metrics, sealed=sealed, mark=marks.get("metrics")),
        warnings=(
            *(f"{name} was edited on purpose after it was written" for name in _edited_tables(folder)),
            *_read_warnings(folder.log, sealed=sealed, mark=marks.get("log")),
        ),
        environment=folder.read_environment(),
        evaluations=evaluations.attacks,
        radii=evaluations.curves,
        remarks=evaluations.remarks,
        not_run=evaluations.not_run,
        sealed=sealed,
    )


def read_runs(folders: Sequence[Path]) -> list[TrainingRun]:
    """Read all runs in the folders. Runs of the same name get the part of their paths in which they differ.

    Raises:
        InputError: A file is damaged, or evaluations of the same data set are of other samples.
    """
    found: dict[Path, Path] = {}  # by normal path: a run that is given in two ways is read once
    for folder in folders:
        inside = run_folders(folder)
        if not inside and folder.is_dir():
            raise InputError("no-runs", folder=folder)
        found |= {Path(os.path.normpath(path.absolute())): path for path in inside or [folder]}
    times = Counter(folder_name(path) for path in found)
    same_name = [path for path in found if times[folder_name(path)] > 1]
    above = _common_folder(same_name)
    names = {path: _as_printable(str(path.relative_to(above) if above else path)) for path in same_name}
    folders_of_records = [RunFolder(path).evaluation for path in found.values()]
    check_same_samples({path: record for place in folders_of_records for path, record in read_records(place).items()})
    return [read_run(path, names.get(normal, folder_name(normal))) for normal, path in found.items()]


def grid_command(folders: Sequence[Path]) -> str:
    """Return the command that made the runs, if they are those of one `sihg reproduce`; empty where it is not known."""
    config = folders[0] / GRID
    return read_grid_config(config).command if len(folders) == 1 and status(config) is not None else ""


def group_trials(runs: Sequence[TrainingRun]) -> list[Entry]:
    """Group runs that differ only in their seed. A run that repeats the seed of a group starts a new one."""
    groups: list[list[TrainingRun]] = []
    for run in runs:
        same = (group for group in groups if "seed" in run.settings and _but_seed(group[0]) == _but_seed(run))
        group = next((group for group in same if all(_seed(other) != _seed(run) for other in group)), None)
        if group is None:
            groups.append([run])
        else:
            group.append(run)
    names = [_common_name(group) for group in groups]
    repeated = {name for name, times in Counter(names).items() if times > 1}
    styles = looks([group[0].method for group in groups])
    return [
        Entry(group[0].name if name in repeated else name, tuple(group), look)
        for name, group, look in zip(names, groups, styles, strict=True)
    ]


def compare_settings(runs: Sequence[TrainingRun]) -> tuple[Settings, dict[str, list[object]]]:
    """Return the settings that all runs share, and the values per run of the others (None: not set)."""
    first, names = runs[0].settings, {name: None for run in runs for name in run.settings}
    differing = {found.name for run in runs for found in differing_settings(first, run.settings)}
    differing |= {name for name in names if any(name not in run.settings for run in runs)}
    common = {name: value for name, value in first.items() if name not in differing}
    return common, {name: [run.settings.get(name) for run in runs] for name in names if name in differing}


def setting_text(value: object) -> str:
    """Return the value of a setting as text for reading."""
    if value is None:
        return "—"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def first_gallery(entry: Entry) -> list[Gallery]:
    """Read the gallery of the first counted trial that has one; empty if none has."""
    found = [run for run in entry.counted if run.folder.gallery.is_file()]
    return [read_gallery(run.folder.gallery, run.name, sealed=run.sealed) for run in found[:1]]


def read_memory(run: TrainingRun) -> Floats:
    """Read memory.csv: columns for the epoch, the mean move and the share of each bin. Empty without the file."""
    source = run.folder.memory_table
    mark = _read_marks(run.folder, _read_manifests(run.folder)).get("memory")
    rows = read_table(source, sealed=run.sealed, mark=mark) if mark or status(source) is not None else []
    bins = [name for name in (rows[0] if rows else {}) if name.startswith("to_")]
    try:
        return np.array([[float(row[name]) for name in ("epoch", "moved", *bins)] for row in rows], dtype=np.float64)
    except (ValueError, KeyError) as error:
        raise _invalid_cell(source, error) from error


def _read_manifests(folder: RunFolder) -> dict[str, Manifest]:
    """Read the valid manifests of a run's checkpoints, by their names."""
    names = [name for prefix in ("last", "best") for name in checkpoint_names(folder.checkpoints, prefix)]
    found = {name: read_manifest(find_checkpoint(folder.checkpoints / name))[0] for name in names}
    return {name: manifest for name, manifest in found.items() if manifest is not None}


def _read_marks(folder: RunFolder, manifests: Mapping[str, Manifest]) -> dict[str, Mark]:
    """Return how far each table was at the newest checkpoint, from which it must not have fallen back.

    Tables that were edited on purpose, and accepted by `sihg check`, are left out.
    """
    newest = next((name for name in manifests if name.startswith("last-")), None)
    found = {} if newest is None else _read_state(folder, newest, manifests[newest]).tables
    edited = {TABLES[name] for name in _edited_tables(folder)}
    return {name: mark for name, mark in found.items() if isinstance(mark, Mark) and name not in edited}


def _read_state(folder: RunFolder, name: str, manifest: Manifest) -> _CheckpointState:
    return convert_record(manifest.state, _CheckpointState, folder.checkpoints / name, "remove the checkpoint")


def _edited_tables(folder: RunFolder) -> list[str]:
    """Return the names of the tables that were edited on purpose and are as they were accepted."""
    sums = {name: text for name, text in accepted_tables(folder.path).items() if name in TABLES}
    return [name for name, text in sums.items() if sha256_of_file(folder.path / name) == text]


def _read_metrics(source: Path, *, sealed: bool, mark: Mark | None) -> tuple[MetricsRow, ...]:
    rows = read_table(source, sealed=sealed, mark=mark) if mark or status(source) is not None else []
    try:
        return tuple(_without_nan(MetricsRow.from_cells(row)) for row in rows)
    except msgspec.ValidationError as error:
        raise _invalid_cell(source, error) from error


def _without_nan(row: MetricsRow) -> MetricsRow:
    cells = row.cells()
    bad = {name: None for name in METRICS_COLUMNS if not isfinite(cells[name] or 0.0)}
    return msgspec.structs.replace(row, **bad) if bad else row


def _read_warnings(source: Path, *, sealed: bool, mark: Mark | None) -> tuple[str, ...]:
    has_lines = (mark is not None and mark.bytes > 0) or status(source) is not None
    entries = read_json_lines(source, sealed=sealed, mark=mark) if has_lines else []
    return tuple(str(entry.get("text", "")) for entry in entries if entry.get("event") == "warning")


def _invalid_cell(source: Path, error: Exception) -> InputError:
    return InputError("table-cell", path=source, error=error)


def _common_folder(paths: Sequence[Path]) -> Path | None:
    """Return the deepest folder that holds all paths, or None."""
    try:
        return Path(os.path.commonpath([path.parent for path in paths]))
    except ValueError:  # no paths, or paths on several drives
        return None


def _as_printable(name: str) -> str:
    """Escape bytes of a file name that are not text."""
    return name.encode(errors="backslashreplace").decode()


def _but_seed(run: TrainingRun) -> str:
    return json.dumps({key: value for key, value in run.settings.items() if key != "seed"}, sort_keys=True)


def _seed(run: TrainingRun) -> str:
    return str(run.settings.get("seed"))


def _common_name(group: Sequence[TrainingRun]) -> str:
    """Return the names without their seeds if they are then the same; otherwise name the first."""
    stems = {_without_seed(run) for run in group}
    return stems.pop() if len(stems) == 1 else f"{group[0].name} and {len(group) - 1} more"


def _without_seed(run: TrainingRun) -> str:
    seed = re.escape(_seed(run))
    return re.sub(rf"(?:[-_. ](?:s|seed)?[-_]?|seed[-_]?){seed}$", "", run.name) or run.name
