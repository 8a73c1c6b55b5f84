"""Optimisers by name, and the one that the trainer hands to a method."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from sihg.core.hybrid import HybridGradient
from sihg.errors import InputError, NotFiniteError, UnknownNameError
from sihg.robust.schedules import Schedule


class TrainingOptimizer:
    """An optimiser whose `step` checks the gradients, clips, extrapolates, steps at the scheduled rate, averages."""

    def __init__(
        self,
        model: nn.Module,
        inner: HybridGradient,
        schedule: Schedule,
        *,
        clip: float | None = None,
        ema: float = 0.0,
    ) -> None:
        self.inner, self.schedule, self.clip = inner, schedule, clip
        self.parameters = [p for group in inner.param_groups for p in group["params"]]
        self.average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(ema)) if ema else None
        self.model, self.time, self.parts, self._part = model, 0.0, 1, 0

    @property
    def lr(self) -> float:
        """The learning rate now."""
        return self.schedule(self.time)

    def at(self, time: float, parts: int = 1) -> None:
        """Say when the next batch is, in epochs, and in how many parts it comes."""
        self.time, self.parts, self._part = time, parts, 0

    def zero_grad(self) -> None:
        """Reset the gradients, unless they wait for further parts of their batch."""
        if self._part == 0:
            self.inner.zero_grad()

    def step(self) -> None:
        """Use the gradients, once all parts of the batch have added theirs."""
        self._part += 1
        if self._part < self.parts:
            return
        self._part = 0
        grads = [p.grad for p in self.parameters if p.grad is not None]
        norm = nn.utils.get_total_norm(grads)
        if not bool(torch.isfinite(norm)):
            raise NotFiniteError(
                f"the gradient is not finite, after {self.time:.2f} epochs, at learning rate {self.lr:g}: lower lr, or "
                "set clip"
            )
        if self.clip is not None:
            nn.utils.clip_grads_with_norm_(self.parameters, self.clip, norm)
        for group in self.inner.param_groups:
            group["lr"] = self.lr
        self.inner.step()
        if self.average is not None:
            self.average.update_parameters(self.model)

    @property
    def evaluated(self) -> nn.Module:
        """The weights to evaluate: the average where there is one."""
        return self.model if self.average is None else self.average.module


def build_optimizer(model: nn.Module, settings: Mapping[str, Any], theta: float) -> HybridGradient:
    """Any torch optimiser by its class name in any case, with its options, as a hybrid gradient."""
    known = {
        name.lower(): kind
        for name, kind in vars(torch.optim).items()
        if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    }
    options = {key: value for key, value in settings.items() if key not in ("name", "theta")}
    name = str(settings.get("name", "sgd")).lower()
    if name not in known:
        raise UnknownNameError("optimizer", settings["name"], sorted(known))
    allowed = [key for key in inspect.signature(known[name]).parameters if key != "params"]
    for key in options.keys() - set(allowed):
        raise InputError(f"optimizer {name!r} has no option {key!r}: it has {', '.join(allowed)}")
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    try:
        optimizer = known[name](model.parameters(), **options)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"optimizer {name!r} refuses its options {options}: {error}") from error
    return HybridGradient(optimizer, theta=theta)
