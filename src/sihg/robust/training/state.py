"""The state of a run: progress, tables, checkpoints; saved, and restored after any interruption."""

import json
import shutil
import warnings
from collections.abc import Mapping
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from sihg.core.processes import ALONE, Processes
from sihg.errors import InputError
from sihg.parse import Value
from sihg.robust.data.contents import BY_ROWS, sum_of
from sihg.robust.data.samples import Samples
from sihg.robust.methods.base import Log, Method
from sihg.robust.training.config import Choice, Settings
from sihg.robust.training.events import WarningRaised
from sihg.robust.training.optimizer import diverged
from sihg.robust.training.preflight import PreparedTraining
from sihg.robust.training.tallies import add_log, add_tallies
from sihg.robust.training.weights import TWIN, CheckpointWarning, load_weights
from sihg.store.checkpoint import (
    Checkpoint,
    Skipped,
    begin_checkpoint,
    finish_checkpoint,
    newest_checkpoint,
    sha256_of_tensors,
    write_checkpoint,
    write_groups,
)
from sihg.store.files import Json
from sihg.store.manifest import checkpoint_names, number_of
from sihg.store.run_folder import FolderHandle, RunFolder
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
    merit,
    record_text,
)
from sihg.store.tables import JsonLines, Table, read_table

SECTIONS_BY_NAME = ("optimizer.", "schedule.")  # their settings depend on their names


