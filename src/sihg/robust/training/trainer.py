"""The training loop: batches, epochs, evaluations, checkpoints; everything else is in the modules around it."""

import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy

import torch

from sihg.core.processes import ALONE, Processes, check_lanes
from sihg.errors import InputError, NotFiniteError, SihgError
from sihg.interrupt import stop_on_interrupt
from sihg.robust._fast_passes import keep_freed_memory
from sihg.robust.attacks.runner import run_attacks
from sihg.robust.data.batches import Batch, GlobalBatch, epoch_batches
from sihg.robust.methods.base import Log
from sihg.robust.models.training_tag import tag_model
from sihg.robust.precision import number_formats
from sihg.robust.training.events import (
    CheckpointSaved,
    EpochDone,
    Event,
    OnEvent,
    StepDone,
    Trained,
    TrainingHistory,
    check_end,
    check_epoch,
)
from sihg.robust.training.lanes import LaneSum
from sihg.robust.training.optimizer import diverged
from sihg.robust.training.preflight import PreparedTraining
from sihg.robust.training.state import TrainingState
from sihg.robust.waits import reading_once
from sihg.store.run_folder import FolderHandle, RunFolder
from sihg.store.schema import MetricsRow, Progress


class Trainer:
    """Trains a prepared run.

    Args:
        prepared: The run, checked by `preflight`.
        folder: The run folder, for tables and checkpoints; None to keep nothing.
        handle: Of the folder, from `locked`: notices that the folder was moved, removed or replaced.
        processes: Who computes the run, from `join_processes`; their number divides the number of lanes.
    Example:
        >>> from sihg.robust.training import prepare
        >>> from sihg.robust.training.config import Settings
        >>> small = {"method": "natural", "samples": 20, "epochs": 1, "width": 1 / 4, "validation": 0}
        >>> [type(event).__name__ for event in Trainer(prepare(Settings().with_values(small))).events()]
        ['StepDone', 'EpochDone']
    """

    def __init__(
        self,
        prepared: PreparedTraining,
        folder: RunFolder | None = None,
        handle: FolderHandle | None = None,
        processes: Processes = ALONE,
    ) -> None:
        settings = prepared.settings
        if settings.memory_files and folder is None:
            raise InputError("memory-files-folder")
        check_lanes(settings.lanes, processes.size)
        prepared = prepared.with_formats_of(processes) if processes.size > 1 else prepared
        self.prepared, self.folder, self.processes = prepared, folder, processes
        self.model, self.optimizer, self.method = prepared.model, prepared.optimizer, prepared.method
        own = processes.own(settings.lanes)
        self.methods = (
            {0: self.method} if settings.lanes == 1 else {lane: deepcopy(self.method) for lane in sorted(own)}
        )
        self.lanes = None
        if settings.lanes > 1:
            self.lanes = LaneSum(self.model, self.optimizer.parameters, processes, settings.lanes)
        self.optimizer.lanes = self.lanes
        self.state = TrainingState(prepared, self.methods, folder, handle, processes)
        self.rows: list[MetricsRow] = []
        self.warnings: list[str] = []
        self._saved_epoch: int | None = None  # whose start is in a checkpoint
        self._is_bound = False

    @property
    def progress(self) -> Progress:
        """Return where the run is."""
        return self.state.progress

    def resume(self) -> list[str]:
        """Go back to the newest valid checkpoint of the folder; return the names of damaged ones, with reasons."""
        checkpoint, skipped = self.state.find()
        self._bind(resuming=checkpoint is not None)
        if checkpoint is not None:
            with self.processes.together():
                self.state.load(checkpoint)
            is_complete = self.state.has_twin() or self.progress.epoch >= self.prepared.settings.epochs
            self._saved_epoch = self.progress.epoch if is_complete else None
        return skipped

    def _bind(self, *, resuming: bool) -> None:
        """Let the method of each lane make what it keeps per sample, or open it again; process 0 makes all files."""
        prepared = self.prepared
        folder = self.folder.memory if self.folder is not None and prepared.settings.memory_files else None
        for is_turn in (self.processes.is_first, not self.processes.is_first):
            with self.processes.together():
                for lane, method in self.methods.items() if is_turn else ():
                    method.bind(
                        prepared.train,
                        dtype=prepared.memory_dtype,
                        folder=folder,
                        resuming=resuming,
                        lane=lane,
                        lanes=prepared.settings.lanes,
                    )
        self._is_bound = True

    def run(self, on_event: OnEvent | None = None) -> Trained:
        """Train to the last epoch. Ctrl-C or SIGTERM saves a checkpoint and stops.

        Args:
            on_event: Called with each event.
        """
        for event in self.events():
            if on_event is not None:
                on_event(event)
        epoch, epochs = self.progress.epoch, self.prepared.settings.epochs
        finished = epoch >= epochs
        stopped = f"{epochs} epochs done" if finished else f"interrupted in epoch {epoch + 1}"
        model, history = self.optimizer.evaluated.eval(), TrainingHistory(self.rows)
        for trained in {self.model, model}:
            tag_model(trained, self.prepared.settings.method.name)
        last = self.rows[-1] if self.rows else self.state.read_last_row()
        return Trained(model, history, self.progress.best, self.warnings, finished, stopped, last)

    def events(self) -> Generator[Event, None, None]:
        """Train, and yield what happens. If the generator is closed early, another call continues."""
        self._saved_time = time.monotonic()
        keep_freed_memory()
        if not self._is_bound:
            self._bind(resuming=False)
        for model in (self.model, self.optimizer.evaluated):
            self.processes.copy_first([*model.parameters(), *model.buffers()])
        with torch.random.fork_rng(self._gpus()), stop_on_interrupt() as stop_asked:
            if self.progress.number == 0 and self.progress.epoch != self._saved_epoch:
                yield from self._save()
            while self.progress.epoch < self.prepared.settings.epochs:
                yield from self._train_epoch(stop_asked)
                if self.progress.number < self.prepared.steps:
                    return
                yield from self._close_epoch()
                if self.processes.any([stop_asked()])[0]:
                    return

    def _train_epoch(self, stop_asked: Callable[[], bool]) -> Iterator[Event]:
        """Train on the rest of an epoch, or until a stop is requested."""
        here, settings, steps = self.progress, self.prepared.settings, self.prepared.steps
        self.model.train()
        for batch in epoch_batches(
            self.prepared.train,
            size=settings.batch_size,
            seed=settings.seed,
            epoch=here.epoch,
            first=here.number,
            augment=self.prepared.augment,
            device=self.prepared.device,
            lanes=tuple(self.methods),
            of=settings.lanes,
        ):
            begin = time.perf_counter()
            self._step(batch, stop_asked)
            here.seconds += time.perf_counter() - begin
            here.number += 1
            yield StepDone(self.state.step, settings.epochs * steps, self.state.row())
            stop, late = self._wishes(stop_asked)
            if (stop or late) and here.number < steps:  # else the end of the epoch saves one at once
                yield from self._save()
                if stop:
                    return

    def _step(self, batch: GlobalBatch, stop_asked: Callable[[], bool]) -> None:
        """Train on one batch."""
        self.optimizer.time = batch.time
        for lane, index in batch.coming.items():
            self.methods[lane].expect(index, self.progress.epoch)
        with self._dated_errors(), reading_once():
            if self.lanes is None:
                self._train_one_lane(batch.lanes[0])
            else:
                self._train_lanes(batch, self.lanes, stop_asked)

    def _wishes(self, stop_asked: Callable[[], bool]) -> tuple[bool, bool]:
        """Return whether to stop, and whether a checkpoint is due; several processes asked each other in the step."""
        if self.lanes is not None and self.processes.size > 1:
            return self.lanes.flags[0], self.lanes.flags[1]
        return stop_asked(), self._is_checkpoint_due()

    def _train_one_lane(self, batch: Batch) -> None:
        self._seed_dropout(batch, 0)
        with self._number_formats():
            log = self.method.step(self.model, batch, self.optimizer)
        self._add(log, 0)

    def _train_lanes(self, batch: GlobalBatch, lanes: LaneSum, stop_asked: Callable[[], bool]) -> None:
        """Train on the lanes of this process in turn; the weights change once all lanes have added their gradients."""
        runs = {part.lane: self.methods[part.lane].rounds(self.model, part, self.optimizer) for part in batch.lanes}
        parts = {part.lane: part for part in batch.lanes}
        logs: dict[int, Log] = {}
        for number in range(self.method.optimizer_steps):
            lanes.begin()
            try:
                for lane in lanes.order:
                    if lane not in runs:
                        lanes.skip()
                        continue
                    lanes.enter(len(parts[lane].x) / batch.size)
                    self._seed_dropout(parts[lane], number)
                    with self._dated_errors(), self._number_formats():
                        logs[lane] = next(runs[lane])
                    lanes.leave()
            except SihgError as error:
                lanes.fail(error)  # `apply` raises it on all processes
            lanes.flags = [stop_asked(), self.processes.is_first and self._is_checkpoint_due()]
            with self.processes.same():
                self.optimizer.apply()
        for lane, log in logs.items():
            self._add(log, lane)

    def _add(self, log: Log, lane: int) -> None:
        if not math.isfinite(log.loss):
            raise diverged(f"the loss is {log.loss}", self.optimizer.time, self.optimizer.lr)
        self.state.add(log, lane)

    def _is_checkpoint_due(self) -> bool:
        return time.monotonic() - self._saved_time > 60 * self.prepared.settings.checkpoint_minutes

    def _number_formats(self) -> AbstractContextManager[None]:
        settings = self.prepared.settings
        return number_formats(self.model, ascent=settings.precision, training=settings.train_precision)

    def _seed_dropout(self, batch: Batch, number: int) -> None:
        """Seed the generators that modules draw from; torch.manual_seed takes milliseconds for absent devices."""
        purpose = "model" if (batch.lane, number) == (0, 0) else f"model/{batch.lane}/{number}"
        seed = batch.draw(purpose).initial_seed()
        torch.default_generator.manual_seed(seed)
        if self.prepared.device.startswith("cuda"):
            with torch.cuda.device(self.prepared.device):
                torch.cuda.manual_seed(seed)
        elif self.prepared.device.startswith("mps"):
            torch.mps.manual_seed(seed)

    def _gpus(self) -> list[torch.device]:
        """Return the GPU of this process; without it, torch would begin to use all of them."""
        return [torch.device(self.prepared.device)] if self.prepared.device.startswith("cuda") else []

    def _close_epoch(self) -> Iterator[Event]:
        """Evaluate, write the row of the epoch, save the best weights and a checkpoint."""
        with self.processes.same():
            self.state.check_finite()
        self.state.collect()
        here, settings, tally = self.progress, self.prepared.settings, self.state.tally()
        is_last = here.epoch + 1 == settings.epochs
        natural, robust = None, None
        if self.prepared.held_out is not None and (is_last or (here.epoch + 1) % settings.evaluate_every == 0):
            natural, robust = self._evaluate()
        row = self.state.row(natural, robust)
        warnings = check_epoch(here.monitor, row, tally.constant / max(1, tally.judged), norm=settings.norm)
        if is_last:
            average = self.optimizer.average
            steps, ramp = (int(average.n_averaged) if average else 0), getattr(self.method, "ramp", 0.0)
            warnings += check_end(settings.epochs, settings.eps, ramp, settings.ema, steps)
        self.rows.append(row)
        self.warnings += [warning.text for warning in warnings]
        self.state.close_epoch(row, warnings)
        yield EpochDone(row)
        yield from warnings
        yield from self._save()

    def _evaluate(self) -> tuple[float, float]:
        """Return the natural and the robust accuracy of the held-out set."""
        assert self.prepared.held_out is not None
        begin = time.perf_counter()
        with self._dated_errors():
            natural, robust = run_attacks(
                self.optimizer.evaluated,
                self.prepared.held_out,
                self.prepared.plans,
                seed=self.progress.epoch,
                processes=self.processes,
            )
        self.progress.evaluation_seconds += time.perf_counter() - begin
        return natural.accuracy, robust.accuracy

    def _save(self) -> Iterator[Event]:
        path = self.state.save()
        self._saved_time = time.monotonic()
        if self.progress.number == 0:
            self._saved_epoch = self.progress.epoch
        if path is not None:
            yield CheckpointSaved(path, self.state.step)

    @contextmanager
    def _dated_errors(self) -> Iterator[None]:
        """Add the epoch, the learning rate and a remedy to a NotFiniteError; explain a batch that is too small."""
        try:
            yield
        except NotFiniteError as error:
            if error.code == "training-diverged":
                raise
            dated = diverged(str(error).partition(": ")[0], self.optimizer.time, self.optimizer.lr)
            dated.printed_by = error.printed_by
            raise dated from error
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            settings, n = self.prepared.settings, len(self.prepared.train)
            size, lanes = settings.batch_size, settings.lanes
            raise InputError("batch-too-small", samples=n, batch_size=size, lanes=lanes) from error
