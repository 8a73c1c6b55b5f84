"""Training: epochs, evaluations, checkpoints; the same run again after any interruption."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Any

import torch
from torch import nn

from sihg.core.draw import generator
from sihg.errors import InputError, NotFiniteError
from sihg.interrupt import stop_on_interrupt
from sihg.robust._malloc import keep_freed_memory
from sihg.robust.attacks.certified import Certified
from sihg.robust.attacks.registry import build_plan
from sihg.robust.attacks.runner import run_attacks
from sihg.robust.data.augment import Augment
from sihg.robust.data.batches import Batch, check_batch_size, epoch_batches, steps_per_epoch
from sihg.robust.data.samples import Samples
from sihg.robust.evaluation.evaluate import check_model, check_plans, check_range, checked_device
from sihg.robust.memory import PerturbationMemory
from sihg.robust.methods import MSIHG, YOPO, FreeAT, build_method
from sihg.robust.models import split_stem
from sihg.robust.threat import Ball
from sihg.robust.training.config import Choice, Settings
from sihg.robust.training.monitor import Watch, long_ramp, short_average
from sihg.robust.training.optimizer import CALMER, TrainingOptimizer, build_optimizer
from sihg.robust.training.schedules import build_schedule
from sihg.robust.training.state import Progress, Tally
from sihg.robust.training.weights import load_weights
from sihg.store.checkpoint import Checkpoint, newest_checkpoint, write_checkpoint
from sihg.store.run_folder import RunFolder
from sihg.store.state_tree import flatten_state, unflatten_state
from sihg.store.tables import JsonLines, Table, read_table

COLUMNS = (
    *("epoch", "step", "loss", "accuracy", "natural", "robust", "lr", "passes", "moved", "saturated"),
    *("seconds", "evaluation_seconds"),
)
BINS = 10  # of |delta| / eps, in the memory's table
MEMORY_COLUMNS = ("epoch", "moved", "saturated", *(f"to_{k / BINS:g}" for k in range(1, BINS + 1)))
NAMED = ("optimizer.", "schedule.")  # whose settings depend on their names


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
        tell: Callable[[str, dict[str, Any]], object] = lambda _event, _about: None,
    ) -> None:
        check_batch_size(settings.batch_size, len(train))
        self.settings, self.train, self.held_out, self.folder, self.tell = settings, train, held_out, folder, tell
        self.steps = steps_per_epoch(len(train), settings.batch_size)  # an epoch
        self.device = checked_device(settings.device)
        self.model = model.to(self.device)
        check_model(self.model, train)
        self._check_smallest_batch()
        self.ball = Ball(settings.eps, settings.norm, settings.bounds)
        check_range(train, self.ball)
        attacks = {settings.evaluate_with: build_plan(settings.evaluate_with, self.ball)}
        check_plans(self.model, train, attacks)  # what cannot be done is refused now, not after an epoch
        self.augment = Augment(settings.flip, settings.crop) if settings.flip or settings.crop else None
        if self.augment:
            self.augment.check(train.shape)
        self.optimizer = self._new_optimizer()
        self.method = self._new_method()
        self.memory = None
        if isinstance(self.method, MSIHG):  # last, since its files take space
            self.memory = self._new_memory()
            self.method = replace(self.method, memory=self.memory)
        self.progress = Progress()
        self.history: list[dict[str, Any]] = []
        self.warnings: list[str] = []
        if folder is not None:
            self.files: dict[str, Table | JsonLines] = {
                "metrics": Table(folder.metrics, COLUMNS),
                "log": JsonLines(folder.log),
                **({} if self.memory is None else {"memory": Table(folder.memory_table, MEMORY_COLUMNS)}),
            }

    def _new_optimizer(self) -> TrainingOptimizer:
        settings = self.settings
        inner = build_optimizer(self.model, settings.optimizer.name, settings.optimizer.options, settings.theta)
        lr = float(inner.param_groups[0]["lr"])
        options: dict[str, Any] = dict(settings.schedule.options)
        schedule = build_schedule(settings.schedule.name, lr, settings.epochs, **options)
        return TrainingOptimizer(self.model, inner, schedule, clip=settings.clip, ema=settings.ema)

    def _new_memory(self) -> PerturbationMemory:
        settings = self.settings
        files = self.folder.memory if settings.memory_files and self.folder is not None else None
        if settings.memory_files and files is None:
            raise InputError("memory_files needs a run folder: give one (--out), or keep the memory in RAM")
        dtype = settings.complete().memory or ""
        return PerturbationMemory(len(self.train), self.train.shape, settings.eps, dtype=dtype, folder=files)

    def _new_method(self) -> Any:
        settings, name = self.settings, self.settings.method.name
        method = build_method(name, **settings.method_arguments())
        if settings.accumulate > 1 and isinstance(method, FreeAT):
            raise InputError(
                f"accumulate = {settings.accumulate} does not go with free, which steps after every pass: use 1"
            )
        if isinstance(method, YOPO):
            split_stem(self.model)  # a model without stem and body is refused now
        if isinstance(method, MSIHG):
            method.check(self.model, self.train.floats(slice(1)).to(self.device))
        if getattr(method, "interval", 0):
            Certified(eps=0.0).check(self.model, self.train.floats(slice(1)).to(self.device))
        return method

    def _check_smallest_batch(self) -> None:
        """Refuse a single sample where batch normalisation would need several, now and not at the end of an epoch."""
        n, size, most = len(self.train), self.settings.batch_size, self.settings.accumulate
        smallest = min(some // min(most, some) for some in (min(size, n), n % size or size))
        if smallest > 1 or not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.model.modules()):
            return
        try:
            with torch.no_grad(), torch.random.fork_rng():
                deepcopy(self.model).train()(self.train.floats(slice(1)).to(self.device))
        except ValueError as error:
            if "per channel" not in str(error):
                raise
            raise InputError(
                f"batch normalisation needs more than 1 sample, which is what {n} samples in batches of {size}, each "
                f"in {most} part(s), come to: choose another batch_size"
            ) from error

    # ---- the loop

    def run(self) -> Trained:
        """Train to the last epoch; Ctrl-C or a request to end writes a checkpoint and stops."""
        self._written = time.monotonic()
        keep_freed_memory()
        with torch.random.fork_rng(), stop_on_interrupt() as asked:
            if self.progress == Progress():
                self._checkpoint()
            while self.progress.epoch < self.settings.epochs:
                if not self._epoch(asked):
                    return self._ended(finished=False)
                self._close_epoch()
                if asked() and self.progress.epoch < self.settings.epochs:
                    return self._ended(finished=False)
        return self._ended(finished=True)

    def _epoch(self, asked: Callable[[], bool]) -> bool:
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
            row = self._row()
            self.tell("step", {"step": row["step"], "steps": settings.epochs * self.steps, "row": row})
            stop, late = asked(), time.monotonic() - self._written > 60 * settings.checkpoint_minutes
            if (stop or late) and here.number < self.steps:  # else the end of the epoch writes one at once
                self._checkpoint()
                if stop:
                    return False
        return True

    def _step(self, batch: Batch) -> None:
        self._seed_dropout(generator(batch.seed, "model", batch.epoch, batch.step).initial_seed())
        parts = min(self.settings.accumulate, len(batch.x))
        self.optimizer.at(batch.time, parts)
        for part in [batch] if parts == 1 else batch.parts(parts):
            with self._finite():
                log = self.method.step(self.model, part, self.optimizer)
            if not math.isfinite(log.loss):
                raise self._not_finite(f"the loss is {log.loss}")
            self.progress.tally.add(log)
            self.progress.passes += log.passes

    def _seed_dropout(self, seed: int) -> None:
        """Seed the generators that modules draw from; torch.manual_seed would take milliseconds for absent devices."""
        torch.default_generator.manual_seed(seed)
        if self.device.startswith("cuda"):
            torch.cuda.manual_seed_all(seed)
        elif self.device.startswith("mps"):
            torch.mps.manual_seed(seed)

    def _close_epoch(self) -> None:
        """Evaluate, write the epoch's row, keep the best, write a checkpoint."""
        here, settings = self.progress, self.settings
        row = self._row()
        last = row["epoch"] == settings.epochs
        if self.held_out is not None and (last or row["epoch"] % settings.evaluate_every == 0):
            begin = time.perf_counter()
            plans = {
                "natural": build_plan("natural", self.ball),
                "robust": build_plan(settings.evaluate_with, self.ball),
            }
            with self._finite():
                natural, robust = run_attacks(self.optimizer.evaluated, self.held_out, plans, seed=here.epoch)
            here.evaluation_seconds += time.perf_counter() - begin
            row |= {"natural": natural.accuracy, "robust": robust.accuracy}
            row["evaluation_seconds"] = here.evaluation_seconds
        # On the sphere of an L2 ball is where perturbations belong; the corners of a box are another matter.
        seen = row if settings.norm == "linf" else {**row, "saturated": None}
        warnings = here.watch.look(seen, here.tally.constant / here.tally.samples)
        if last and self.optimizer.average is not None:
            warnings += short_average(settings.ema, int(self.optimizer.average.n_averaged))
        if last:
            warnings += long_ramp(getattr(settings.method_settings, "ramp", 0.0), settings.epochs, settings.eps)
        self._record(row, warnings)
        here.epoch, here.number, here.tally = here.epoch + 1, 0, Tally()
        if row["robust"] is not None and (here.best is None or _merit(row) > _merit(here.best)):
            here.best = row
            self._keep_best(row)
        self._checkpoint()

    @contextmanager
    def _finite(self) -> Iterator[None]:
        """Let what refuses numbers that are none, such as the memory, say when it happened and what helps."""
        try:
            yield
        except NotFiniteError as error:
            if "epochs, at learning rate" in str(error):  # the optimiser's own says it already
                raise
            raise self._not_finite(str(error).partition(": ")[0]) from error

    def _not_finite(self, what: str) -> NotFiniteError:
        return NotFiniteError(
            f"{what}, after {self.optimizer.time:.2f} epochs, at learning rate {self.optimizer.lr:g}: {CALMER}"
        )

    def _record(self, row: dict[str, Any], warnings: list[str]) -> None:
        self.history.append(row)
        self.warnings += warnings
        if self.folder is not None:
            self.files["metrics"].append(row)
            if self.memory is not None:
                self.files["memory"].append({key: row[key] for key in MEMORY_COLUMNS[:3]} | self._shares(self.memory))
            self.files["log"].append({"event": "epoch", **row})
            for warning in warnings:
                self.files["log"].append({"event": "warning", "epoch": row["epoch"], "text": warning})
        self.tell("epoch", row)
        for warning in warnings:
            self.tell("warning", {"text": warning})

    def _shares(self, memory: PerturbationMemory) -> dict[str, float]:
        """How many of the stored entries (l2: perturbations) are how large, in units of eps."""
        counts = torch.zeros(BINS, dtype=torch.float64)
        for rows in torch.arange(memory.n).split(max(1, 2**22 // math.prod(memory.shape))):
            delta = memory.read(rows, self.progress.epoch + 1)
            sizes = delta.abs() if self.settings.norm == "linf" else torch.linalg.vector_norm(delta.flatten(1), dim=1)
            counts += torch.histc(sizes.div_(memory.eps).clamp_(max=1), BINS, 0, 1)
        return dict(zip(MEMORY_COLUMNS[3:], (counts / counts.sum()).tolist(), strict=True))

    def _row(self) -> dict[str, Any]:
        """The metrics of the epoch so far."""
        here, tally = self.progress, self.progress.tally
        return {
            "epoch": here.epoch + 1,
            "step": here.epoch * self.steps + here.number,
            "loss": tally.mean(tally.loss),
            "accuracy": tally.mean(tally.hits),
            "natural": None,
            "robust": None,
            "lr": self.optimizer.lr,
            "passes": here.passes / len(self.train),
            "moved": tally.mean(tally.moved),
            "saturated": tally.mean(tally.saturated),
            "seconds": here.seconds,
            "evaluation_seconds": here.evaluation_seconds,
        }

    def _ended(self, *, finished: bool) -> Trained:
        model = self.optimizer.evaluated.eval()
        here = self.progress
        stopped = f"{self.settings.epochs} epochs done" if finished else f"interrupted in epoch {here.epoch + 1}"
        return Trained(model, self.history, here.best, self.warnings, finished, stopped)

    # ---- what is kept

    def _checkpoint(self) -> None:
        """Write where the run is, durably, so that it can go on from here."""
        if self.folder is None:
            return
        here = self.progress
        state, optimizer = flatten_state(self.optimizer.inner.state_dict())
        tensors = {"weights": self.model.state_dict(), "optimizer": optimizer}
        if self.optimizer.average is not None:
            tensors["average"] = self.optimizer.average.state_dict()
        if isinstance(self.method, FreeAT):
            tensors["method"] = self.method.state()
        if self.memory is not None and self.memory.folder is None:
            tensors["memory"] = self.memory.state(max(0, here.epoch - (here.number == 0)))
        elif self.memory is not None:
            self.memory.flush()
        for file in self.files.values():
            file.flush_to_disk()
        about = {
            "progress": asdict(here),
            "optimizer": state,
            "sizes": {name: file.size() for name, file in self.files.items()},
            "data": self._about_data(),
            "settings": self.settings.deciding(),
        }
        step = here.epoch * self.steps + here.number
        write_checkpoint(self.folder.checkpoints, f"last-{step:08d}", tensors, about)
        self._written = time.monotonic()

    def _keep_best(self, row: dict[str, Any]) -> None:
        if self.folder is not None:
            weights, about = self.optimizer.evaluated.state_dict(), {"row": row, "data": self._about_data()}
            write_checkpoint(self.folder.checkpoints, f"best-{row['step']:08d}", {"weights": weights}, about, keep=1)

    def _about_data(self) -> dict[str, Any]:
        """What it takes to make the model again without the data, and to know the data again."""
        about = {"shape": list(self.train.shape), "classes": list(self.train.classes), "samples": len(self.train)}
        return {**about, "sha256": self._data_sum}

    @cached_property
    def _data_sum(self) -> str:
        parts = [self.train, *([] if self.held_out is None else [self.held_out])]
        found = sha256()
        for tensor in (t for part in parts for t in (part.x, part.y)):
            found.update(tensor.contiguous().numpy().data)
        return found.hexdigest()

    def resume(self) -> list[str]:
        """Go back to the folder's newest whole checkpoint; gives what had to be skipped.

        A run that was ended before its first checkpoint is at its beginning.
        """
        if self.folder is None:
            raise InputError("this run has no folder, so there is nothing to resume: give one (--out)")
        if not any(self.folder.checkpoints.glob("last-*")) and not read_table(self.folder.metrics):
            return []
        checkpoint, skipped = newest_checkpoint(self.folder.checkpoints, "last")
        self._restore(checkpoint)
        return [f"{one.name}: {one.reason}" for one in skipped]

    def _restore(self, checkpoint: Checkpoint) -> None:
        state, tensors = checkpoint.state, checkpoint.tensors
        saved = dict(state["progress"])
        if wrong := _differing(self._with_defaults(state.get("settings", {})), self.settings.deciding()):
            raise InputError(f"{checkpoint.path} is of a run with {wrong}: give the same settings, or start a new run")
        data = self._about_data()
        if wrong := _differing({**data, **{key: state["data"][key] for key in data if key in state["data"]}}, data):
            raise InputError(f"{checkpoint.path} is of a run on other data, with {wrong}: give the same data")
        load_weights(self.model, tensors["weights"], checkpoint.path)
        self.optimizer.inner.load_state_dict(unflatten_state(state["optimizer"], tensors["optimizer"]))
        if self.optimizer.average is not None:
            self.optimizer.average.load_state_dict(tensors["average"])
        if isinstance(self.method, FreeAT):
            self.method.load_state({name: some.to(self.device) for name, some in tensors["method"].items()})
        self.progress = Progress(**{**saved, "tally": Tally(**saved["tally"]), "watch": Watch(**saved["watch"])})
        if self.memory is not None and self.memory.folder is None:
            self.memory.load_state(tensors["memory"])
        elif self.memory is not None:
            self.memory.check_available(self.progress.epoch)
        for name, size in state["sizes"].items():
            self.files[name].truncate(size)

    def _with_defaults(self, saved: dict[str, Any]) -> dict[str, Any]:
        """The settings of a checkpoint; those that there were not yet when it was written have their defaults."""
        usual = Settings(method=Choice(self.settings.method.name)).deciding()
        return saved and {key: value for key, value in usual.items() if not key.startswith(NAMED)} | saved


def _differing(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    """What is not the same in both, as text; nothing where they are alike, or where theirs says nothing."""
    keys = [key for key in theirs | ours if theirs and theirs.get(key) != ours.get(key)]
    return ", ".join(f"{key} = {theirs.get(key, 'none')} (here {ours.get(key, 'none')})" for key in keys)


def _merit(row: dict[str, Any]) -> tuple[float, float]:
    """What the best checkpoint is chosen by."""
    return row["robust"], row["natural"]
