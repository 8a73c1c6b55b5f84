"""SSI-HG: stochastic semi-implicit hybrid gradient (Algorithm 1)."""

from dataclasses import dataclass
from math import hypot, sqrt

import torch
from torch import Tensor

from sihg.core.hybrid import hybrid
from sihg.minimax._memory import RememberingOracle
from sihg.minimax._oracle import Oracle, implicit
from sihg.minimax.solvers.base import State, change, norm, quotient
from sihg.minimax.solvers.theorems import HybridMethod


@dataclass(frozen=True)
class SSIHGState(State):
    """The iterate, and what the next hybrid gradient needs."""

    gradient: Tensor | None = None  # A_{k-1} = grad_w phi(w^{k-1}, delta^{k-1})
    i: int | None = None  # the block that moved last
    old: Tensor | None = None  # that block before it moved
    sigma: float | None = None  # the step that led here


@dataclass(frozen=True)
class SSIHG(HybridMethod[SSIHGState]):
    """A hybrid gradient step in w, then an implicit step in one random block of delta.

    With A_k = grad_w phi(w^k, delta^k), j = i_{k-1} and c_k = grad_w phi_j(w^k, delta_j^k) - grad_w phi_j(w^k,
    delta_j^{k-1}), lines 3 and 4 of Algorithm 1 become

        w^{k+1} = prox_f^sigma[w^k - sigma {(1+theta) A_k - theta A_{k-1} + theta (n-1) c_k}]
        delta_i^{k+1} = prox_{g_i}^tau[delta_i^k + tau grad_{delta_i} phi_i(w^{k+1}, delta_i^{k+1})],  i = i_k

    because delta^k and delta^{k-1} differ in block j alone. This takes n + 1 block gradients in w. If phi is linear in
    w, then A_k = A_{k-1} + c_k, the braces are A_k + theta n c_k, and it takes one or two.
    """

    state = SSIHGState  # its first step takes (w^{-1}, delta^{-1}) = (w^0, delta^0)
    implicit = True

    def step(self, oracle: Oracle, s: SSIHGState, i: int) -> SSIHGState:
        """Do one iteration."""
        A, direction = self._gradient_and_direction(oracle, s)
        w = oracle.prox_f(torch.sub(s.w, direction, alpha=self.sigma, out=direction), self.sigma)
        old = oracle.block(s.delta, i)
        new = oracle.implicit(w, old, self.tau, oracle.problem.only(i))
        return SSIHGState(w, oracle.replace(s.delta, i, new), gradient=A, i=i, old=old, sigma=self.sigma)

    def _gradient_and_direction(self, oracle: Oracle, s: SSIHGState) -> tuple[Tensor, Tensor]:
        """Return A_k and (1+theta) A_k - theta A_{k-1} + theta (n-1) c_k; the caller may overwrite the second."""
        if s.gradient is None or s.i is None or s.old is None:
            A = oracle.gradient_w(s.w, s.delta).clone()  # it may be a view of delta, which is written in place
            return A, A.clone()
        theta = self.theta if s.sigma is None else self.theta * (s.sigma / self.sigma)
        n, problem, j, now = oracle.n, oracle.problem, s.i, oracle.view(s.delta, s.i)
        if problem.linear_in_w:
            c = oracle.gradient_w_change(s.w, j, now, s.old)
            A = s.gradient + c
            return A, A.add(c, alpha=theta * n)
        if n == 1:
            A = oracle.gradient_w(s.w, s.delta)
            return A, hybrid(A, s.gradient, theta)
        moved = oracle.gradient_w_of(s.w, now, problem.only(j))
        c = moved - oracle.gradient_w_of(s.w, s.old, problem.only(j))
        A = oracle.gradient_w_of_others(s.w, s.delta, j) + moved
        return A, hybrid(A, s.gradient, theta).add_(c, alpha=theta * (n - 1))

    def local_ratio(self, oracle: RememberingOracle, s: SSIHGState, new: SSIHGState, i: int) -> float:
        """Return x + sqrt(x^2 + y^2) with x = l11 sigma, y = l12 sqrt(sigma tau n), from this step's constants.

        l11 = |A_{k+1} - c_{k+1} - A_k| / |dw| and l12 = |c_{k+1}| / |ddelta_i|, which the next iteration computes
        anyway. It is at most 1 where 2 l11 sigma + l12^2 sigma tau n <= 1. For n = 1 it is that of DSI-HG.
        """
        assert new.gradient is not None
        n, problem, now = oracle.n, oracle.problem, oracle.view(new.delta, i)
        if n == 1:
            return self.mixed_ratio(oracle, s, new, change(oracle.gradient_w(new.w, new.delta), new.gradient))
        assert new.old is not None
        if problem.linear_in_w:
            c = oracle.gradient_w_change(new.w, i, now, new.old)
            return self.mixed_ratio(oracle, s, new, change(new.gradient + c, new.gradient, times=n))
        moved, before = (oracle.gradient_w_of(new.w, block, problem.only(i)) for block in (now, new.old))
        others = oracle.gradient_w_of_others(new.w, new.delta, i)
        x = self.sigma * quotient(change(others + before, new.gradient), norm(new.w - s.w))
        scale = sqrt(self.sigma * self.tau * n)
        y = scale * quotient(change(moved, before), oracle.moved(s.delta, new.delta))
        return x + hypot(x, y)

    def measured_at(self, oracle: Oracle, s: SSIHGState) -> tuple[Tensor, Tensor]:
        """Return (w^k, delta-hat^k) of Theorem 1: all blocks step from delta^{k-1}; not counted."""
        if s.i is None or s.old is None:
            return s.w, s.delta
        problem, before = oracle.problem, s.delta.clone()
        problem.delta_layout.block(before, s.i).copy_(s.old)
        return s.w, implicit(problem, s.w, before, self.tau, problem.all, oracle.curvature).point
