"""Training: epochs, evaluations, checkpoints; the same run again after any interruption."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from sihg.core.draw import generator
from sihg.errors import InputError
from sihg.robust.ball import Ball
from sihg.robust.data.augment import Augment
from sihg.robust.data.batches import Batch, check_size, epoch_batches, steps_of
from sihg.robust.data.samples import Samples
from sihg.robust.evaluate import check_model, evaluate
from sihg.robust.memory import PerturbationMemory
from sihg.robust.methods import FreeAT, Log, build_method
from sihg.robust.optimizers import NotFiniteError, TrainingOptimizer, build_optimizer
from sihg.robust.schedules import build as build_schedule
from sihg.robust.settings import Settings
from sihg.robust.watch import Watch
from sihg.runs.checkpoint import Checkpoint, newest_checkpoint, write_checkpoint
from sihg.runs.folder import RunFolder
from sihg.runs.interrupt import stop_on_interrupt
from sihg.runs.tables import JsonLines, Table
from sihg.runs.trees import put_together, taken_apart

COLUMNS = (
    *("epoch", "step", "loss", "accuracy", "natural", "robust", "lr", "passes", "moved", "saturated"),
    *("seconds", "evaluation_seconds"),
)


@dataclass
class Tally:
    """Sums over the epoch so far."""

    samples: int = 0
    loss: float = 0.0
    hits: float = 0.0
    moved: float | None = None
    saturated: float | None = None
    predicted: list[int] = field(default_factory=list)

    def add(self, log: Log) -> None:
        """Add a step's."""
        self.samples += log.samples
        self.loss += log.loss * log.samples
        self.hits += log.accuracy * log.samples
        self.moved = _added(self.moved, log.moved, log.samples)
        self.saturated = _added(self.saturated, log.saturated, log.samples)
        counts = log.predicted.tolist()
        self.predicted = [a + b for a, b in zip(self.predicted or [0] * len(counts), counts, strict=True)]


@dataclass
class Progress:
    """Where a run is: what, beside tensors, a checkpoint has to keep."""

    epoch: int = 0
    number: int = 0  # batches of this epoch that are done
    passes: float = 0.0  # forward-backward passes so far, in samples
    seconds: float = 0.0  # spent on training
    evaluation_seconds: float = 0.0
    tally: Tally = field(default_factory=Tally)
    watch: Watch = field(default_factory=Watch)
    best: dict[str, Any] | None = None


@dataclass(frozen=True)
class Trained:
    """How a run ended."""

    model: nn.Module  # in evaluation mode; the averaged weights where there are such
    history: list[dict[str, Any]]  # the rows of this process, one an epoch
    best: dict[str, Any] | None  # the row of the best held-out robust accuracy
    warnings: list[str]
    finished: bool
    stopped: str  # why it ended, a sentence


