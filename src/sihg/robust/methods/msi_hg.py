"""MSI-HG (Kim & Seo, 2022): Algorithms 3 and 4 of the paper."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sihg.errors import InputError
from sihg.robust.data.augment import Move
from sihg.robust.data.batches import Batch
from sihg.robust.gradients import Slope, ascend, evaluation_mode, inner_mode, slope
from sihg.robust.memory import PerturbationMemory
from sihg.robust.methods.base import (
    INTERVAL_PASSES,
    AdversarialMethod,
    Log,
    Optimizer,
    train_on,
)
from sihg.robust.methods.settings import MSIHGSettings
from sihg.robust.models.threshold import Threshold, threshold_of
from sihg.robust.threat import Feasible, LinfSet


@dataclass(kw_only=True)
class MSIHG(MSIHGSettings, AdversarialMethod):
    r"""Keep a perturbation for each sample; search near it, train there, step along the hybrid gradient.

    .. math:: \delta_i^+ = \arg\max_{\delta \in B_i,\ \|\delta - \delta_i\| \le \tau} \phi_i(w, \delta), \qquad
              w^+ = \mathtt{optimizer}[(1 + \theta) \nabla_w \phi_i - \theta\, q]

    The search takes T signed ascent steps from the stored delta_i plus noise. `implicit="proximal"` takes instead the
    literal implicit step of size tau, Pi_B[delta_i + tau grad phi(delta+)], by T steps of proximal ascent on
    phi - |.|^2/(2 tau) of length `step_size` (default tau: the fixed-point iteration). The hybrid gradient is the
    optimiser's business: pass a `HybridGradient`.

    A model that begins with a `Threshold` is nearly flat over most of the ball: a pixel that a step has carried past
    the ramp needs several to come back. `search="threshold"` stays on the ramp, where the model's values are those of
    the ball up to the leak, and shrinks all lengths, pixel by pixel, as the pixel's interval has shrunk: with tau below
    2 eps it sees less of the ramp. Searches begin near the stored perturbation or, fresh, near the sample itself, as
    the threshold sees them.
    """

    memory: PerturbationMemory | None = field(default=None, repr=False, metadata={"running": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory is not None and self.memory.eps < self.eps:
            raise InputError(
                f"the memory holds perturbations up to {self.memory.eps}, eps is {self.eps}: give both one eps",
                code="memory-eps",
                eps=self.eps,
            )
        if self.memory is not None and self.norm == "l2" and self.memory.dtype == "int8":
            raise InputError(
                "an int8 memory, in steps of eps / 127, is too coarse for l2, where most entries are smaller: "
                "take fp16 (dtype='fp16' of the memory, --memory fp16)",
                code="memory-dtype-l2",
            )

    def check(self, model: nn.Module, x: Tensor) -> None:
        """Refuse a model that the search is not for; `x` is a sample."""
        if self.search == "ball":
            return
        threshold_of(model)
        seen: list[Tensor] = []
        found = [module for module in model.modules() if isinstance(module, Threshold)]
        hooks = [one.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])) for one in found]
        try:
            with torch.no_grad(), evaluation_mode(model):
                model(x)
        finally:
            for hook in hooks:
                hook.remove()
        if not seen or any(not torch.equal(one, x) for one in seen):
            raise InputError(
                f"search = 'threshold' is for a Threshold that sees the samples as they are, that of this "
                f"{type(model).__name__} sees something else: put it first, or search the ball"
            )

    def step(self, model: nn.Module, batch: Batch, optimizer: Optimizer) -> Log:
        """Train on one batch."""
        ball, eps = self.ball(batch)
        stored = self._read(batch)
        move = self._move(batch)
        old = stored if move is None else move.apply(stored)
        with inner_mode(model, self.statistics):  # line 5
            climb = slope(model, batch.x, batch.y)
            searched, unit = self._searched(model, ball, batch)
            if self.implicit == "proximal":
                delta = self._literal(climb, ball, old, batch)
            else:
                delta = self._surrogate(climb, searched, unit, old, eps, batch)
        if self.memory is not None:
            kept = move.back(delta, stored) if move is not None and self.augment_delta == "same" else delta
            self.memory.write(batch.index, batch.epoch, kept)
        moved = float((delta - old).abs_().mean()) / self.eps
        saturated = searched.saturated(delta)
        passes = (self.steps + (INTERVAL_PASSES if self.interval else 0)) * len(delta)
        transform = self.bounded(model, batch, ball, self.interval)
        return train_on(
            model, batch, batch.x + delta, optimizer, passes, transform, moved=moved, saturated=saturated
        )  # 7

    def _searched(self, model: nn.Module, ball: Feasible, batch: Batch) -> tuple[Feasible, float | Tensor]:
        """The set that the ascent searches, and the unit of its lengths."""
        if self.search == "ball":
            return ball, 1.0
        ends = threshold_of(model).passed(batch.x + ball.low, batch.x + ball.high)
        low, high = (torch.clamp(end - batch.x, ball.low, ball.high) for end in ends)
        return LinfSet(low, high), (high - low) / (ball.high - ball.low).clamp_(min=torch.finfo(low.dtype).tiny)

    def _surrogate(
        self, slope: Slope, ball: Feasible, unit: float | Tensor, old: Tensor, eps: float, batch: Batch
    ) -> Tensor:
        """Signed ascent in S_i, what the ball has within tau of the old perturbation."""
        tau: float | Tensor = self.tau or self.eps
        noise: float | Tensor = tau if self.noise is None else self.noise
        if self.fresh:  # as if there were no memory, and the whole ball were near
            draw = torch.rand(batch.size, *(1,) * (old.dim() - 1), generator=batch.draw("fresh"))
            anew = (draw[batch.part] < self.fresh).to(old.device)
            old = old.masked_fill(anew, 0)
            tau, noise = (torch.where(anew, a, b).to(old) for a, b in ((2 * eps, tau), (eps, noise)))
        near = ball.near(old, tau * unit)  # S_i
        delta = self.start(batch, near, noise * unit, old)
        return ascend(slope, delta, near, (self.step_size or 2.5 * eps / self.steps) * unit, self.steps)

    def _literal(self, slope: Slope, ball: Feasible, old: Tensor, batch: Batch) -> Tensor:
        """Proximal ascent on phi - |delta - old|^2 / (2 tau) in the ball."""
        tau = self.tau or self.eps
        delta = self.start(batch, ball, tau if self.noise is None else self.noise, old)
        eta = self.step_size or tau
        for _ in range(self.steps):
            delta = ball.project_(delta.add(slope(delta), alpha=eta).sub_(delta - old, alpha=eta / tau))
        return delta

    def _read(self, batch: Batch) -> Tensor:
        """The stored perturbations, zero where there are none."""
        if self.memory is None or (self.reset and batch.epoch % self.reset == 0):
            return torch.zeros_like(batch.x)
        return self.memory.read(batch.index, batch.epoch).to(batch.x)

    def _move(self, batch: Batch) -> Move | None:
        """The augmentation that stored perturbations go through."""
        if batch.move is None or self.augment_delta == "none":
            return None
        return batch.move if self.augment_delta == "same" else batch.other_move()
