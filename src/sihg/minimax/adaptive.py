"""Adaptive steps: a line search on what a method's analysis needs, but only along the step just taken."""

from dataclasses import dataclass, replace
from math import inf, isfinite, sqrt
from typing import Any

import torch
from torch import Tensor

from sihg.minimax._memory import Remembered, RememberingOracle
from sihg.minimax._oracle import DivergedError, StalledError
from sihg.minimax.problem import Problem
from sihg.minimax.solvers.base import Method, S, State, norm

MAX_TRIALS = 100  # per iteration
LEAST = 1e-12  # of the first step; smaller ones pass only where phi is not smooth
GROWTH = 0.6  # steps grow by at most 1 + k^-GROWTH
CAUTION = 0.5  # and stay below 1 - k^-CAUTION of the local bound
ROUNDINGS = 8.0  # a step this small is rounding
MAX_BALANCE = 10.0  # sqrt(tau / sigma) changes by at most this factor
NEVER = 2**62
NOTE = "adaptive: local estimates, no theorem's guarantee"


@dataclass(frozen=True)
class Adaptive:
    """What the line search carries from one iteration to the next.

    Args:
        least: The eta below which the search gives up.
        first: sqrt(tau / sigma) at the start.
        weight: sqrt(tau / sigma).
        w: The point from which the balance of sigma and tau is measured.
        delta: Likewise.
        balance_at: The iteration at which they are balanced next; `NEVER` for fixed tau / sigma.
        rejected: The number of trials that failed so far.
        memory: The gradients at the current w.
    """

    least: float
    first: float
    weight: float
    w: Tensor
    delta: Tensor
    balance_at: int
    rejected: int = 0
    memory: tuple[Remembered, ...] = ()


def begin(method: Method[S], s: State, n: int, k: int = 0, *, balances: bool = True) -> Adaptive:
    """Return the search before its first iteration."""
    weight, eta = sqrt(method.tau / method.sigma), sqrt(method.sigma * method.tau)
    return Adaptive(LEAST * eta, weight, weight, s.w.clone(), s.delta.clone(), k + 10 * n if balances else NEVER)


def may_balance(problem: Problem, method: Method[S]) -> bool:
    """Whether tau / sigma may differ from 1 and change: if the problem is known to be monotone, or has several blocks.

    Otherwise sigma != tau changes the flow that short steps follow, and with it the starts from which it ends in a
    cycle. Methods for weak MVIs admit rho only up to a multiple of min(sigma, tau).
    """
    known = problem.constants
    is_monotone = problem.bilinear_in_both or bool(known.mu) or known.rho == 0
    return is_monotone or (method.balances and problem.n > 1)


def advance(
    search: Adaptive, method: Method[S], oracle: RememberingOracle, s: S, i: int, k: int
) -> tuple[Adaptive, Method[S], S]:
    """Do iteration k with the largest steps that pass; return the search, the method with its next steps, the state.

    With (sigma, tau) = (eta / omega, eta omega), a trial passes if r = `method.local_ratio(...)` is at most
    nu = `method.bound`. The next eta, also after a failed trial, is the smaller of (1 - (k+1)^-0.5) (nu / r) eta and
    (1 + (k+1)^-0.6) eta.
    """
    nu = method.bound
    for _ in range(MAX_TRIALS):
        new, r = _trial(method, oracle, s, i)
        allowed = nu / r if r > 0 else inf
        passed = new is not None and r <= nu
        factor = min((1 - (k + 1) ** -CAUTION) * allowed, 1 + (k + 1) ** -GROWTH)
        if passed and new is not None:
            oracle.accept(new.w)
            search = replace(search, memory=tuple(oracle.memory))
            search = _balanced(search, new, oracle.n, k)
            return search, _scaled(method, oracle, factor if r > 0 else 1.0, search), new
        oracle.undo()
        search = replace(search, rejected=search.rejected + 1)
        method = _scaled(method, oracle, min(factor, 0.9) if isfinite(r) else 0.25, search)
        if sqrt(method.sigma * method.tau) < search.least:
            break
    if new is None:
        raise DivergedError("w or delta")
    raise StalledError("no step passes the line search; give sigma and tau")


