"""The hybrid gradient (1 + theta) g - theta q, and a wrapper that gives it to any torch optimiser."""

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, overload

import torch
from torch import Tensor

from sihg.errors import InputError


def hybrid(g: Tensor, q: Tensor, theta: float) -> Tensor:
    """Extrapolate the gradient `g` away from the previous gradient `q` (Alg. 1, line 4; Alg. 3, line 7)."""
    return torch.mul(q, -theta).add_(g, alpha=1 + theta)


class HybridGradient(torch.optim.Optimizer):
    r"""Let any torch optimiser step along the hybrid gradient instead of the gradient.

    .. math:: w_{k+1} = \mathtt{optimizer}[(1 + \theta) g_k - \theta g_{k-1}], \qquad g_{-1} = g_0

    >>> net = torch.nn.Linear(3, 1)
    >>> optimizer = HybridGradient(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    >>> net(torch.ones(2, 3)).sum().backward()
    >>> optimizer.step()

    It is an optimiser itself: groups, state and hooks are those of `optimizer`, kept as `inner`. Hooks are handed
    `inner` and see the hybrid gradient. Weight decay is not extrapolated. With `start_at_zero` the first previous
    gradient is 0 instead of g_0; then theta = momentum turns SGD into SGD(nesterov=True).

    `p.grad` holds the hybrid gradient only while `inner` steps; afterwards it is g_k again. Clip and average g_k before
    `step()`. The cost is one buffer of the size of the parameters.

    Reference: Kim & Seo, "Semi-Implicit Hybrid Gradient Methods with Application to Adversarial Robustness",
    AISTATS 2022, Algorithm 4.
    """

    _step_supports_amp_scaling = False  # GradScaler unscales g_k and skips overflows itself, even for a fused `inner`

    def __init__(self, optimizer: torch.optim.Optimizer, theta: float = 1.0, *, start_at_zero: bool = False) -> None:
        self.inner = _checked_optimizer(optimizer)  # no super().__init__(): one list of groups, that of `inner`
        self.theta = _checked_theta(theta)
        self.start_at_zero = start_at_zero
        self.previous: dict[Tensor, Tensor] = {}

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Extrapolate the gradients, then step with them; a closure is evaluated once, before that."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.theta == 0:
            self.previous.clear()
            self.inner.step()
        else:
            with self._extrapolated():
                self.inner.step()
        return loss

    @contextmanager
    def _extrapolated(self) -> Iterator[None]:
        """Lend p.grad the hybrid gradient, made in the buffer of the previous one; then keep the gradient there."""
        grads = {p: _checked_gradient(p.grad, i) for i, p in enumerate(self._parameters()) if p.grad is not None}
        for p in grads.keys() - self.previous.keys() if self.start_at_zero else ():
            self.previous[p] = torch.zeros_like(p)
        again = [p for p in grads if p in self.previous]
        raw, buffers = [grads[p].detach() for p in again], [self.previous[p] for p in again]
        first = {p: g.detach().clone() for p, g in grads.items() if p not in self.previous}
        self.previous |= first  # the parameters in `first` see g itself
        if again:
            torch._foreach_mul_(buffers, -self.theta)
            torch._foreach_add_(buffers, raw, alpha=1 + self.theta)
        for p, buffer in zip(again, buffers, strict=True):
            p.grad = buffer
        try:
            yield
        finally:
            for p in again:
                p.grad = grads[p]
            if again:
                torch._foreach_copy_(buffers, raw)

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def state_dict(self) -> dict[str, Any]:
        """Give the state of `inner` and ours, with copies of the previous gradients by the parameter's position."""
        previous = {i: self.previous[p].clone() for i, p in enumerate(self._parameters()) if p in self.previous}
        ours = {"theta": self.theta, "start_at_zero": self.start_at_zero, "previous_gradients": previous}
        return {**self.inner.state_dict(), **ours}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` gave; one that does not fit changes nothing."""
        rest = dict(state_dict)
        try:
            theta, start_at_zero, saved = (rest.pop(key) for key in ("theta", "start_at_zero", "previous_gradients"))
        except KeyError as key:
            raise InputError(
                f"the state has no {key}, only {', '.join(map(repr, state_dict))}, so HybridGradient did not save it: "
                "to start from the state of a plain optimiser, load it into `.inner`"
            ) from None
        parameters = self._parameters()
        for i, g in saved.items():
            if i >= len(parameters) or g.shape != parameters[i].shape:
                shapes = [tuple(p.shape) for p in parameters[i : i + 1]] or "no such parameter"
                raise InputError(
                    f"the saved previous gradient of parameter {i} has shape {tuple(g.shape)}, here is {shapes}: "
                    "load the state into an optimiser with the same groups of the same model"
                )
        theta = _checked_theta(theta)
        self.inner.load_state_dict(rest)
        for p, state in self.inner.state.items():
            state |= {key: _laid_out(value, p) for key, value in state.items() if isinstance(value, Tensor)}
        self.theta, self.start_at_zero = theta, start_at_zero
        self.previous = {parameters[i]: torch.empty_like(parameters[i]).copy_(g) for i, g in saved.items()}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients, not the previous ones."""
        self.inner.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters; they have no previous gradient yet."""
        self.inner.add_param_group(param_group)

    def __getattr__(self, name: str) -> Any:
        if name == "inner" or name.startswith("__"):  # half unpickled, or a protocol that is not ours to forward
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:  # `optimizer.state = ...` must reach `inner` too
        if name in ("defaults", "param_groups", "state"):
            setattr(self.inner, name, value)
        else:
            super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:  # like torch, without the `step` that a scheduler has patched
        return {name: self.__dict__[name] for name in ("inner", "theta", "start_at_zero", "previous")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __repr__(self) -> str:
        return f"HybridGradient({self.inner!r}, theta={self.theta}, start_at_zero={self.start_at_zero})"


def _laid_out(value: Tensor, p: Tensor) -> Tensor:
    """`value` in the memory order of its parameter (channels last, say), which fused optimisers take for granted."""
    if value.shape != p.shape or value.stride() == p.stride():
        return value
    return torch.empty_like(p, dtype=value.dtype, device=value.device).copy_(value)


def _checked_theta(theta: float) -> float:
    if not (math.isfinite(theta) and theta >= 0):
        raise InputError(f"theta must be finite and >= 0, got {theta}: 1 is the paper's choice, 0 switches it off")
    return float(theta)


def _checked_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    kind = type(optimizer)
    if not issubclass(kind, torch.optim.Optimizer):
        raise InputError(
            f"optimizer must be a torch optimiser, got {kind.__name__}: try torch.optim.SGD(parameters, lr)"
        )
    if issubclass(kind, HybridGradient):
        raise InputError("optimizer must be a plain one, got a HybridGradient: wrap its `.inner`, with one theta")
    _self, *arguments = inspect.signature(kind.step).parameters.values()
    if any(a.default is a.empty and a.kind not in (a.VAR_POSITIONAL, a.VAR_KEYWORD) for a in arguments):
        raise InputError(
            f"optimizer must step without a closure, got {kind.__name__}, which needs one to try several points, "
            "where there is no previous gradient: use a first-order optimiser such as torch.optim.SGD"
        )
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise InputError("optimizer must have differentiable=False, got True: hybrid gradients carry no graph")
    return optimizer


def _checked_gradient(g: Tensor, i: int) -> Tensor:
    if g.layout is not torch.strided:
        raise InputError(
            f"the gradient of parameter {i}, of shape {tuple(g.shape)}, is sparse ({g.layout}) but must be dense: "
            "use sparse=False in the embedding, or theta=0"
        )
    return g
