"""Compute the descent-ascent direction on a grid, for problems with one number in w and one in delta."""

from math import inf, isfinite

import torch

from sihg.core.prox import Box
from sihg.minimax._layout import flat
from sihg.minimax.zoo import Benchmark
from sihg.store.schema import SolveField

FIELD_POINTS = 25  # per axis


def direction_field(benchmark: Benchmark) -> SolveField:
    """Return the direction (-grad_w, +grad_delta) over the box, or around the start and the solution."""
    problem, solution = benchmark.problem, benchmark.solution
    answer = None if solution is None else (float(flat(solution.w)), float(flat(solution.delta)))
    size = 1.6 * max(map(abs, (0.1, float(problem.w0), float(problem.delta0), *(answer or ()))))
    box = (*_sides(problem.f), *_sides(problem.g))
    low_w, high_w, low_d, high_d = (
        side if isfinite(side) else edge for side, edge in zip(box, (-size, size) * 2, strict=True)
    )
    ws = torch.linspace(low_w, high_w, FIELD_POINTS, dtype=problem.w0.dtype)
    ds = torch.linspace(low_d, high_d, FIELD_POINTS, dtype=problem.w0.dtype)
    rows = [[problem.gradients(w[None], d[None]) for w in ws] for d in ds]
    return SolveField(
        w=tuple(ws.tolist()),
        delta=tuple(ds.tolist()),
        dw=tuple(tuple(finite_or_none(-float(g_w)) for g_w, _ in row) for row in rows),
        ddelta=tuple(tuple(finite_or_none(float(g_d)) for _, g_d in row) for row in rows),
        solution=answer,
        box=box if all(map(isfinite, box)) else None,
    )


def _sides(function: object) -> tuple[float, float]:
    return (float(function.lower), float(function.upper)) if isinstance(function, Box) else (-inf, inf)


def finite_or_none(value: float | None) -> float | None:
    """Return a number that JSON can hold; None for NaN and infinite values."""
    return value if value is not None and isfinite(value) else None
