"""Give solvers access to a problem: gradients, which are counted, and proximal steps, checked to be finite."""

from functools import partial
from math import isfinite

import torch
from torch import Tensor

from sihg.core.implicit import Implicit, implicit_step
from sihg.minimax._layout import Index, flat
from sihg.minimax.problem import Problem


class DivergedError(ArithmeticError):
    """Raised for an iterate that is NaN or infinite, before it is stored, so that the last finite iterate is kept."""


class StalledError(ArithmeticError):
    """Raised if a method cannot move on although it is not at a solution; says why and what to do."""


class Oracle:
    """Counts the gradients of a problem, and has the verbs in which the solvers are written."""

    def __init__(self, problem: Problem, curvature: float) -> None:
        self.problem = problem
        self.n = problem.n
        self.curvature = curvature  # L22, known or estimated
        self.w_gradients, self.delta_gradients = 0, 0
        self.implicit_share = 0.0  # the error allowed in an implicit step, relative to its length
        self.implicit_steps, self.implicit_error = 0, 0.0
        self._scratch: Tensor | None = None
        self._delta: Tensor | None = None  # whose blocks _views has
        self._views: dict[int, Tensor] = {}
        self.unsolved: list[float] = []  # errors of the implicit steps that did not converge

    def gradient_w(self, w: Tensor, delta: Tensor) -> Tensor:
        """Return grad_w phi(w, delta); counts n block gradients."""
        return self.gradient_w_of(w, delta, self.problem.all)

    def gradient_w_of(self, w: Tensor, rows: Tensor, index: Index) -> Tensor:
        """Return the sum over the blocks in index of grad_w phi_i."""
        self.w_gradients += index.count
        return self.problem.gradient_w(w, rows, index)

    def gradient_w_of_others(self, w: Tensor, delta: Tensor, i: int) -> Tensor:
        """Return the sum over all blocks but i of grad_w phi_j."""
        if self._scratch is None:  # reused: allocating memory of delta's size costs more than the copy
            self._scratch = torch.empty_like(delta)
        rows = self.problem.delta_layout.others(delta, i, self._scratch)
        return self.gradient_w_of(w, rows, self.problem.but(i))

    def gradient_w_change(self, w: Tensor, i: int, new: Tensor, old: Tensor) -> Tensor:
        """Return grad_w phi_i(w, new) - grad_w phi_i(w, old)."""
        change, cost = self.problem.gradient_w_change(w, i, new, old)
        self.w_gradients += cost
        return change

    def gradient_delta(self, w: Tensor, delta: Tensor) -> Tensor:
        """Return grad_delta phi(w, delta); counts n block gradients."""
        return self.gradient_delta_of(w, delta, self.problem.all)

    def gradient_delta_of(self, w: Tensor, rows: Tensor, index: Index) -> Tensor:
        """Return grad_delta_i phi_i for the blocks in index."""
        self.delta_gradients += index.count
        return self.problem.gradient_delta(w, rows, index)

    def gradients(self, w: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Return grad_w phi and grad_delta phi at one point."""
        self.w_gradients += self.n
        self.delta_gradients += self.n
        return self.problem.gradients(w, delta)

    def prox_f(self, z: Tensor, sigma: float) -> Tensor:
        """Return prox_f^sigma(z); raise DivergedError if it is not finite."""
        return _finite("w", self.problem.prox_f(z, sigma))

    def prox_g(self, delta: Tensor, tau: float) -> Tensor:
        """Return prox_g^tau of all blocks; raise DivergedError if it is not finite."""
        return _finite("delta", self.problem.prox_g(delta, tau, self.problem.all))

    def prox_g_block(self, i: int, row: Tensor, tau: float) -> Tensor:
        """Return prox_{g_i}^tau of one block; raise DivergedError if it is not finite."""
        return _finite("delta", self.problem.prox_g(row, tau, self.problem.only(i)))

    def implicit(self, w: Tensor, centre: Tensor, tau: float, index: Index) -> Tensor:
        """Solve d = prox_g^tau[centre + tau grad_delta phi(w, d)] for the blocks in index (Alg. 1, line 6)."""
        result = implicit(self.problem, w, centre, tau, index, self.curvature, self.implicit_share)
        self.implicit_steps = max(result.steps, 1)  # a closed form counts as one gradient
        self.delta_gradients += self.implicit_steps * index.count
        self.implicit_error = result.error
        if not result.converged:
            self.unsolved.append(result.error)
        return _finite("delta", result.point)

    def block(self, delta: Tensor, i: int) -> Tensor:
        """Return a copy of block i."""
        return self.view(delta, i).clone()

    def view(self, delta: Tensor, i: int) -> Tensor:
        """Return a view of block i, which is kept while delta stays the same tensor."""
        if delta is not self._delta:
            self._delta, self._views = delta, {}
        if i not in self._views:
            self._views[i] = self.problem.delta_layout.block(delta, i)
        return self._views[i]

    def replace(self, delta: Tensor, i: int, row: Tensor) -> Tensor:
        """Replace block i in place, since copying all n blocks would cost more than the step."""
        if self.n == 1:
            return row
        self.view(delta, i).copy_(row)
        return delta


def implicit(
    problem: Problem, w: Tensor, centre: Tensor, tau: float, index: Index, curvature: float, share: float = 0.0
) -> Implicit:
    """Solve the implicit step of the blocks in index, by the problem's closed form or by iteration."""
    if problem.closed_form is not None:
        rows = problem.closed_form(problem.w_form(w), problem.delta_layout.form(centre, index), tau, index.tensor)
        return Implicit(flat(rows), 0, 0.0, True)
    if problem.bilinear_in_both:  # the gradient does not depend on the point: one step is exact
        slope = problem.gradient_delta(w, centre, index)
        return Implicit(problem.prox_g(centre.add(slope, alpha=tau), tau, index), 1, 0.0, True)
    gradient = partial(problem.gradient_delta, w, index=index)
    return implicit_step(gradient, partial(problem.prox_g, index=index), centre, tau, curvature, share=share)


def _finite(name: str, x: Tensor) -> Tensor:
    # One fast pass: inf and NaN survive a sum of squares. It may also overflow by itself, hence the second check.
    if not isfinite(x.dot(x).item()) and not x.isfinite().all():
        raise DivergedError(name)
    return x
