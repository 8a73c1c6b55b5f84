"""What a solver may ask of a problem: gradients, counted; the two proximal steps, checked to be finite."""

from collections.abc import Callable
from math import isfinite

import torch
from torch import Tensor

from sihg.core.implicit import Implicit, implicit_step
from sihg.minimax._layout import Index, flat
from sihg.minimax.problem import Problem


class DivergedError(ArithmeticError):
    """An iterate that is not finite; raised before it is stored, so that the last finite one is kept."""


class Oracle:
    """Counted access to a problem's gradients, and the verbs the solvers are written in."""

    def __init__(self, problem: Problem, curvature: float, w_gradients: int = 0, delta_gradients: int = 0) -> None:
        self.problem = problem
        self.n = problem.n
        self.curvature = curvature  # L22, known or estimated
        self.w_gradients, self.delta_gradients = w_gradients, delta_gradients
        self.implicit_steps, self.implicit_error = 0, 0.0
        self._scratch: Tensor | None = None
        self.unsolved: list[float] = []  # the errors of implicit steps that ran out of iterations

    # Gradients of phi

    def gradient_w(self, w: Tensor, delta: Tensor) -> Tensor:
        """grad_w phi(w, delta): n block gradients."""
        return self.gradient_w_of(w, delta, self.problem.all)

    def gradient_w_of(self, w: Tensor, rows: Tensor, index: Index) -> Tensor:
        """The sum over some blocks of grad_w phi_i."""
        self.w_gradients += index.count
        return self.problem.gradient_w(w, rows, index)

    def gradient_w_of_others(self, w: Tensor, delta: Tensor, i: int) -> Tensor:
        """The sum over all blocks but i."""
        if self._scratch is None:  # kept, since fresh memory of delta's size costs more than copying into it
            self._scratch = torch.empty_like(delta)
        rows = self.problem.delta_layout.others(delta, i, self._scratch)
        return self.gradient_w_of(w, rows, self.problem.but(i))

    def gradient_w_change(self, w: Tensor, i: int, new: Tensor, old: Tensor) -> Tensor:
        """grad_w phi_i(w, new) - grad_w phi_i(w, old)."""
        change, cost = self.problem.gradient_w_change(w, i, new, old)
        self.w_gradients += cost
        return change

    def gradient_delta(self, w: Tensor, delta: Tensor) -> Tensor:
        """grad_delta phi(w, delta): n block gradients."""
        return self.gradient_delta_of(w, delta, self.problem.all)

    def gradient_delta_of(self, w: Tensor, rows: Tensor, index: Index) -> Tensor:
        """grad_delta_i phi_i for some blocks."""
        self.delta_gradients += index.count
        return self.problem.gradient_delta(w, rows, index)

    def gradients(self, w: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """grad_w phi and grad_delta phi at one point."""
        self.w_gradients += self.n
        self.delta_gradients += self.n
        return self.problem.gradients(w, delta)

    # Steps

    def prox_f(self, z: Tensor, sigma: float) -> Tensor:
        """prox_f^sigma(z), finite."""
        return _finite("w", self.problem.prox_f(z, sigma))

    def prox_g(self, delta: Tensor, tau: float) -> Tensor:
        """prox_g^tau of all blocks, finite."""
        return _finite("delta", self.problem.prox_g(delta, tau, self.problem.all))

    def prox_g_block(self, i: int, row: Tensor, tau: float) -> Tensor:
        """prox_{g_i}^tau of one block, finite."""
        return _finite("delta", self.problem.prox_g(row, tau, self.problem.only(i)))

    def implicit(self, w: Tensor, centre: Tensor, tau: float, index: Index) -> Tensor:
        """d = prox_g^tau[centre + tau grad_delta phi(w, d)] for some blocks (Alg. 1, line 6)."""
        before = self.delta_gradients
        if self.problem.closed_form is not None:  # it has to look at phi once, as a gradient does
            self.delta_gradients += index.count
        result = implicit(self.problem, w, centre, tau, index, self.curvature, self.gradient_delta_of)
        self.implicit_steps = (self.delta_gradients - before) // index.count
        self.implicit_error = result.error
        if not result.converged:
            self.unsolved.append(result.error)
        return _finite("delta", result.point)

    # Blocks

    def block(self, delta: Tensor, i: int) -> Tensor:
        """A copy of block i."""
        return self.problem.delta_layout.block(delta, i).clone()

    def replace(self, delta: Tensor, i: int, row: Tensor) -> Tensor:
        """Delta with block i replaced; in place, since copying all n blocks would cost more than the step."""
        if self.n == 1:
            return row
        self.problem.delta_layout.block(delta, i).copy_(row)
        return delta


def implicit(
    problem: Problem,
    w: Tensor,
    centre: Tensor,
    tau: float,
    index: Index,
    curvature: float,
    gradient: Callable[[Tensor, Tensor, Index], Tensor],
) -> Implicit:
    """The implicit step of some blocks: by the problem's closed form, or by iteration."""
    if problem.closed_form is not None:
        rows = problem.closed_form(problem.w_form(w), problem.delta_layout.form(centre, index), tau, index.tensor)
        return Implicit(flat(rows), 0, 0.0, True)
    if problem.bilinear_in_both:  # the gradient does not depend on the point: one step is exact
        return Implicit(problem.prox_g(centre.add(gradient(w, centre, index), alpha=tau), tau, index), 1, 0.0, True)
    return implicit_step(
        lambda d: gradient(w, d, index), lambda z, eta: problem.prox_g(z, eta, index), centre, tau, curvature
    )


def _finite(name: str, x: Tensor) -> Tensor:
    # One fast pass: inf and nan survive a sum. A sum may also overflow by itself, hence the second look.
    if not isfinite(x.sum().item()) and not x.isfinite().all():
        raise DivergedError(name)
    return x
