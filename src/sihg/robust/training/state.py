"""The state of a run: progress, tables, checkpoints; saved, and restored after any interruption."""

import json
import math
from collections.abc import Mapping
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from sihg.errors import InputError
from sihg.parse import Value
from sihg.robust.methods.base import Log
from sihg.robust.training.config import Choice, Settings
from sihg.robust.training.events import WarningRaised
from sihg.robust.training.preflight import PreparedTraining
from sihg.robust.training.weights import load_weights
from sihg.store.checkpoint import Checkpoint, newest_checkpoint, write_checkpoint
from sihg.store.run_folder import RunFolder
from sihg.store.schema import (
    MEMORY_COLUMNS,
    METRICS_COLUMNS,
    BestState,
    DataIdentity,
    MetricsRow,
    Progress,
    RunState,
    Tally,
    convert_record,
    describe_differences,
    differing_settings,
    record_text,
)
from sihg.store.tables import JsonLines, Table, read_table

SECTIONS_BY_NAME = ("optimizer.", "schedule.")  # their settings depend on their names


class TrainingState:
    """What changes while a run trains, and the files that keep it.

    Args:
        prepared: The run.
        folder: Where to keep tables and checkpoints; None to keep nothing.
    """

    def __init__(self, prepared: PreparedTraining, folder: RunFolder | None) -> None:
        self.prepared, self.folder = prepared, folder
        self.progress = Progress()
        self.files: dict[str, Table | JsonLines] = {}
        if folder is not None:
            self.files["metrics"] = Table(folder.metrics, METRICS_COLUMNS + prepared.method.columns)
            self.files["log"] = JsonLines(folder.log)
            if columns := prepared.method.memory_columns:
                self.files["memory"] = Table(folder.memory_table, MEMORY_COLUMNS[:3] + columns)

    @property
    def step(self) -> int:
        """Return the number of batches trained on."""
        return self.progress.epoch * self.prepared.steps + self.progress.number

    def add(self, log: Log) -> None:
        """Add a step to the sums of the epoch."""
        tally, samples = self.progress.tally, log.samples
        tally.samples += samples
        tally.loss += log.loss * samples
        tally.hits += log.accuracy * samples
        tally.moved = _add(tally.moved, log.moved, samples)
        tally.saturated = _add(tally.saturated, log.saturated, samples)
        tally.constant += int(log.predicted.max())
        for name in self.prepared.method.columns:
            value = log.extra.get(name, math.nan)
            if not math.isfinite(value):
                raise InputError("method-column", name=name, value=log.extra.get(name))
            tally.extra[name] = tally.extra.get(name, 0.0) + value * samples
        self.progress.passes += log.passes

    def row(self, natural: float | None = None, robust: float | None = None) -> MetricsRow:
        """Return the metrics of the epoch so far, with the accuracies of the held-out set if given."""
        here, tally = self.progress, self.progress.tally
        return MetricsRow(
            epoch=here.epoch + 1,
            step=self.step,
            loss=tally.loss / tally.samples,
            accuracy=tally.hits / tally.samples,
            natural=natural,
            robust=robust,
            lr=self.prepared.optimizer.lr,
            passes=here.passes / len(self.prepared.train),
            moved=None if tally.moved is None else tally.moved / tally.samples,
            saturated=None if tally.saturated is None else tally.saturated / tally.samples,
            seconds=here.seconds,
            evaluation_seconds=here.evaluation_seconds,
            extra={name: tally.extra[name] / tally.samples for name in self.prepared.method.columns},
        )

    def read_last_row(self) -> MetricsRow | None:
        """Return the metrics of the last epoch that is written."""
        rows = [] if self.folder is None else read_table(self.folder.metrics)
        return MetricsRow.from_cells(rows[-1]) if rows else None

    def close_epoch(self, row: MetricsRow, warnings: list[WarningRaised]) -> None:
        """Write the rows of an epoch, keep its weights if they are the best, and go to the next one."""
        if self.folder is not None:
            self.files["metrics"].append(row.cells())
            if "memory" in self.files:
                cells = {"epoch": row.epoch, "moved": row.moved, "saturated": row.saturated}
                self.files["memory"].append({**cells, **self.prepared.method.memory_row(self.progress.epoch)})
            self.files["log"].append({"event": "epoch", **row.cells()})
            for warning in warnings:
                self.files["log"].append({"event": "warning", "epoch": row.epoch, "text": warning.text})
        here = self.progress
        here.epoch, here.number, here.tally = here.epoch + 1, 0, Tally()
        if row.robust is not None and (here.best is None or _merit(row) > _merit(here.best)):
            here.best = row
            self._save_best(row)

    # ---- checkpoints

    def save(self) -> Path | None:
        """Write a checkpoint from which the run can go on; return its path, or None without a folder."""
        if self.folder is None:
            return None
        method = self.prepared.method
        tree, tensors = self.prepared.optimizer.state()
        tensors["weights"] = self.prepared.model.state_dict()
        if kept := method.state(self.progress.epoch):
            tensors[method.state_file] = kept
        method.flush()  # before the manifest, which says that all of it is there
        for file in self.files.values():
            file.flush_to_disk()
        state = RunState(
            progress=self.progress,
            optimizer=tree,
            sizes={name: file.size() for name, file in self.files.items()},
            data=self._data,
            settings=self.prepared.settings.deciding(),
        )
        name = f"last-{self.step:08d}"
        return write_checkpoint(self.folder.checkpoints, name, tensors, json.loads(record_text(state)))

    def _save_best(self, row: MetricsRow) -> None:
        if self.folder is not None:
            weights = {"weights": self.prepared.optimizer.evaluated.state_dict()}
            state = json.loads(record_text(BestState(row=row, data=self._data)))
            write_checkpoint(self.folder.checkpoints, f"best-{row.step:08d}", weights, state, keep=1)

    def restore(self) -> tuple[bool, list[str]]:
        """Go back to the newest valid checkpoint.

        Returns:
            Whether there was one (a run that ended before its first checkpoint starts again), and which newer ones were
            skipped, with the reasons.
        """
        if self.folder is None:
            raise InputError("resume-folder")
        if not any(self.folder.checkpoints.glob("last-*")) and not read_table(self.folder.metrics):
            return False, []
        checkpoint, skipped = newest_checkpoint(self.folder.checkpoints, "last")
        self._load(checkpoint)
        return True, [f"{other.name}: {other.reason}" for other in skipped]

    def _load(self, checkpoint: Checkpoint) -> None:
        state = convert_record(checkpoint.state, RunState, checkpoint.path, "resume from another checkpoint")
        self._check_same_run(state, checkpoint.path)
        prepared, tensors = self.prepared, checkpoint.tensors
        load_weights(prepared.model, tensors["weights"], checkpoint.path)
        prepared.optimizer.load_state(state.optimizer, tensors)
        self.progress = state.progress
        kept = tensors.get(prepared.method.state_file, {})
        prepared.method.load_state({name: t.to(prepared.device) for name, t in kept.items()}, self.progress.epoch)
        for name, size in state.sizes.items():
            self.files[name].truncate(size)

    def _check_same_run(self, state: RunState, path: Path) -> None:
        ours = self.prepared.settings.deciding()
        theirs = _with_defaults(state.settings, self.prepared.settings)
        if state.settings and (differences := differing_settings(theirs, ours)):
            raise InputError(
                "resume-other-settings",
                differences={d.name: (d.theirs, d.ours) for d in differences},
                path=path,
                shown=describe_differences(differences),
            )
        here, there = self._data, state.data
        pairs = {name: (getattr(there, name), getattr(here, name)) for name in here.__struct_fields__}
        wrong = {name: pair for name, pair in pairs.items() if pair[0] not in (pair[1], 0, "")}
        if wrong:
            shown = ", ".join(f"{name} = {theirs} (here {ours})" for name, (theirs, ours) in wrong.items())
            raise InputError("resume-other-data", differences=wrong, path=path, shown=shown)

    @cached_property
    def _data(self) -> DataIdentity:
        train, held_out = self.prepared.train, self.prepared.held_out
        digest = sha256()
        for part in (train,) if held_out is None else (train, held_out):
            for tensor in (part.x, part.y):
                digest.update(tensor.contiguous().numpy().data)
        return DataIdentity(shape=train.shape, classes=train.classes, samples=len(train), sha256=digest.hexdigest())


def _with_defaults(saved: Mapping[str, Value], settings: Settings) -> dict[str, Value]:
    """Return the settings of a checkpoint; settings that are newer than the checkpoint have their defaults."""
    usual = Settings(method=Choice(settings.method.name)).deciding()
    return {key: value for key, value in usual.items() if not key.startswith(SECTIONS_BY_NAME)} | dict(saved)


def _add(total: float | None, mean: float | None, samples: int) -> float | None:
    return total if mean is None else (total or 0.0) + mean * samples


def _merit(row: MetricsRow) -> tuple[float, float]:
    """Return what the best checkpoint is chosen by: robust accuracy, then natural."""
    return row.robust or 0.0, row.natural or 0.0
