"""Draw other starting points of a problem, as a function of a seed."""

from copy import copy

import torch
from torch import Tensor

from sihg.core.draw import generator
from sihg.core.prox import Box, Convex, Simplex
from sihg.minimax.problem import Problem


def random_start(problem: Problem, seed: int, radius: float = 1.0) -> Problem:
    """Return the same problem with another start.

    A variable with finite bounds starts uniformly between them, and one on a simplex uniformly on it. Any other starts
    at its old start plus Gaussian noise of standard deviation `radius`, projected onto the domain of its f or g if that
    is outside.

    Args:
        problem: The problem.
        seed: Equal seeds give equal starts.
        radius: The standard deviation of the noise.
    Returns:
        A problem that shares everything but w0 and delta0 with the given one.
    Example:
        >>> from sihg.minimax import zoo
        >>> problem = zoo.get("forsaken").problem
        >>> starts = [float(random_start(problem, seed).w0) for seed in (0, 1, 0)]
        >>> starts[0] == starts[2] != starts[1], max(map(abs, starts)) <= 1.5
        (True, True)
    """
    draw = generator(seed, "start")
    started = copy(problem)
    pieces = problem.w_layout.pieces(problem.w0)
    if isinstance(problem.f, dict):
        w = [_drawn(f, piece, draw, radius) for f, piece in zip(problem.f.values(), pieces, strict=True)]
        started.w0 = torch.cat([piece.reshape(-1) for piece in w])
    else:
        whole = pieces[0] if problem.w_layout.names is None else problem.w0
        started.w0 = _drawn(problem.f, whole, draw, radius).reshape(-1)
    blocks = [problem.delta_layout.block(problem.delta0, i) for i in range(problem.n)]
    rows = []
    for i, (block, shape) in enumerate(zip(blocks, problem.delta_layout.shapes, strict=True)):
        g = problem.g[i] if isinstance(problem.g, list) else problem.g
        rows.append(_drawn(g, block.view(shape), draw, radius).reshape(-1))
    started.delta0 = torch.cat(rows)
    return started


def _drawn(function: Convex, start: Tensor, draw: torch.Generator, radius: float) -> Tensor:
    if isinstance(function, Box):
        lower, upper = (torch.as_tensor(side, dtype=start.dtype) for side in (function.lower, function.upper))
        if bool((lower.isfinite() & upper.isfinite()).all()):
            share = torch.rand(start.shape, generator=draw, dtype=start.dtype)
            return (lower + (upper - lower) * share.to(start.device)).expand_as(start)
    if isinstance(function, Simplex):
        parts = -torch.rand(start.shape, generator=draw, dtype=start.dtype).clamp_min(1e-30).log().to(start.device)
        return parts * (function.total / parts.sum())
    noise = torch.randn(start.shape, generator=draw, dtype=start.dtype).to(start.device)
    moved = start + radius * noise
    return moved if bool(function.value(moved).isfinite()) else function.prox(moved, 1.0)