def _trial(method: Method[S], oracle: RememberingOracle, s: S, i: int) -> tuple[S | None, float]:
    """Return the state after a step and the ratio of the line search; infinite if anything is not finite."""
    unsolved = len(oracle.unsolved)
    try:
        new = method.step(oracle, s, i)
    except DivergedError:
        return None, inf
    except StalledError:
        return s, inf
    if len(oracle.unsolved) > unsolved:  # tau is too large for the implicit step
        del oracle.unsolved[unsolved:]
        return new, inf
    r = method.local_ratio(oracle, s, new, i)
    if r > method.bound and _is_rounding(oracle, s, new):
        return new, 0.0
    return new, r if isfinite(r) else inf


def _is_rounding(oracle: RememberingOracle, s: State, new: State) -> bool:
    """Whether the step is no longer than the rounding of w and delta, as at a solution: nothing follows from it."""
    rounding = ROUNDINGS * torch.finfo(s.w.dtype).eps
    moved_w, moved_delta = norm(new.w - s.w), oracle.moved(s.delta, new.delta)
    return moved_w <= rounding * norm(new.w) and moved_delta <= rounding * norm(new.delta)


def _scaled(method: Method[S], oracle: RememberingOracle, factor: float, search: Adaptive) -> Method[S]:
    """Return the method with eta times factor, and tau / sigma = weight^2 unless the implicit step caps tau."""
    eta, weight = factor * sqrt(method.sigma * method.tau), search.weight
    most = 0.9 / oracle.curvature if method.implicit and oracle.curvature else inf  # of tau
    if search.balance_at == NEVER:
        eta = min(eta, most / weight)
    return replace(method, sigma=eta / weight, tau=min(eta * weight, most))


def _balanced(search: Adaptive, new: State, n: int, k: int) -> Adaptive:
    """At iterations 10 n, 20 n, 40 n, ..., move tau / sigma towards n |delta - delta'|^2 / |w - w'|^2.

    Then |w - w'|^2 / sigma = n |delta - delta'|^2 / tau, the two terms of the bound of Theorem 1.
    """
    if k < search.balance_at:
        return search
    moved_w, moved_delta = norm(new.w - search.w), sqrt(n) * norm(new.delta - search.delta)
    weight = search.weight
    if moved_w > 0 and moved_delta > 0:
        wanted = sqrt(weight * moved_delta / moved_w)  # half the way, in logarithms
        weight = min(max(wanted, weight / 4, search.first / MAX_BALANCE), 4 * weight, search.first * MAX_BALANCE)
    return replace(search, weight=weight, w=new.w.clone(), delta=new.delta.clone(), balance_at=2 * k)


def packed(search: Adaptive) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a search by name, and the rest of it as JSON can hold it."""
    tensors = {"w": search.w, "delta": search.delta}
    for k, entry in enumerate(search.memory):
        tensors |= {f"{k}.point.{j}": tensor for j, tensor in enumerate(entry.point)}
        tensors |= {f"{k}.gradient.{j}": tensor for j, tensor in enumerate(entry.gradients)}
    memory = [(entry.kind, entry.block, len(entry.point), len(entry.gradients)) for entry in search.memory]
    plain = {name: getattr(search, name) for name in ("least", "first", "weight", "balance_at", "rejected")}
    return tensors, {**plain, "memory": memory}


def unpacked(tensors: dict[str, Tensor], plain: dict[str, Any]) -> Adaptive:
    """Return the search that `packed` took apart."""
    memory = tuple(
        Remembered(
            kind,
            block,
            tuple(tensors[f"{k}.point.{j}"] for j in range(points)),
            tuple(tensors[f"{k}.gradient.{j}"] for j in range(gradients)),
        )
        for k, (kind, block, points, gradients) in enumerate(plain["memory"])
    )
    return Adaptive(**{**plain, "memory": memory}, w=tensors["w"], delta=tensors["delta"])
