"""MSI-HG (Kim & Seo, 2022): Algorithms 3 and 4 of the paper."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from sihg.errors import InputError
from sihg.robust.data.augment import Move
from sihg.robust.data.batches import Batch
from sihg.robust.data.samples import Samples
from sihg.robust.gradients import Slope, ascend, evaluation_mode, inner_mode, slope
from sihg.robust.memory import PerturbationMemory, check_dtype
from sihg.robust.methods.base import (
    INTERVAL_PASSES,
    AdversarialMethod,
    Log,
    Optimizer,
    check_certifiable,
    train_on,
)
from sihg.robust.methods.settings import MSIHGSettings
from sihg.robust.models.threshold import Threshold, threshold_of
from sihg.robust.threat import Feasible, LinfSet
from sihg.robust.waits import late, upload
from sihg.store.schema import MEMORY_COLUMNS


@dataclass(kw_only=True)
class MSIHG(AdversarialMethod, MSIHGSettings):
    r"""Keep a perturbation for each sample; search near it, train there, step along the hybrid gradient.

    .. math:: \delta_i^+ = \arg\max_{\delta \in B_i,\ \|\delta - \delta_i\| \le \tau} \phi_i(w, \delta), \qquad
              w^+ = \mathtt{optimizer}[(1 + \theta) \nabla_w \phi_i - \theta\, q]

    The search takes T signed ascent steps from the stored delta_i plus noise. `implicit="proximal"` takes the literal
    implicit step of size tau instead, Pi_B[delta_i + tau grad phi(delta+)]: T steps of proximal ascent on
    phi - |.|^2/(2 tau) of length `step_size` (default tau: the fixed-point iteration). The optimiser does the hybrid
    gradient: pass a `HybridGradient`.

    A model that begins with a `Threshold` is nearly flat over most of the ball: a pixel that a step moved past the ramp
    needs several steps to come back. `search="threshold"` stays on the ramp, where the model takes the values that it
    has in the ball, up to the leak. It scales all lengths, per pixel, by how much the pixel's interval has shrunk; with
    tau below 2 eps it sees less of the ramp. A search starts near the stored perturbation or, if `fresh`, near the
    sample, both as the threshold maps them.

    Args:
        eps, norm, bounds, ramp: The ball, and the epochs in which its radius grows.
        tau, noise: How far a search may go from the stored perturbation, and the radius of its noise.
        steps, step_size: The number of ascent steps T, and their length (default 2.5 eps / T).
        fresh: The share of samples that search the whole ball.
        interval: The share of the loss that is taken at interval bounds.
        implicit, search, statistics, augment_delta: See above, and `sihg train --help`.
        reset: The epochs after which the memory starts at zero again (0: never).
        memory: A memory for a loop of your own; the trainer makes one by `bind`.
    Example:
        >>> MSIHG(eps=0.3, tau=0.1).steps
        5
    """

    memory: PerturbationMemory | None = field(default=None, repr=False, metadata={"running": True})

    memory_columns: ClassVar[tuple[str, ...]] = MEMORY_COLUMNS[3:]
    state_file: ClassVar[str] = "memory"
    _is_own = False  # whether `bind` made the memory, which then goes to the device of the batches
    _is_new = False  # whether the files of the memory belong to a run without a checkpoint, which starts at zero

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory is None:
            return
        if self.memory.eps < self.eps:
            raise InputError("memory-eps", eps=self.eps, most=self.memory.eps)
        self._check_precision(self.memory.dtype)

    def check(self, model: nn.Module, sample: Tensor, *, dtype: str = "int8") -> None:
        """Raise InputError for a model that the search or the interval bounds are not for, or a coarse memory."""
        check_dtype(dtype)
        self._check_precision(dtype)
        if self.interval:
            check_certifiable(model, sample)
        if self.search == "threshold":
            _check_threshold_first(model, sample)

    def bind(
        self,
        samples: Samples,
        *,
        dtype: str = "int8",
        folder: Path | None = None,
        resuming: bool = False,
        lane: int = 0,
        lanes: int = 1,
    ) -> None:
        """Make the memory of a lane, in RAM or in files of the folder; if `resuming`, the files must be there."""
        self.memory = PerturbationMemory(
            len(samples),
            samples.shape,
            self.eps,
            dtype=dtype,
            folder=folder,
            existing=resuming,
            rank=lane,
            world_size=lanes,
        )
        self._is_new, self._is_own = not resuming, True

    def expect(self, index: Tensor, epoch: int) -> None:
        """Begin to read the perturbations of the next batch from files."""
        if self.memory is not None:
            self.memory.prefetch(index, epoch)

    def state(self, epoch: int) -> dict[str, Tensor]:
        """Return the memory of this epoch or, if it lives in files, what these are checked by on a resume."""
        self._start()
        if self.memory is None:
            return {}
        return self.memory.state(epoch) if self.memory.folder is None else self.memory.file_state(epoch)

    def load_state(self, state: Mapping[str, Tensor], epoch: int) -> None:
        """Continue from a `state`; files must hold what they held then."""
        assert self.memory is not None
        if self.memory.folder is None:
            self.memory.load_state(state)
        else:
            self.memory.check_files(state, epoch)
        self._is_new = False

    def _start(self) -> None:
        """Clear files that a run left which ended before its first checkpoint.

        `bind` does not: a resume that fails must leave the files as they are.
        """
        if self._is_new and self.memory is not None and self.memory.folder is not None:
            self.memory.clear()
        self._is_new = False

    def flush(self) -> None:
        """Write the files of the memory to the disk."""
        self._start()
        if self.memory is not None:
            self.memory.flush()

    def memory_row(self, epoch: int) -> dict[str, float]:
        """Return the histogram of |delta| / eps after an epoch: of all entries or, for l2 and l1, of the norms."""
        assert self.memory is not None
        shares = self.memory.histogram(epoch + 1, self.norm, len(self.memory_columns))
        return dict(zip(self.memory_columns, shares, strict=True))

    def _check_precision(self, dtype: str) -> None:
        if self.norm != "linf" and dtype == "int8":
            raise InputError("memory-dtype-norm", dtype=dtype, norm=self.norm)

    def step(self, model: nn.Module, batch: Batch, optimizer: Optimizer) -> Log:
        """Train on one batch."""
        self._start()
        if self.memory is not None and self._is_own:
            self.memory.to(batch.x.device)
        ball, eps = self.ball(batch)
        stored = self._read(batch)  # Algorithm 4, line 3
        move = self._move(batch)
        old = stored if move is None else move.apply(stored)
        with inner_mode(model, self.statistics):  # line 5
            ascent = slope(model, batch.x, batch.y)
            searched, unit = self._searched_set(model, ball, batch)
            if self.implicit == "proximal":
                delta = self._implicit_step(ascent, ball, old, batch)
            else:
                delta = self._sign_ascent(ascent, searched, unit, old, eps, batch)
        if self.memory is not None:  # line 6
            kept = move.back(delta, stored) if move is not None and self.augment_delta == "same" else delta
            self.memory.write(batch.index, batch.epoch, kept)
        moved = late(lambda mean: mean / self.eps, (delta - old).abs_().mean())
        saturated = searched.saturated(delta)
        passes = (self.steps + (INTERVAL_PASSES if self.interval else 0)) * len(delta)
        mix = self.interval_loss(model, batch, ball, self.interval)
        point = batch.x + delta
        return train_on(model, batch, point, optimizer, passes, mix, moved=moved, saturated=saturated)  # line 7

    def _searched_set(self, model: nn.Module, ball: Feasible, batch: Batch) -> tuple[Feasible, float | Tensor]:
        """Return the set that the ascent searches, and the unit of its lengths."""
        if self.search == "ball":
            return ball, 1.0
        ends = threshold_of(model).passed(batch.x + ball.low, batch.x + ball.high)
        low, high = (torch.clamp(end - batch.x, ball.low, ball.high) for end in ends)
        return LinfSet(low, high), (high - low) / (ball.high - ball.low).clamp_(min=torch.finfo(low.dtype).tiny)

    def _sign_ascent(
        self, slope: Slope, ball: Feasible, unit: float | Tensor, old: Tensor, eps: float, batch: Batch
    ) -> Tensor:
        """Ascend by signed steps in S_i, the part of the ball within tau of the old perturbation."""
        tau: float | Tensor = self.tau or self.eps
        noise: float | Tensor = tau if self.noise is None else self.noise
        if self.fresh:  # for these samples, S_i is the whole ball and the centre is zero
            restarted = batch.uniform("fresh", (1,) * (old.dim() - 1)) < self.fresh
            old = old.masked_fill(restarted, 0)
            tau, noise = (torch.where(restarted, a, b).to(old) for a, b in ((2 * eps, tau), (eps, noise)))
        near = ball.near(old, tau * unit)  # S_i
        delta = self.start(batch, near, noise * unit, old)
        return ascend(slope, delta, near, (self.step_size or 2.5 * eps / self.steps) * unit, self.steps)

    def _implicit_step(self, slope: Slope, ball: Feasible, old: Tensor, batch: Batch) -> Tensor:
        """Ascend on phi - |delta - old|^2 / (2 tau) in the ball, by proximal steps."""
        tau = self.tau or self.eps
        delta = self.start(batch, ball, tau if self.noise is None else self.noise, old)
        eta = self.step_size or tau
        for _ in range(self.steps):
            delta = ball.project_(delta.add(slope(delta), alpha=eta).sub_(delta - old, alpha=eta / tau))
        return delta

    def _read(self, batch: Batch) -> Tensor:
        """Return the stored perturbations; zero for samples without one."""
        if self.memory is None or (self.reset and batch.epoch % self.reset == 0):
            return torch.zeros_like(batch.x)
        return upload(self.memory.read(batch.index, batch.epoch), batch.x.device).to(batch.x.dtype)

    def _move(self, batch: Batch) -> Move | None:
        """Return the augmentation that is applied to stored perturbations."""
        if batch.move is None or self.augment_delta == "none":
            return None
        return batch.move if self.augment_delta == "same" else batch.other_move()


def _check_threshold_first(model: nn.Module, sample: Tensor) -> None:
    """Raise InputError unless the model has Thresholds, alike, and each receives the sample itself."""
    threshold_of(model)
    received: list[Tensor] = []
    thresholds = [module for module in model.modules() if isinstance(module, Threshold)]
    hooks = [t.register_forward_pre_hook(lambda _, inputs: received.append(inputs[0])) for t in thresholds]
    try:
        with torch.no_grad(), evaluation_mode(model):
            model(sample)
    finally:
        for hook in hooks:
            hook.remove()
    if not received or any(not torch.equal(x, sample) for x in received):
        raise InputError("threshold-not-first", type=type(model).__name__)
