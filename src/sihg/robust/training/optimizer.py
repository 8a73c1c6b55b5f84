"""Optimisers by name, and the one that the trainer hands to a method."""

import inspect
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from sihg.core.hybrid import HybridGradient
from sihg.errors import InputError, NotFiniteError, UnknownNameError
from sihg.robust.training.schedules import Schedule

DIVERGED = "training-diverged"


def diverged(what: str, time: float, lr: float) -> NotFiniteError:
    """Return the error of a training that became NaN or infinite."""
    return NotFiniteError(
        f"{what}, after {time:.2f} epochs, at learning rate {lr:g}: start a new run with a lower lr, or with clip",
        code=DIVERGED,
        lr=lr,
    )


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
            raise diverged("the gradient is not finite", self.time, self.lr)
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
    options = {key: value for key, value in settings.items() if key not in ("name", "theta")}
    name = str(settings.get("name", "sgd")).lower()
    kind, allowed = _known(name), _options(name)
    for key in options.keys() - allowed.keys():
        raise InputError(f"optimizer {name!r} has no option {key!r}: it has {', '.join(allowed)}")
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    for key, value in options.items():
        _check_option(f"optimizer.{key}", value, allowed[key])
    try:
        optimizer = HybridGradient(kind(model.parameters(), **options), theta=theta)
        _try_out(kind, options, next(model.parameters()))
    except InputError:
        raise
    except Exception as error:  # each optimiser has its own way to refuse
        why = str(error).splitlines()[0] if str(error) else repr(error)
        raise InputError(
            f"optimizer {name!r} refuses its options {options} ({why}): change them, or take another optimiser"
        ) from error
    return optimizer


def option_defaults(name: str) -> dict[str, Any]:
    """The options of an optimiser that decide what it computes, and torch's values for them."""
    how = ("maximize", "foreach", "capturable", "differentiable", "fused")  # it is computed, or not for training
    found = {key: list(value) if isinstance(value, tuple) else value for key, value in _options(name).items()}
    numbers = {key: value for key, value in found.items() if key not in how and isinstance(value, int | float | list)}
    return {key: value for key, value in numbers.items() if not isinstance(value, list) or None not in value}


def _known(name: str) -> type[torch.optim.Optimizer]:
    known = {
        name.lower(): kind
        for name, kind in vars(torch.optim).items()
        if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    }
    if name.lower() not in known:
        raise UnknownNameError("optimizer", name, sorted(known))
    return known[name.lower()]


def _options(name: str) -> dict[str, Any]:
    """Every option of an optimiser and its default."""
    return {key: p.default for key, p in inspect.signature(_known(name)).parameters.items() if key != "params"}


def _check_option(name: str, value: Any, default: Any) -> None:
    """Refuse what torch would take in silence: a text as true, a number that is none."""
    if isinstance(default, bool) and not isinstance(value, bool):
        raise InputError(f"{name} must be true or false, got {value!r}: leave it out for {str(default).lower()}")
    if isinstance(default, tuple) and (not isinstance(value, tuple) or len(value) != len(default)):
        raise InputError(f"{name} must be {len(default)} numbers such as {list(default)}, got {value!r}")
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, float) and not math.isfinite(number):
            raise InputError(f"{name} must be finite, got {value}: leave it out for {default}")


def _try_out(kind: type[torch.optim.Optimizer], options: Mapping[str, Any], like: Tensor) -> None:
    """Take one step on a parameter that nobody needs: some optimisers look at their options, or at what they are given,
    only then."""
    p = nn.Parameter(torch.zeros(2, 2, dtype=like.dtype, device=like.device))
    p.grad = torch.zeros_like(p)
    kind([p], **options).step()
