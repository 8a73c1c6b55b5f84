"""Backward pass differentiable approximation (BPDA): another gradient for layers whose own gradient lies.

The forward pass stays that of the layer; the backward pass is that of a stand-in g at the layer's input (Athalye,
Carlini and Wagner, 2018): y = f(x), dL/dx = (dg/dx)^T dL/dy. With g(x) = x it is the straight-through estimator.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, Union

import torch
from torch import Tensor, nn

from sihg.errors import InputError
from sihg.robust.attacks.registry import sha256_of_source
from sihg.robust.gradients import evaluation_mode
from sihg.robust.precision import is_compiled
from sihg.store.checkpoint import sha256_of_tensors
from sihg.user_code import call_user_code, load_callable

IDENTITY = "identity"
MAX_NAMED = 12  # modules that an error lists
Key: TypeAlias = str | type[nn.Module] | nn.Module
Replacement: TypeAlias = Union[str, Callable[..., Tensor], "StandIn"]  # a module is such a function too
Bpda: TypeAlias = Mapping[Any, Replacement]  # of keys that are a Key each


@dataclass(frozen=True, eq=False)
class StandIn:
    """A differentiable function in place of a layer, for the backward pass."""

    name: str  # as records have it
    function: Callable[..., object]
    known_by: str  # what tells it from others; empty for a function that may change unnoticed


@contextmanager
def replace_gradients(model: nn.Module, bpda: Bpda) -> Iterator[dict[str, int]]:
    """Give modules, within the block, the gradient of a stand-in; what they compute stays the same.

    It works with every attack, also of other libraries. The layer itself gets no graph, so it may leave torch.

    Args:
        model: The model; it is as before after the block.
        bpda: For each module a replacement. A module is a name in `model.named_modules()`, a class (all its instances)
            or the module itself. A replacement is "identity", which passes the gradient on as it is; a function or
            module g, which is differentiated at the layer's input; or its name, "path.py:g" or "package.module:g".
    Yields:
        How often each module was called, by its name.
    Raises:
        InputError: If there is no such module or replacement, or a pass finds that they do not fit.
    Example:
        >>> class Round(nn.Module):
        ...     def forward(self, x):
        ...         return x.round()
        >>> x = torch.tensor([[0.7]], requires_grad=True)
        >>> with replace_gradients(model := nn.Sequential(Round()), {Round: "identity"}):
        ...     model(x).tolist(), torch.autograd.grad(model(x).sum(), x)[0].tolist()
        ([[1.0]], [[1.0]])
    """
    stand_ins, modules = find_stand_ins(model, bpda), dict(model.named_modules())
    calls = dict.fromkeys(stand_ins, 0)
    own = {name: vars(modules[name]).get("forward") for name in stand_ins}
    try:
        for name, stand_in in stand_ins.items():
            module = modules[name]
            module.__dict__["forward"] = partial(_forward, module.forward, stand_in.function, name, calls)
        yield calls
    finally:
        for name, forward in own.items():
            if forward is None:
                modules[name].__dict__.pop("forward", None)
            else:
                modules[name].__dict__["forward"] = forward


def find_stand_ins(model: nn.Module, bpda: Bpda | None) -> dict[str, StandIn]:
    """Return the stand-in of each module by its name; raise InputError for what cannot be replaced."""
    bpda = {} if bpda is None else bpda
    if not isinstance(bpda, Mapping):
        raise InputError("bpda-type", type=type(bpda).__name__)
    found: dict[str, StandIn] = {}
    for key, replacement in bpda.items():
        stand_in = _find_stand_in(replacement)
        for name in _find_modules(model, key):
            if name in found:
                raise InputError("bpda-twice", module=name)
            found[name] = stand_in
    if found and any(is_compiled(m) or isinstance(m, torch.jit.ScriptModule) for m in model.modules()):
        raise InputError("bpda-compiled", model=type(model).__name__)
    return found


def check_stand_ins(model: nn.Module, bpda: Bpda, x: Tensor) -> None:
    """Raise InputError unless a pass over x calls each replaced module, and each stand-in fits."""
    if not bpda:
        return
    with replace_gradients(model, bpda) as calls, evaluation_mode(model), torch.enable_grad():
        model(x.detach().requires_grad_())
    for name in (name for name, count in calls.items() if not count):
        raise InputError("bpda-not-called", module=name)


def describe_stand_ins(stand_ins: Mapping[str, StandIn]) -> dict[str, str]:
    """Return what tells stand-ins from others; raise InputError for a function that may change unnoticed."""
    for stand_in in stand_ins.values():
        if not stand_in.known_by:
            raise InputError("resume-function", name=stand_in.name)
    return {name: f"{stand_in.name} {stand_in.known_by}" for name, stand_in in stand_ins.items()}


def _find_modules(model: nn.Module, key: Key) -> list[str]:
    modules = dict(model.named_modules())
    if isinstance(key, str):
        ends = [name for name in modules if name.endswith(f".{key}")]  # in a model that an evaluation has wrapped
        names = [key] if key in modules else ends if len(ends) == 1 else []
    elif isinstance(key, type):
        names = [name for name, module in modules.items() if isinstance(module, key)]
    else:
        names = [name for name, module in modules.items() if module is key]
    if not names:
        known = [f"{name} ({type(module).__name__})" for name, module in modules.items() if name]
        more = f" and {len(known) - MAX_NAMED} more" if len(known) > MAX_NAMED else ""
        module = key if isinstance(key, str) else getattr(key, "__name__", f"this {type(key).__name__}")
        choices = ", ".join(known[:MAX_NAMED]) + more if known else "none, it is one module"
        raise InputError("bpda-module", module=module, choices=choices)
    return names


def _find_stand_in(replacement: Replacement) -> StandIn:
    if isinstance(replacement, StandIn):
        return replacement
    if isinstance(replacement, str) and ":" in replacement:
        function = load_callable("replacement", replacement)
        call = partial(call_user_code, "replacement", replacement, function)
        return StandIn(replacement, call, sha256_of_source(function))
    if replacement == IDENTITY:
        return StandIn(IDENTITY, _pass_on, IDENTITY)
    if isinstance(replacement, nn.Module):
        source = sha256_of_source(type(replacement))
        known_by = f"{replacement!r} {sha256_of_tensors(replacement.state_dict())} {source}" if source else ""
        return StandIn(type(replacement).__name__, replacement, known_by)
    if isinstance(replacement, str) or not callable(replacement):
        given = replacement if isinstance(replacement, str) else f"a {type(replacement).__name__}"
        raise InputError("bpda-replacement", replacement=given)
    return StandIn(getattr(replacement, "__name__", type(replacement).__name__), replacement, "")


def _pass_on(x: object, *_args: object, **_named: object) -> object:
    return x


def _forward(
    layer: Callable[..., Any],
    stand_in: Callable[..., Any],
    name: str,
    calls: dict[str, int],
    /,
    *args: Any,
    **named: Any,
) -> Any:
    """Compute the layer without a graph, and attach the backward pass of the stand-in at the same input."""
    calls[name] += 1
    inputs = [value for value in (*args, *named.values()) if isinstance(value, Tensor)]
    if not torch.is_grad_enabled() or not any(value.requires_grad for value in inputs):
        return layer(*args, **named)
    versions = [value._version for value in inputs]
    with torch.no_grad():
        value = layer(*map(_detach, args), **{key: _detach(given) for key, given in named.items()})
    if versions != [given._version for given in inputs]:
        raise InputError("bpda-in-place", module=name)
    instead = stand_in(*args, **named)
    for out in (value, instead):
        if not isinstance(out, Tensor) or not out.is_floating_point():
            raise InputError("bpda-output", module=name, type=getattr(out, "dtype", type(out).__name__))
    if value.shape != instead.shape:
        raise InputError("bpda-shape", module=name, found=tuple(instead.shape), shape=tuple(value.shape))
    if not instead.requires_grad:
        raise InputError("bpda-no-gradient", module=name)
    return _Substitute.apply(value, instead.to(value.dtype))  # type: ignore[no-untyped-call]


def _detach(value: object) -> object:
    return value.detach() if isinstance(value, Tensor) else value


class _Substitute(torch.autograd.Function):
    """The value of one tensor with the gradient of another."""

    generate_vmap_rule = True  # for models that use torch.func

    @staticmethod
    def forward(value: Tensor, instead: Tensor) -> Tensor:  # noqa: ARG004
        return value.view_as(value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ARG004
        return None, grads[0]
