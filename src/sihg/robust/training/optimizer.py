"""Torch optimisers by name, and the optimiser that the trainer hands to a method."""

import inspect
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from sihg.core.hybrid import HybridGradient
from sihg.errors import InputError, NotFiniteError, UnknownNameError
from sihg.parse import Value
from sihg.robust.methods.settings import unknown_option
from sihg.robust.training.schedules import Schedule


def diverged(what: str, time: float, lr: float) -> NotFiniteError:
    """Return the error of a training that became NaN or infinite."""
    return NotFiniteError("training-diverged", epochs=time, lr=lr, what=what)


class TrainingOptimizer:
    """An optimiser whose `step` checks and clips the gradients, extrapolates, steps at the scheduled rate, averages."""

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
        """The learning rate of the next step."""
        return self.schedule(self.time)

    def at(self, time: float, parts: int = 1) -> None:
        """Set the time of the next batch, in epochs, and the number of parts it comes in."""
        self.time, self.parts, self._part = time, parts, 0

    def zero_grad(self) -> None:
        """Reset the gradients, unless further parts of the batch are to be added."""
        if self._part == 0:
            self.inner.zero_grad()

    def step(self) -> None:
        """Take a step, once all parts of the batch have added their gradients."""
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
        """The model to evaluate: the averaged one if there is an average."""
        return self.model if self.average is None else self.average.module


def build_optimizer(model: nn.Module, name: str, options: Mapping[str, Value], theta: float) -> HybridGradient:
    """Build any torch optimiser by its class name in any case, wrapped in a hybrid gradient with this theta.

    An unknown optimiser or option, or a value that the optimiser rejects, raises InputError.
    """
    name = name.lower()
    kind, allowed = _find_optimizer(name), _defaults(name)
    given: dict[str, Any] = {
        key: tuple(v) if isinstance(v, list) else v for key, v in options.items() if key != "theta"
    }
    for key in given.keys() - allowed.keys():
        raise unknown_option(f"optimizer {name!r}", key, allowed)
    for key, value in given.items():
        _check_option(key, value, allowed[key])
    try:
        optimizer = HybridGradient(kind(model.parameters(), **given), theta=theta)
        _try_step(kind, given, next(model.parameters()))
    except InputError:
        raise
    except Exception as error:  # each optimiser has its own exceptions
        why = str(error).splitlines()[0] if str(error) else repr(error)
        raise InputError("optimizer-rejects", name=name, given=given, why=why) from error
    return optimizer


def option_defaults(name: str) -> dict[str, Value]:
    """Return torch's defaults for those options of an optimiser that decide what it computes."""
    other = ("maximize", "foreach", "capturable", "differentiable", "fused")  # speed only, or not for training
    found = {key: list(value) if isinstance(value, tuple) else value for key, value in _defaults(name).items()}
    numbers = {key: value for key, value in found.items() if key not in other and isinstance(value, int | float | list)}
    return {key: value for key, value in numbers.items() if not isinstance(value, list) or None not in value}


def _find_optimizer(name: str) -> type[torch.optim.Optimizer]:
    known = {
        name.lower(): kind
        for name, kind in vars(torch.optim).items()
        if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    }
    if name.lower() not in known:
        raise UnknownNameError("optimizer", name, sorted(known))
    return known[name.lower()]


def _defaults(name: str) -> dict[str, Any]:
    signature = inspect.signature(_find_optimizer(name))
    return {key: parameter.default for key, parameter in signature.parameters.items() if key != "params"}


def _check_option(key: str, value: object, default: object) -> None:
    """Raise InputError for values that torch would accept silently: text as true, NaN or infinite numbers."""
    wrong = ""
    if isinstance(default, bool) and not isinstance(value, bool):
        wrong = "true or false"
    elif isinstance(default, tuple) and (not isinstance(value, tuple) or len(value) != len(default)):
        wrong = f"{len(default)} numbers such as {list(default)}"
    elif any(isinstance(v, float) and not math.isfinite(v) for v in (value if isinstance(value, tuple) else (value,))):
        wrong = "finite"
    if wrong:
        raise InputError("optimizer-option-value", key=key, wrong=wrong, value=value, default=default)


def _try_step(kind: type[torch.optim.Optimizer], options: Mapping[str, Any], like: Tensor) -> None:
    """Take a step on a parameter made for it, since some optimisers check their options or gradients only then."""
    p = nn.Parameter(torch.zeros(2, 2, dtype=like.dtype, device=like.device))
    p.grad = torch.zeros_like(p)
    kind([p], **options).step()