class TrainingState:
    """What changes while a run trains, and the files that keep it.

    Args:
        prepared: The run.
        methods: The method of each lane that this process computes.
        folder: Where to keep tables and checkpoints; None to keep nothing.
        handle: Notices that the folder was moved, removed or replaced; None on all processes but the first.
        processes: Who computes the run. Each writes the state of its own lanes, the first one all else.
    """

    def __init__(
        self,
        prepared: PreparedTraining,
        methods: Mapping[int, Method],
        folder: RunFolder | None,
        handle: FolderHandle | None = None,
        processes: Processes = ALONE,
    ) -> None:
        self.prepared, self.methods, self.folder, self.handle = prepared, methods, folder, handle
        self.processes, self.lanes = processes, prepared.settings.lanes
        self.progress = Progress(tallies=[Tally() for _ in range(self.lanes)])
        self._infinite = set(_not_finite(prepared.model.state_dict()))  # such as a mask that holds -inf
        self.files: dict[str, Table | JsonLines] = {}
        if folder is not None and processes.is_first:
            folder.check_links()
            self.files["metrics"] = Table(folder.metrics, METRICS_COLUMNS + prepared.method.columns)
            self.files["log"] = JsonLines(folder.log)
            if columns := prepared.method.memory_columns:
                self.files["memory"] = Table(folder.memory_table, MEMORY_COLUMNS[:3] + columns)

    @property
    def step(self) -> int:
        """Return the number of batches trained on."""
        return self.progress.epoch * self.prepared.steps + self.progress.number

    def add(self, log: Log, lane: int = 0) -> None:
        """Add a step of a lane to the sums of the epoch."""
        add_log(self.progress.tallies[lane], log, self.prepared.method.columns)

    def tally(self) -> Tally:
        """Return the sums over all lanes that this process knows: its own, and the others' after `collect`."""
        return reduce(add_tallies, self.progress.tallies)

    def collect(self) -> None:
        """Let every process know the sums of all lanes."""
        own = {str(lane): msgspec.to_builtins(self.progress.tallies[lane]) for lane in self.methods}
        for lanes in self.processes.gather(own):
            for lane, tally in lanes.items():
                self.progress.tallies[int(lane)] = msgspec.convert(tally, Tally)

    def row(self, natural: float | None = None, robust: float | None = None) -> MetricsRow:
        """Return the metrics of the epoch so far, with the accuracies of the held-out set if given."""
        here, tally = self.progress, self.tally()
        samples = max(1, tally.samples)  # 0 while the lanes of this process have had none
        return MetricsRow(
            epoch=here.epoch + 1,
            step=self.step,
            loss=tally.loss / samples,
            accuracy=tally.hits / samples,
            natural=natural,
            robust=robust,
            lr=self.prepared.optimizer.lr,
            passes=(here.passes + tally.passes) / len(self.prepared.train),
            moved=None if tally.moved is None else tally.moved / samples,
            saturated=None if tally.saturated is None else tally.saturated / samples,
            seconds=here.seconds,
            evaluation_seconds=here.evaluation_seconds,
            extra={name: tally.extra.get(name, 0.0) / samples for name in self.prepared.method.columns},
        )

    def read_last_row(self) -> MetricsRow | None:
        """Return the metrics of the last epoch that is written."""
        rows = [] if self.folder is None else read_table(self.folder.metrics, sealed=True)
        return MetricsRow.from_cells(rows[-1]) if rows else None

    def close_epoch(self, row: MetricsRow, warnings: list[WarningRaised]) -> None:
        """Write the rows of an epoch, keep its weights if they are the best, and go to the next one."""
        memory = self._memory_row() if self.folder is not None else {}
        if self.files:
            lines: list[tuple[str, Mapping[str, object]]] = [("metrics", row.cells())]
            if "memory" in self.files:
                cells = {"epoch": row.epoch, "moved": row.moved, "saturated": row.saturated}
                lines.append(("memory", {**cells, **memory}))
            lines.append(("log", {"event": "epoch", **row.cells()}))
            lines += [("log", {"event": "warning", "epoch": row.epoch, "text": w.text}) for w in warnings]
            for name, line in lines:
                self._check_folder()
                self.files[name].append(line)
        here = self.progress
        here.passes += self.tally().passes
        here.epoch, here.number, here.tallies = here.epoch + 1, 0, [Tally() for _ in range(self.lanes)]
        if row.robust is not None and (here.best is None or merit(row) > merit(here.best)):
            here.best = row
            self._save_best(row)

    def _memory_row(self) -> dict[str, float]:
        """Return the values of the method's `memory_columns`: means over the lanes, by their samples."""
        n, total = len(self.prepared.train), dict.fromkeys(self.prepared.method.memory_columns, 0.0)
        own = {str(lane): method.memory_row(self.progress.epoch) for lane, method in self.methods.items()}
        known = {lane: row for part in self.processes.gather(own) for lane, row in part.items()}
        for lane in range(self.lanes):
            share = len(range(lane, n, self.lanes)) / n
            total = {name: value + share * known[str(lane)].get(name, 0.0) for name, value in total.items()}
        return total

    # ---- checkpoints

    def save(self) -> Path | None:
        """Write a checkpoint from which the run can go on; return its path, or None without a folder."""
        with self.processes.same():
            self.check_finite()
        if self.folder is None:
            return None
        self.collect()
        weights = self._weights_sum()
        with self.processes.same():
            if len(set(self.processes.gather(weights))) > 1:
                raise InputError("processes-differ", step=self.step)
        groups, state = {}, {}
        with self.processes.together():
            self._check_folder()
            groups = self._own_groups()
            for file in self.files.values():
                file.flush_to_disk()
            if self.processes.is_first:
                tree, tensors = self.prepared.optimizer.state()
                groups |= {**tensors, "weights": self.prepared.model.state_dict()}
                state = self._content(tree, weights)
        path = self._write(f"last-{self.step:08d}", groups, state)
        if self.prepared.settings.memory_files and self.progress.number == 0:
            # The next epoch overwrites what older checkpoints need, so this one must not be the only one.
            self._write(f"{TWIN}-{self.step:08d}", groups, state, keep=1)
        return path

    def _own_groups(self) -> dict[str, Mapping[str, Tensor]]:
        """Return the state of the method in each lane of this process, by the name of its file."""
        groups: dict[str, Mapping[str, Tensor]] = {}
        for lane, method in self.methods.items():
            method.flush()  # before the checkpoint, which says what is there
            if kept := method.state(self.progress.epoch):
                groups[self._group_of(lane)] = kept
                if wrong := _not_finite(kept):
                    optimizer = self.prepared.optimizer
                    raise diverged(f"the method's {wrong[0]} is not finite", optimizer.time, optimizer.lr)
        return groups

    def _group_of(self, lane: int) -> str:
        """Return the name of the file that holds the state of the method in a lane."""
        name = self.prepared.method.state_file
        return name if self.lanes == 1 else f"{name}-{lane:02d}"

    def _content(self, tree: Json, weights: str) -> dict[str, Any]:
        """Return the state in the manifest of a checkpoint."""
        state = RunState(
            progress=self.progress,
            optimizer=tree,
            tables={name: file.mark() for name, file in self.files.items()},
            data=self._data,
            settings=self.prepared.settings.deciding(),
            threads=torch.get_num_threads(),
            weights=weights,
        )
        content: dict[str, Any] = json.loads(record_text(state))
        return content

    def _write(
        self, name: str, groups: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any], keep: int = 2
    ) -> Path:
        """Write a checkpoint together: each process its groups, the first one the manifest."""
        assert self.folder is not None
        if self.processes.size == 1:
            self._check_folder()
            return write_checkpoint(self.folder.checkpoints, name, groups, state, keep)
        temporary, files = "", {}
        try:
            with self.processes.together():
                self._check_folder()
                if self.processes.is_first:
                    temporary = str(begin_checkpoint(self.folder.checkpoints, name))
            temporary = self.processes.gather(temporary)[0]
            with self.processes.together():
                files = write_groups(Path(temporary), groups)
            files = {file: entry for part in self.processes.gather(files) for file, entry in part.items()}
            with self.processes.together():
                if self.processes.is_first:
                    finish_checkpoint(Path(temporary), name, files, state, keep)
        finally:
            if self.processes.is_first and temporary:
                shutil.rmtree(temporary, ignore_errors=True)
        return self.folder.checkpoints / name

    def has_twin(self) -> bool:
        """Return whether a second copy of the checkpoint is there, if the run needs one before it goes on."""
        if self.folder is None or not self.prepared.settings.memory_files:
            return True
        self.processes.wait()  # no process may have begun to write it
        return f"{TWIN}-{self.step:08d}" in checkpoint_names(self.folder.checkpoints, TWIN)

    def check_finite(self) -> None:
        """Raise NotFiniteError if the weights, their average or the optimiser's state are NaN or infinite."""
        optimizer = self.prepared.optimizer
        average = {} if optimizer.average is None else optimizer.average.module.state_dict()
        for what, tensors in (("weight", self.prepared.model.state_dict()), ("averaged weight", average)):
            if wrong := [name for name in _not_finite(tensors) if name not in self._infinite]:
                raise diverged(f"{what} {wrong[0]} is not finite", optimizer.time, optimizer.lr)
        if wrong := _not_finite(optimizer.state()[1]["optimizer"]):
            raise diverged(f"the optimiser's {wrong[0]} is not finite", optimizer.time, optimizer.lr)

    def _weights_sum(self) -> str:
        return sha256_of_tensors(self.prepared.optimizer.evaluated.state_dict())

    def _check_folder(self) -> None:
        if self.handle is not None:
            self.handle.check()

    def _save_best(self, row: MetricsRow) -> None:
        if self.files and self.folder is not None:
            self._check_folder()
            weights = {"weights": self.prepared.optimizer.evaluated.state_dict()}
            settings = self.prepared.settings.deciding()
            best = BestState(row=row, data=self._data, settings=settings, weights=self._weights_sum())
            state = json.loads(record_text(best))
            write_checkpoint(self.folder.checkpoints, f"best-{row.step:08d}", weights, state, keep=1)

    def find(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest valid checkpoint, which is of these settings and this data.

        Returns:
            The checkpoint (None if the run ended before its first one, and starts again), and which newer ones were
            skipped, with the reasons.
        """
        if self.folder is None:
            raise InputError("resume-folder")
        begun = has_checkpoint(self.folder) or bool(read_table(self.folder.metrics, sealed=True))
        if not self.processes.gather(begun)[0]:  # the first process holds the lock, so what it sees is so
            return None, []
        checkpoint, skipped = self._read_newest()
        while len(numbers := set(self.processes.gather(number_of(checkpoint.path.name)))) > 1:
            checkpoint, skipped = self._read_newest(min(numbers))  # a process cannot read its part of the newest
        self._check_same_run(_run_state(checkpoint), checkpoint.path)
        return checkpoint, [f"{other.name}: {other.reason}" for other in skipped]

    def _read_newest(self, most: int | None = None) -> tuple[Checkpoint, list[Skipped]]:
        """Read what this process needs of the newest valid checkpoint; alone, that is everything."""
        assert self.folder is not None
        own = {"weights", "optimizer", "average", *map(self._group_of, self.methods)}
        only = None if self.processes.size == 1 else own
        with self.processes.together():
            return newest_checkpoint(self.folder.checkpoints, "last", only, twin=TWIN, most=most)
        raise AssertionError  # `together` raises

    def load(self, checkpoint: Checkpoint) -> None:
        """Go back to a checkpoint that was found."""
        state = _run_state(checkpoint)
        if (now := torch.get_num_threads()) != state.threads:
            warnings.warn(
                f"the run was computed with {state.threads} threads and continues with {now}: results repeat bit by "
                "bit only with the same number",
                CheckpointWarning,
                stacklevel=2,
            )
        prepared, tensors = self.prepared, checkpoint.tensors
        average = set() if prepared.optimizer.average is None else {"average"}
        lost_tables = state.tables.keys() - self.files.keys() if self.processes.is_first else set()
        if lost := sorted(({"weights", "optimizer"} | average) - tensors.keys() | lost_tables):
            raise InputError("checkpoint-damaged", path=checkpoint.path, problems=lost, names=f"no {lost[0]}")
        load_weights(prepared.model, tensors["weights"], checkpoint.path)
        prepared.optimizer.load_state(state.optimizer, tensors)
        self.progress = state.progress
        for lane, method in self.methods.items():
            kept = tensors.get(self._group_of(lane), {})
            method.load_state({name: t.to(prepared.device) for name, t in kept.items()}, self.progress.epoch)
        for name, file in self.files.items():
            file.truncate(state.tables[name])

    def _check_same_run(self, state: RunState, path: Path) -> None:
        ours = self.prepared.settings.deciding()
        theirs = _with_defaults(state.settings, self.prepared.settings)
        if differences := differing_settings(theirs, ours):
            raise InputError(
                "resume-other-settings",
                differences={d.name: (d.theirs, d.ours) for d in differences},
                path=path,
                shown=describe_differences(differences),
            )
        here, there = self._data, state.data
        if here.sha256.startswith(BY_ROWS) != there.sha256.startswith(BY_ROWS):  # another machine has more memory
            here = msgspec.structs.replace(here, sha256=sum_of(self._parts, like=there.sha256))
        pairs = {name: (getattr(there, name), getattr(here, name)) for name in here.__struct_fields__}
        wrong = {name: pair for name, pair in pairs.items() if pair[0] not in (pair[1], 0, "")}
        if wrong:
            shown = ", ".join(f"{name} = {theirs} (here {ours})" for name, (theirs, ours) in wrong.items())
            raise InputError("resume-other-data", differences=wrong, path=path, shown=shown)

    @cached_property
    def _data(self) -> DataIdentity:
        train = self.prepared.train
        found = sum_of(self._parts)
        return DataIdentity(shape=train.shape, classes=train.classes, samples=len(train), sha256=found)

    @property
    def _parts(self) -> list[Samples]:
        return [part for part in (self.prepared.train, self.prepared.held_out) if part is not None]


def has_checkpoint(folder: RunFolder) -> bool:
    """Return whether a run has a checkpoint, damaged or not; raise InputError if that cannot be told."""
    return bool(checkpoint_names(folder.checkpoints, "last"))


def _run_state(checkpoint: Checkpoint) -> RunState:
    return convert_record(checkpoint.state, RunState, checkpoint.path, "resume from another checkpoint")


def _not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the tensors that hold NaN or infinities."""
    floats = {name: t for name, t in tensors.items() if t.is_floating_point() or t.is_complex()}
    return [name for name, t in floats.items() if not bool(torch.isfinite(t).all())]


def _with_defaults(saved: Mapping[str, Value], settings: Settings) -> dict[str, Value]:
    """Return the settings of a checkpoint; settings that are newer than the checkpoint have their defaults."""
    usual = Settings(method=Choice(settings.method.name)).deciding()
    return {key: value for key, value in usual.items() if not key.startswith(SECTIONS_BY_NAME)} | dict(saved)
