"""Compute the hybrid gradient (1 + theta) g - theta q, and let any torch optimiser step along it."""

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, overload

import torch
from torch import Tensor

from sihg.errors import InputError


def hybrid(g: Tensor, q: Tensor, theta: float) -> Tensor:
    """Return (1 + theta) g - theta q (Alg. 1, line 4; Alg. 3, line 7).

    Args:
        g: The gradient.
        q: The previous gradient, of the same shape.
        theta: The extrapolation; 0 returns g.
    Returns:
        A new tensor.
    Example:
        >>> hybrid(torch.tensor([1.0]), torch.tensor([3.0]), 0.5)
        tensor([0.])
    """
    return torch.mul(q, -theta).add_(g, alpha=1 + theta)


class HybridGradient(torch.optim.Optimizer):
    r"""Let any torch optimiser step along the hybrid gradient instead of the gradient.

    $$w_{k+1} = \operatorname{optimizer}[(1 + \theta) g_k - \theta g_{k-1}], \qquad g_{-1} = g_0$$

    It is an optimiser too: its groups, state and hooks are those of `optimizer`, kept as `inner`. Hooks receive
    `inner` and see the hybrid gradient. Weight decay is not extrapolated.

    `p.grad` holds the hybrid gradient only while `inner` steps; afterwards it is g_k again. Clip and average g_k
    before `step()`. The cost is one buffer of the size of the parameters.

    Args:
        optimizer: The torch optimiser to wrap. It must step without a closure.
        theta: The extrapolation, finite and >= 0. The paper uses 1; 0 switches it off.
        start_at_zero: Take g_{-1} = 0 instead of g_0. Then theta = momentum turns SGD into SGD(nesterov=True).
    Raises:
        InputError: If `theta` is out of range, or `optimizer` cannot be wrapped.
    Example:
        >>> net = torch.nn.Linear(3, 1)
        >>> optimizer = HybridGradient(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
        >>> net(torch.ones(2, 3)).sum().backward()
        >>> optimizer.step()

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
        """Extrapolate the gradients, then step `inner` with them. A closure is evaluated once, before that."""
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
        """Set p.grad to the hybrid gradient, computed in the buffer of g_{k-1}; afterwards store g_k in that buffer."""
        grads = {p: _checked_gradient(p.grad, i) for i, p in enumerate(self._parameters()) if p.grad is not None}
        for p in grads.keys() - self.previous.keys() if self.start_at_zero else ():
            self.previous[p] = torch.zeros_like(p)
        again = [p for p in grads if p in self.previous]
        raw, buffers = [grads[p].detach() for p in again], [self.previous[p] for p in again]
        first = {p: g.detach().clone() for p, g in grads.items() if p not in self.previous}
        self.previous |= first  # the parameters in `first` see g itself
        _mix_(buffers, raw, -self.theta, 1 + self.theta)
        for p, buffer in zip(again, buffers, strict=True):
            p.grad = buffer
        try:
            yield
        finally:
            for p in again:
                p.grad = grads[p]
            _copy_(buffers, raw)

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of `inner`, theta, and copies of the previous gradients by position of their parameter."""
        previous = {i: self.previous[p].clone() for i, p in enumerate(self._parameters()) if p in self.previous}
        ours = {"theta": self.theta, "start_at_zero": self.start_at_zero, "previous_gradients": previous}
        return {**self.inner.state_dict(), **ours}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned. A state that does not fit changes nothing."""
        rest = dict(state_dict)
        try:
            theta, start_at_zero, saved = (rest.pop(key) for key in ("theta", "start_at_zero", "previous_gradients"))
        except KeyError as key:
            raise InputError("hybrid-state-keys", key=key.args[0], names=", ".join(map(repr, state_dict))) from None
        parameters = self._parameters()
        for i, g in saved.items():
            if i >= len(parameters) or g.shape != parameters[i].shape:
                shapes = [tuple(p.shape) for p in parameters[i : i + 1]] or "no such parameter"
                raise InputError("hybrid-state-shape", parameter=i, shape=tuple(g.shape), shapes=shapes)
        theta = _checked_theta(theta)
        self.inner.load_state_dict(rest)
        for p, state in self.inner.state.items():
            state |= {key: _laid_out(value, p) for key, value in state.items() if isinstance(value, Tensor)}
        self.theta, self.start_at_zero = theta, start_at_zero
        self.previous = {parameters[i]: torch.empty_like(parameters[i]).copy_(g) for i, g in saved.items()}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients; keep the previous gradients."""
        self.inner.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, object]) -> None:
        """Add parameters, which have no previous gradient yet."""
        self.inner.add_param_group(param_group)

    def __getattr__(self, name: str) -> Any:
        if name == "inner" or name.startswith("__"):  # half unpickled, or a protocol that must not be forwarded
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: object) -> None:  # `optimizer.state = ...` must reach `inner` too
        if name in ("defaults", "param_groups", "state"):
            setattr(self.inner, name, value)
        else:
            super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, object]:  # like torch, without the `step` that a scheduler has patched
        return {name: self.__dict__[name] for name in ("inner", "theta", "start_at_zero", "previous")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)

    def __repr__(self) -> str:
        return f"HybridGradient({self.inner!r}, theta={self.theta}, start_at_zero={self.start_at_zero})"


def _mix_(buffers: list[Tensor], grads: list[Tensor], a: float, b: float) -> None:
    """Set each buffer to a buffer + b grad, in place."""
    if _are_plain(buffers):
        torch._foreach_mul_(buffers, a)
        torch._foreach_add_(buffers, grads, alpha=b)
    else:
        for buffer, grad in zip(buffers, grads, strict=True):
            buffer.mul_(a).add_(grad, alpha=b)


def _copy_(buffers: list[Tensor], grads: list[Tensor]) -> None:
    if _are_plain(buffers):
        torch._foreach_copy_(buffers, grads)
    else:
        for buffer, grad in zip(buffers, grads, strict=True):
            buffer.copy_(grad)


def _are_plain(tensors: list[Tensor]) -> bool:
    """Return whether functions for lists take these tensors: at least one, and none sharded (FSDP2's DTensor)."""
    return bool(tensors) and all(type(tensor) is Tensor for tensor in tensors)


def _laid_out(value: Tensor, p: Tensor) -> Tensor:
    """Copy `value` to the memory order of its parameter (such as channels last), which fused optimisers expect."""
    if value.shape != p.shape or value.stride() == p.stride():
        return value
    return torch.empty_like(p, dtype=value.dtype, device=value.device).copy_(value)


def _checked_theta(theta: float) -> float:
    if not (math.isfinite(theta) and theta >= 0):
        raise InputError("hybrid-theta-range", theta=theta)
    return float(theta)


def _checked_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    kind = type(optimizer)
    if not issubclass(kind, torch.optim.Optimizer):
        raise InputError("optimizer-type", type=kind.__name__)
    if issubclass(kind, HybridGradient):
        raise InputError("optimizer-wrapped-twice")
    _self, *arguments = inspect.signature(kind.step).parameters.values()
    if any(a.default is a.empty and a.kind not in (a.VAR_POSITIONAL, a.VAR_KEYWORD) for a in arguments):
        raise InputError("optimizer-needs-closure", type=kind.__name__)
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise InputError("optimizer-differentiable")
    return optimizer


def _checked_gradient(g: Tensor, i: int) -> Tensor:
    if g.layout is not torch.strided:
        raise InputError("sparse-gradient", parameter=i, shape=tuple(g.shape), layout=g.layout)
    return g
