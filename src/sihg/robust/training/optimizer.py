"""Torch optimisers by name, and the optimiser that the trainer hands to a method, with its schedule and its state."""

import inspect
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from sihg.core.hybrid import HybridGradient
from sihg.errors import InputError, NotFiniteError, UnknownNameError
from sihg.parse import Value
from sihg.robust.methods.settings import unknown_option
from sihg.robust.training.lanes import LaneSum
from sihg.robust.training.schedules import Schedule, build_schedule
from sihg.robust.waits import late, look_at, read_collected
from sihg.store.files import Json

if TYPE_CHECKING:
    from sihg.robust.training.config import Choice

State: TypeAlias = "bool | int | float | str | Tensor | list[State] | tuple[State, ...] | Mapping[Any, State] | None"


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
        self.average = _Average(model, ema) if ema else None
        self.model, self.time = model, 0.0  # of the next batch, in epochs
        self.lanes: LaneSum | None = None

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return self.schedule(self.time)

    def zero_grad(self) -> None:
        """Reset the gradients."""
        self.inner.zero_grad()

    def step(self) -> None:
        """Take a step; with several lanes only keep the gradients, which `apply` uses once all lanes are done."""
        if self.lanes is None:
            self.apply()
        else:
            self.lanes.add()

    def apply(self) -> None:
        """Take a step along the gradients, those of all lanes if there are several."""
        if self.lanes is not None:
            self.lanes.set_gradients()
        norm = self._checked_norm()
        if self.lanes is not None and not self.lanes.confirm_gradients():
            norm = self._checked_norm()
        if self.clip is not None:
            nn.utils.clip_grads_with_norm_(self.parameters, self.clip, norm)
        for group in self.inner.param_groups:
            group["lr"] = self.lr
        self.inner.step()
        if self.average is not None:
            self.average.update_parameters(self.model)

    def _checked_norm(self) -> Tensor:
        """Return the norm of the gradient; raise NotFiniteError if it, or a loss, is not finite."""
        norm = nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        is_finite = late(bool, torch.isfinite(norm))
        read_collected()  # the losses, and what else the weights must not see
        if not look_at(is_finite):
            raise diverged("the gradient is not finite", self.time, self.lr)
        return norm

    @property
    def evaluated(self) -> nn.Module:
        """The model to evaluate: the averaged one if there is an average."""
        return self.model if self.average is None else self.average.module

    def state(self) -> tuple[Json, dict[str, Mapping[str, Tensor]]]:
        """Return what a checkpoint keeps, besides the weights: JSON, and tensors by file and name."""
        tree, tensors = flatten_state(self.inner.state_dict())
        average = {} if self.average is None else {"average": self.average.state_dict()}
        return tree, {"optimizer": tensors, **average}

    def load_state(self, tree: Json, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Continue from what `state` returned."""
        self.inner.load_state_dict(unflatten_state(tree, tensors["optimizer"]))
        if self.average is not None:
            self.average.load_state_dict(tensors["average"])


class _Average(AveragedModel):
    """An exponential moving average of the weights, with the buffers of the model."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
        self._decay = decay

    def update_parameters(self, model: nn.Module) -> None:
        """Average the weights; torch would copy the number of averages to the device, which is waited for."""
        own: list[Tensor] = list(self.module.parameters())
        if not int(self.n_averaged) or all(p.device.type == "cpu" for p in own):
            super().update_parameters(model)
            return
        with torch.no_grad():
            torch._foreach_lerp_(own, list[Tensor](model.parameters()), 1 - self._decay)
            for kept, now in zip(self.module.buffers(), model.buffers(), strict=True):
                kept.copy_(now)
        self.n_averaged += 1


def build_training_optimizer(
    model: nn.Module,
    optimizer: "Choice",
    schedule: "Choice",
    *,
    theta: float,
    epochs: int,
    clip: float | None,
    ema: float,
) -> TrainingOptimizer:
    """Build the optimiser of a run and its schedule, whose highest learning rate is that of the optimiser."""
    inner = build_optimizer(model, optimizer.name, optimizer.options, theta)
    options: dict[str, Any] = dict(schedule.options)
    rates = build_schedule(schedule.name, float(inner.param_groups[0]["lr"]), epochs, **options)
    return TrainingOptimizer(model, inner, rates, clip=clip, ema=ema)


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
        why = str(error).split("\n")[0] if str(error) else repr(error)
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


# ---- nested states


def flatten_state(tree: State) -> tuple[Json, dict[str, Tensor]]:
    """Return a nested state as JSON in which names stand for tensors, and the tensors by name.

    >>> flatten_state({"lr": 0.1, "betas": (0.9, 0.99)})
    ({'kind': 'dict', 'value': [['lr', 0.1], ['betas', {'kind': 'tuple', 'value': [0.9, 0.99]}]]}, {})
    """
    tensors: dict[str, Tensor] = {}
    return _flatten(tree, "", tensors), tensors


def unflatten_state(tree: Json, tensors: Mapping[str, Tensor]) -> Any:
    """Return the state that `flatten_state` was given, with the tensors themselves.

    >>> unflatten_state(*flatten_state({0: (1, [None])}))
    {0: (1, [None])}
    """
    if isinstance(tree, list):
        return [unflatten_state(item, tensors) for item in tree]
    if not isinstance(tree, dict):
        return tree
    value: Any = tree["value"]
    if tree["kind"] == "tensor":
        return tensors[value]
    if tree["kind"] == "tuple":
        return tuple(unflatten_state(item, tensors) for item in value)
    return {key: unflatten_state(item, tensors) for key, item in value}


def _flatten(tree: State, path: str, tensors: dict[str, Tensor]) -> Json:
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    if isinstance(tree, Mapping):
        if bad := [key for key in tree if not isinstance(key, str | int | float)]:
            raise InputError("state-key", path=path, place=path or "the state", bad=bad[0])
        pairs: list[Json] = [[key, _flatten(item, f"{path}/{key}", tensors)] for key, item in tree.items()]
        return {"kind": "dict", "value": pairs}
    if isinstance(tree, list | tuple):
        items = [_flatten(item, f"{path}/{i}", tensors) for i, item in enumerate(tree)]
        return items if isinstance(tree, list) else {"kind": "tuple", "value": items}
    if isinstance(tree, Tensor):
        name = path if path not in tensors else f"{path}#{len(tensors)}"  # as for {"a": {"b": t}, "a/b": t}
        tensors[name] = tree
        return {"kind": "tensor", "value": name}
    raise InputError("state-type", path=path, place=path or "the state", type=type(tree).__name__)
