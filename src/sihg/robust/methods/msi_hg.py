"""MSI-HG (Kim & Seo, 2022): Algorithms 3 and 4 of the paper."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sihg.errors import InputError
from sihg.robust.data.batches import Batch
from sihg.robust.gradients import Slope, ascend, evaluation_mode, inner_mode, slope
from sihg.robust.methods.base import INTERVAL_PASSES, Log, Optimizer, check_certifiable
from sihg.robust.methods.memory_method import MemoryMethod
from sihg.robust.methods.settings import MSIHGSettings
from sihg.robust.models.threshold import Threshold, threshold_of
from sihg.robust.threat import Feasible, LinfSet


@dataclass(kw_only=True)
class MSIHG(MemoryMethod, MSIHGSettings):
    r"""Keep a perturbation for each sample; search near it, train there, step along the hybrid gradient.

    $$\delta_i^+ = \operatorname{argmax}_{\delta \in B_i,\ \|\delta - \delta_i\| \le \tau} \phi_i(w, \delta), \qquad
    w^+ = \operatorname{optimizer}[(1 + \theta) \nabla_w \phi_i - \theta\, q]$$

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

    def check(self, model: nn.Module, sample: Tensor, *, dtype: str = "int8") -> None:
        """Raise InputError for a model that the search or the interval bounds are not for, or a coarse memory."""
        super().check(model, sample, dtype=dtype)
        if self.interval:
            check_certifiable(model, sample)
        if self.search == "threshold":
            _check_threshold_first(model, sample)

    def step(self, model: nn.Module, batch: Batch, optimizer: Optimizer) -> Log:
        """Train on one batch."""
        ball, eps = self.ball(batch)
        recalled = self.recall(batch)  # Algorithm 4, line 3
        with inner_mode(model, self.statistics):  # line 5
            ascent = slope(model, batch.x, batch.y)
            searched, unit = self._searched_set(model, ball, batch)
            if self.implicit == "proximal":
                delta = self._implicit_step(ascent, ball, recalled.delta, batch)
            else:
                delta = self._sign_ascent(ascent, searched, unit, recalled.delta, eps, batch)
        self.keep(batch, recalled, delta)  # line 6
        moved, saturated = self.mean_move(delta, recalled.delta), searched.saturated(delta)
        passes, cost = self.steps * len(delta), 1 + (INTERVAL_PASSES if self.interval else 0)
        mix = self.interval_loss(model, batch, ball, self.interval)
        point = batch.x + delta
        return self.train_on(  # line 7
            model, batch, point, optimizer, passes, mix, cost=cost, moved=moved, saturated=saturated
        )

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
