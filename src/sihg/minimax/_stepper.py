"""Do the iterations of a solve one by one, with fixed or adaptive steps."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from sihg.core.draw import generator
from sihg.minimax import adaptive
from sihg.minimax._memory import RememberingOracle
from sihg.minimax._oracle import Oracle
from sihg.minimax.problem import Problem
from sihg.minimax.solve_state import SolveState
from sihg.minimax.solvers.base import State

DRAWS_PER_CHUNK = 4096  # block numbers drawn at once


class Stepper:
    """The method of a solve with its current steps, and the oracle that counts its gradients."""

    def __init__(self, problem: Problem, at: SolveState) -> None:
        self.method, self.search = at.method, at.adaptive
        self.oracle: Oracle
        if self.search is None:
            self.oracle = Oracle(problem, at.curvature)
        else:
            self.oracle = RememberingOracle(problem, at.curvature, self.search.memory)
        self.oracle.w_gradients, self.oracle.delta_gradients = at.w_gradients, at.delta_gradients

    def step(self, s: State, i: int, k: int) -> State:
        """Do iteration k from s with block i."""
        new: State
        if self.search is None:
            new = self.method.step(self.oracle, s, i)
        else:
            assert isinstance(self.oracle, RememberingOracle)
            self.search, self.method, new = adaptive.advance(self.search, self.method, self.oracle, s, i, k)
        return new

    def reached(self, at: SolveState) -> SolveState:
        """Return a state of the solve with the current steps."""
        if self.search is None:
            return at
        steps = replace(at.steps, sigma=self.method.sigma, tau=self.method.tau)
        return replace(at, method=self.method, steps=steps, adaptive=self.search)


def draw_blocks(seed: int, n: int, first: int, weights: Tensor | None = None) -> Iterator[int]:
    """Yield i_k as a function of seed, k and the weights of the blocks; uniform on the blocks without weights."""
    chunk, skip = divmod(first, DRAWS_PER_CHUNK)
    while True:
        draw = generator(seed, "block", epoch=chunk)
        if weights is None:
            drawn = torch.randint(n, (DRAWS_PER_CHUNK,), generator=draw)
        else:
            drawn = torch.multinomial(weights.cpu(), DRAWS_PER_CHUNK, replacement=True, generator=draw)
        yield from drawn.tolist()[skip:]
        chunk, skip = chunk + 1, 0