class Trainer:
    """One run: a model, the samples, the settings; with a folder, everything that a run leaves behind.

    `run` trains to the end or to an interruption. `resume` continues from the folder's newest whole checkpoint.
    """

    def __init__(
        self,
        model: nn.Module,
        train: Samples,
        settings: Settings,
        *,
        held_out: Samples | None = None,
        folder: RunFolder | None = None,
        tell: Callable[[str, dict[str, Any]], object] = lambda event, about: None,
    ) -> None:
        check_size(settings.batch_size, len(train))
        self.settings, self.train, self.held_out, self.folder, self.tell = settings, train, held_out, folder, tell
        self.device = _checked_device(settings.device)
        self.model = model.to(self.device)
        check_model(self.model, train)
        self.ball = Ball(settings.eps, settings.norm, settings.bounds)
        _check_range(train, self.ball)
        self.augment = Augment(settings.flip, settings.crop) if settings.flip or settings.crop else None
        if self.augment:
            self.augment.check(train.shape)
        arguments = settings.method_arguments()
        self.memory = self._new_memory() if settings.method["name"] == "msi-hg" else None
        if self.memory is not None:
            arguments["memory"] = self.memory
        self.method = build_method(settings.method["name"], **arguments)
        if settings.accumulate > 1 and isinstance(self.method, FreeAT):
            raise InputError(
                f"accumulate = {settings.accumulate} does not go with free, which steps after every pass: use 1"
            )
        theta = settings.optimizer.get("theta", 1.0 if settings.method["name"] == "msi-hg" else 0.0)
        inner = build_optimizer(self.model, settings.optimizer, theta)
        lr = float(inner.param_groups[0]["lr"])
        options = {key: value for key, value in settings.schedule.items() if key != "name"}
        schedule = build_schedule(settings.schedule["name"], lr, settings.epochs, **options)
        self.optimizer = TrainingOptimizer(self.model, inner, schedule, clip=settings.clip, ema=settings.ema)
        self.progress = Progress()
        self.history: list[dict[str, Any]] = []
        self.warnings: list[str] = []
        if folder is not None:
            self.metrics, self.log = Table(folder.metrics, COLUMNS), JsonLines(folder.log)

    # ---- the loop

    def run(self) -> Trained:
        """Train to the last epoch; Ctrl-C or a request to end writes a checkpoint and stops."""
        steps = steps_of(len(self.train), self.settings.batch_size)
        self._written = time.monotonic()
        with torch.random.fork_rng(), stop_on_interrupt() as asked:
            if self.folder is not None and self.progress == Progress():
                self._checkpoint()
            while self.progress.epoch < self.settings.epochs:
                if not self._epoch(steps, asked):
                    return self._ended(finished=False)
                self._close_epoch(steps)
        return self._ended(finished=True)

    def _epoch(self, steps: int, asked: Callable[[], bool]) -> bool:
        """The rest of an epoch; tells whether it came to its end."""
        here, settings = self.progress, self.settings
        self.model.train()
        for batch in epoch_batches(
            self.train,
            size=settings.batch_size,
            seed=settings.seed,
            epoch=here.epoch,
            first=here.number,
            augment=self.augment,
            device=self.device,
        ):
            begin = time.perf_counter()
            self._step(batch)
            here.seconds += time.perf_counter() - begin
            here.number += 1
            self.tell(
                "step",
                {"step": here.epoch * steps + here.number, "steps": settings.epochs * steps, "row": self._row(steps)},
            )
            if asked() and here.number < steps:
                self._checkpoint()
                return False
            if time.monotonic() - self._written > 60 * settings.checkpoint_minutes and here.number < steps:
                self._checkpoint()
        return True

    def _step(self, batch: Batch) -> None:
        torch.manual_seed(generator(batch.seed, "model", batch.epoch, batch.step).initial_seed())  # for dropout
        parts = min(self.settings.accumulate, len(batch.x))
        self.optimizer.at(batch.time, parts)
        for part in [batch] if parts == 1 else batch.parts(parts):
            log = self.method.step(self.model, part, self.optimizer)
            if not math.isfinite(log.loss):
                raise NotFiniteError(f"the loss is {log.loss} after {batch.time:.2f} epochs: lower lr, or set clip")
            self.progress.tally.add(log)
            self.progress.passes += log.passes

    def _close_epoch(self, steps: int) -> None:
        """Evaluate, write the epoch's row, keep the best, write a checkpoint."""
        here = self.progress
        last = here.epoch + 1 == self.settings.epochs
        row = self._row(steps)
        if self.held_out is not None and (last or (here.epoch + 1) % self.settings.evaluate_every == 0):
            begin = time.perf_counter()
            attacks = ["natural", self.settings.evaluate_with]
            natural, robust = evaluate(self.optimizer.evaluated, self.held_out, attacks, self.ball, seed=here.epoch)
            row |= {"natural": natural.accuracy, "robust": robust.accuracy}
            here.evaluation_seconds += time.perf_counter() - begin
        row["evaluation_seconds"] = here.evaluation_seconds
        most = max(here.tally.predicted) / sum(here.tally.predicted)
        warnings = here.watch.look(row, most)
        self._record(row, warnings)
        here.epoch, here.number, here.tally = here.epoch + 1, 0, Tally()
        if row["robust"] is not None and (here.best is None or row["robust"] > here.best["robust"]):
            here.best = row
            self._keep_best()
        if self.folder is not None:
            self._checkpoint()

    def _record(self, row: dict[str, Any], warnings: list[str]) -> None:
        self.history.append(row)
        self.warnings += warnings
        if self.folder is not None:
            self.metrics.append(row)
            self.log.append({"event": "epoch", **row})
            for warning in warnings:
                self.log.append({"event": "warning", "epoch": row["epoch"], "text": warning})
        self.tell("epoch", row)
        for warning in warnings:
            self.tell("warning", {"text": warning})

    def _row(self, steps: int) -> dict[str, Any]:
        """The metrics of the epoch so far."""
        here, tally = self.progress, self.progress.tally
        mean = lambda total: None if total is None else total / tally.samples  # noqa: E731
        return {
            "epoch": here.epoch + 1,
            "step": here.epoch * steps + here.number,
            "loss": mean(tally.loss),
            "accuracy": mean(tally.hits),
            "natural": None,
            "robust": None,
            "lr": self.optimizer.lr,
            "passes": here.passes / len(self.train),
            "moved": mean(tally.moved),
            "saturated": mean(tally.saturated),
            "seconds": here.seconds,
            "evaluation_seconds": here.evaluation_seconds,
        }

    def _ended(self, *, finished: bool) -> Trained:
        model = self.optimizer.evaluated.eval()
        here = self.progress
        stopped = f"{self.settings.epochs} epochs done" if finished else f"interrupted in epoch {here.epoch + 1}"
        return Trained(model, self.history, here.best, self.warnings, finished, stopped)

    # ---- what is kept

    def _new_memory(self) -> PerturbationMemory:
        settings = self.settings
        files = self.folder.memory if settings.memory_files and self.folder is not None else None
        if settings.memory_files and files is None:
            raise InputError("memory_files needs a run folder: give one (--out), or keep the memory in RAM")
        return PerturbationMemory(len(self.train), self.train.shape, settings.eps, dtype=settings.memory, folder=files)

    def _checkpoint(self) -> None:
        """Write where the run is, durably, so that it can go on from here."""
        if self.folder is None:
            return
        here = self.progress
        state, optimizer = taken_apart(self.optimizer.inner.state_dict())
        tensors = {"weights": self.model.state_dict(), "optimizer": optimizer}
        if self.optimizer.average is not None:
            tensors["average"] = self.optimizer.average.state_dict()
        if isinstance(self.method, FreeAT):
            tensors["method"] = self.method.state()
        if self.memory is not None and self.memory.folder is None:
            tensors["memory"] = self.memory.state(max(0, here.epoch - (here.number == 0)))
        elif self.memory is not None:
            self.memory.flush()
        self.metrics.flush_to_disk()
        self.log.flush_to_disk()
        about = {
            "progress": asdict(here),
            "optimizer": state,
            "sizes": {"metrics": self.metrics.size(), "log": self.log.size()},
            "data": self._about_data(),
        }
        step = here.epoch * steps_of(len(self.train), self.settings.batch_size) + here.number
        write_checkpoint(self.folder.checkpoints, f"last-{step:08d}", tensors, about)
        self._written = time.monotonic()

    def _keep_best(self) -> None:
        if self.folder is not None and self.progress.best is not None:
            weights, best = self.optimizer.evaluated.state_dict(), self.progress.best
            about = {"row": best, "data": self._about_data()}
            write_checkpoint(self.folder.checkpoints, f"best-{best['step']:08d}", {"weights": weights}, about, keep=1)

    def _about_data(self) -> dict[str, Any]:
        """What it takes to make the model again without the data."""
        return {"shape": list(self.train.shape), "classes": list(self.train.classes)}

    def resume(self) -> list[str]:
        """Go back to the folder's newest whole checkpoint; gives what had to be skipped."""
        if self.folder is None:
            raise InputError("this run has no folder, so there is nothing to resume: give one (--out)")
        checkpoint, skipped = newest_checkpoint(self.folder.checkpoints, "last")
        self._restore(checkpoint)
        return [f"{one.name}: {one.reason}" for one in skipped]

    def _restore(self, checkpoint: Checkpoint) -> None:
        state, tensors = checkpoint.state, checkpoint.tensors
        self.model.load_state_dict(tensors["weights"])
        self.optimizer.inner.load_state_dict(put_together(state["optimizer"], tensors["optimizer"]))
        if self.optimizer.average is not None:
            self.optimizer.average.load_state_dict(tensors["average"])
        if isinstance(self.method, FreeAT):
            self.method.load_state({name: some.to(self.device) for name, some in tensors["method"].items()})
        saved = dict(state["progress"])
        self.progress = Progress(**{**saved, "tally": Tally(**saved["tally"]), "watch": Watch(**saved["watch"])})
        if self.memory is not None and self.memory.folder is None:
            self.memory.load_state(tensors["memory"])
        elif self.memory is not None:
            self.memory.check_available(self.progress.epoch)
        self.metrics.truncate(state["sizes"]["metrics"])
        self.log.truncate(state["sizes"]["log"])


def _added(total: float | None, mean: float | None, samples: int) -> float | None:
    return total if mean is None else (total or 0.0) + mean * samples


def _checked_device(name: str) -> str:
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0]
        raise InputError(f"device {name!r} cannot be used here ({why}): take cpu") from error
    return name


def _check_range(samples: Samples, ball: Ball) -> None:
    """Refuse data outside the bounds, which no perturbation could bring inside."""
    for first in range(0, len(samples), 4096):
        ball.around(samples.floats(slice(first, first + 4096)))
