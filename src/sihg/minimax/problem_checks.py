"""What a problem is asked before it is solved, so that a mistake is named where it was made."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sihg.errors import InputError
from sihg.minimax.layout import Blocks, Weights, flat

if TYPE_CHECKING:
    from sihg.minimax.problem import Problem


def check_start(problem: "Problem") -> None:
    """Refuse a start from which nothing can come, with the reason."""
    w0, delta0 = problem.w0, problem.delta0
    if (w0.dtype, w0.device) != (delta0.dtype, delta0.device):
        raise InputError(
            f"w0 is {w0.dtype} on {w0.device}, delta0 {delta0.dtype} on {delta0.device}: "
            "give both the same dtype and device"
        )
    for name, start in (("w0", w0), ("delta0", delta0)):
        if not start.isfinite().all():
            raise InputError(f"{name} has {int((~start.isfinite()).sum())} values that are not finite: start elsewhere")
    try:
        phi = problem.phi(w0, delta0, problem.all).detach()
    except InputError:
        raise
    except Exception as error:
        shapes = f"w {_shapes(problem.w_form(w0))} and delta {_shapes(problem.delta_form(delta0))}"
        raise InputError(f"coupling fails at (w0, delta0) with {shapes}: {error!r}: make it fit them") from error
    if not phi.isfinite().all():
        i = int((~phi.isfinite()).nonzero()[0])
        raise InputError(f"coupling gives {float(phi[i])} for block {i} at (w0, delta0): start where phi is finite")
    problem.check_gradients()
    last = problem.n - 1
    alone = problem.phi(w0, problem.delta_layout.block(delta0, last), problem.only(last)).detach()
    slack = torch.finfo(phi.dtype).eps ** 0.5 * (1 + float(phi.abs().max()))
    if abs(float(alone) - float(phi[last])) > slack:
        raise InputError(
            f"coupling gives {float(alone):.6g} for block {last} alone but {float(phi[last]):.6g} among all: "
            "row k of delta belongs to block index[k]"
        )
    _check_prox("f", w0.numel(), lambda: problem.prox_f(w0, 1.0))
    _check_prox("g", delta0.numel(), lambda: problem.prox_g(delta0, 1.0, problem.all))
    one = problem.delta_layout.block(delta0, 0)
    _check_prox("g", one.numel(), lambda: problem.prox_g(one, 1.0, problem.only(0)))
    _check_structure(problem)


def _check_prox(name: str, size: int, prox: Callable[[], Tensor]) -> None:
    """Meet f or g once, so that a bound or a centre of the wrong shape is named here."""
    try:
        got = prox().numel()
    except RuntimeError as error:
        raise InputError(
            f"{name} does not fit the shape of its variable ({error}): f acts on w, g on each block alone; "
            "give a list of n functions for blocks with bounds or centres of their own"
        ) from error
    if got != size:
        raise InputError(
            f"{name}'s prox gives {got} numbers for {size}: give its tensors the shape of w, or of one block"
        )


def _check_structure(problem: "Problem") -> None:
    """Refuse gradients that are not finite, and declarations that do not hold near the start."""
    w0, delta0, blocks = problem.w0, problem.delta0, problem.all
    g_w, g_delta = problem.gradients(w0, delta0)
    for name, gradient in (("w", g_w), ("delta", g_delta)):
        if not gradient.isfinite().all():
            raise InputError(f"the gradient of phi in {name} is not finite at (w0, delta0): start elsewhere")
    slack = torch.finfo(w0.dtype).eps ** 0.5
    if problem.linear_in_w:
        moved = problem.gradient_w(w0 + 1 + w0.abs(), delta0, blocks)
        if float((moved - g_w).norm()) > slack * (1 + float(g_w.norm() + moved.norm())):
            raise InputError("linear_in_w is declared, but grad_w phi changes with w: leave it out")
    if problem.closed_form is not None:
        tau = 0.01
        d = flat(problem.closed_form(problem.w_form(w0), problem.delta_form(delta0), tau, blocks.tensor))
        fixed = d.shape == delta0.shape
        if fixed:
            again = problem.prox_g(
                problem.delta0 + tau * problem.gradient_delta(problem.w0, d, problem.all), tau, problem.all
            )
            fixed = float((again - d).norm()) <= slack * (1 + float(d.norm()))
        if not fixed:
            raise InputError("closed_form does not solve the implicit step at the start: leave it out")


def _shapes(values: Weights | Blocks) -> str:
    if isinstance(values, Tensor):
        return str(tuple(values.shape))
    pieces = values.items() if isinstance(values, dict) else enumerate(values)
    return "{" + ", ".join(f"{name}: {tuple(piece.shape)}" for name, piece in pieces) + "}"
