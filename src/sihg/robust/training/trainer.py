"""The training loop: batches, epochs, evaluations, checkpoints; everything else is in the modules around it."""

import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from sihg.errors import InputError, NotFiniteError
from sihg.interrupt import stop_on_interrupt
from sihg.robust._fast_passes import keep_freed_memory
from sihg.robust.attacks.runner import run_attacks
from sihg.robust.data.batches import Batch, epoch_batches
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
from sihg.robust.training.optimizer import diverged
from sihg.robust.training.preflight import PreparedTraining
from sihg.robust.training.state import TrainingState
from sihg.store.run_folder import FolderHandle, RunFolder
from sihg.store.schema import MetricsRow, Progress


class Trainer:
    """Trains a prepared run.

    Args:
        prepared: The run, checked by `preflight`.
        folder: The run folder, for tables and checkpoints; None to keep nothing.
        handle: Of the folder, from `locked`: notices that the folder was moved, removed or replaced.
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
    ) -> None:
        settings = prepared.settings
        if settings.memory_files and folder is None:
            raise InputError("memory-files-folder")
        self.prepared, self.folder = prepared, folder
        self.model, self.optimizer, self.method = prepared.model, prepared.optimizer, prepared.method
        self.state = TrainingState(prepared, folder, handle)
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
            self.state.load(checkpoint)
            is_complete = self.state.has_twin() or self.progress.epoch >= self.prepared.settings.epochs
            self._saved_epoch = self.progress.epoch if is_complete else None
        return skipped

    def _bind(self, *, resuming: bool) -> None:
        """Let the method make what it keeps per sample, or open it again."""
        prepared = self.prepared
        folder = self.folder.memory if self.folder is not None and prepared.settings.memory_files else None
        self.method.bind(prepared.train, dtype=prepared.memory_dtype, folder=folder, resuming=resuming)
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
        last = self.rows[-1] if self.rows else self.state.read_last_row()
        return Trained(model, history, self.progress.best, self.warnings, finished, stopped, last)

    def events(self) -> Generator[Event, None, None]:
        """Train, and yield what happens. If the generator is closed early, another call continues."""
        self._saved_time = time.monotonic()
        keep_freed_memory()
        if not self._is_bound:
            self._bind(resuming=False)
        with torch.random.fork_rng(), stop_on_interrupt() as stop_asked:
            if self.progress.number == 0 and self.progress.epoch != self._saved_epoch:
                yield from self._save()
            while self.progress.epoch < self.prepared.settings.epochs:
                yield from self._train_epoch(stop_asked)
                if self.progress.number < self.prepared.steps:
                    return
                yield from self._close_epoch()
                if stop_asked():
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
        ):
            begin = time.perf_counter()
            self._step(batch)
            here.seconds += time.perf_counter() - begin
            here.number += 1
            yield StepDone(self.state.step, settings.epochs * steps, self.state.row())
            stop, late = stop_asked(), time.monotonic() - self._saved_time > 60 * settings.checkpoint_minutes
            if (stop or late) and here.number < steps:  # else the end of the epoch saves one at once
                yield from self._save()
                if stop:
                    return

    def _step(self, batch: Batch) -> None:
        self._seed_dropout(batch.draw("model").initial_seed())
        parts = min(self.prepared.settings.accumulate, len(batch.x))
        self.optimizer.at(batch.time, parts)
        for part in [batch] if parts == 1 else batch.parts(parts):
            with self._dated_errors(), self._number_formats():
                log = self.method.step(self.model, part, self.optimizer)
            if not math.isfinite(log.loss):
                raise diverged(f"the loss is {log.loss}", self.optimizer.time, self.optimizer.lr)
            self.state.add(log)

    def _number_formats(self) -> AbstractContextManager[None]:
        settings = self.prepared.settings
        return number_formats(self.model, ascent=settings.precision, training=settings.train_precision)

    def _seed_dropout(self, seed: int) -> None:
        """Seed the generators that modules draw from; torch.manual_seed takes milliseconds for absent devices."""
        torch.default_generator.manual_seed(seed)
        if self.prepared.device.startswith("cuda"):
            torch.cuda.manual_seed_all(seed)
        elif self.prepared.device.startswith("mps"):
            torch.mps.manual_seed(seed)

    def _close_epoch(self) -> Iterator[Event]:
        """Evaluate, write the row of the epoch, save the best weights and a checkpoint."""
        self.state.check_finite()
        here, settings = self.progress, self.prepared.settings
        is_last = here.epoch + 1 == settings.epochs
        natural, robust = None, None
        if self.prepared.held_out is not None and (is_last or (here.epoch + 1) % settings.evaluate_every == 0):
            natural, robust = self._evaluate()
        row = self.state.row(natural, robust)
        warnings = check_epoch(here.monitor, row, here.tally.constant / here.tally.samples, norm=settings.norm)
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
                self.optimizer.evaluated, self.prepared.held_out, self.prepared.plans, seed=self.progress.epoch
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
        """Add the epoch, the learning rate and a remedy to a NotFiniteError."""
        try:
            yield
        except NotFiniteError as error:
            if error.code == "training-diverged":
                raise
            raise diverged(str(error).partition(": ")[0], self.optimizer.time, self.optimizer.lr) from error
