"""An oracle that remembers gradients, so that a second trial of a step does not pay again for the same gradient."""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from sihg.minimax._layout import Index
from sihg.minimax._oracle import Oracle
from sihg.minimax.problem import Problem

IMPLICIT_SHARE = 0.01  # solving further costs gradients, and the line search cannot tell the difference
Point = tuple[Tensor, ...]  # w, then blocks of delta


@dataclass(frozen=True)
class Remembered:
    """A gradient and the point where it was taken."""

    kind: str  # which of the oracle's gradients
    block: int  # of which block; -1 for all
    point: Point
    gradients: tuple[Tensor, ...]

    def is_of(self, kind: str, block: int, point: Point) -> bool:
        """Whether this is the gradient asked for: the same bits of w and delta."""
        if (self.kind, self.block) != (kind, block):
            return False
        return all(ours is theirs or torch.equal(ours, theirs) for ours, theirs in zip(self.point, point, strict=True))


class RememberingOracle(Oracle):
    """Returns a remembered gradient without counting it again, and can undo a trial that overwrote blocks of delta."""

    def __init__(self, problem: Problem, curvature: float, memory: tuple[Remembered, ...] = ()) -> None:
        super().__init__(problem, curvature)
        self.implicit_share = IMPLICIT_SHARE
        self.memory = list(memory)
        self._asked: list[Remembered] = []  # since the last `accept`
        self._overwritten: list[tuple[Tensor, int, Tensor]] = []

    def gradient_w_of(self, w: Tensor, rows: Tensor, index: Index) -> Tensor:
        """Return the sum over the blocks in index of grad_w phi_i."""
        compute = super().gradient_w_of
        block = self._name(index)
        if block is None:
            return compute(w, rows, index)
        return self._recall("w", block, (w, rows), lambda: (compute(w, rows, index),))[0]

    def gradient_w_of_others(self, w: Tensor, delta: Tensor, i: int) -> Tensor:
        """Return the sum over all blocks but i of grad_w phi_j."""
        compute = super().gradient_w_of_others
        return self._recall("others", i, (w, delta), lambda: (compute(w, delta, i),))[0]

    def gradient_w_change(self, w: Tensor, i: int, new: Tensor, old: Tensor) -> Tensor:
        """Return grad_w phi_i(w, new) - grad_w phi_i(w, old)."""
        compute = super().gradient_w_change
        return self._recall("change", i, (w, new, old), lambda: (compute(w, i, new, old),))[0]

    def gradient_delta_of(self, w: Tensor, rows: Tensor, index: Index) -> Tensor:
        """Return grad_delta_i phi_i for the blocks in index."""
        compute = super().gradient_delta_of
        block = self._name(index)
        if block is None:
            return compute(w, rows, index)
        return self._recall("delta", block, (w, rows), lambda: (compute(w, rows, index),))[0]

    def gradients(self, w: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Return grad_w phi and grad_delta phi at one point."""
        compute = super().gradients
        g_w, g_delta = self._recall("both", -1, (w, delta), lambda: compute(w, delta))
        return g_w, g_delta

    def replace(self, delta: Tensor, i: int, row: Tensor) -> Tensor:
        """Replace block i in place, and keep what it was for `undo`."""
        if self.n > 1:
            self._overwritten.append((delta, i, self.block(delta, i)))
        return super().replace(delta, i, row)

    def moved(self, before: Tensor, after: Tensor) -> float:
        """Return |after - before| of delta, also if this trial overwrote blocks in place."""
        if before is not after:
            return float(torch.linalg.vector_norm(after - before))
        first = {i: row for _, i, row in reversed(self._overwritten)}
        squares = [float((self.view(after, i) - row).square().sum()) for i, row in first.items()]
        return sqrt(sum(squares))

    def undo(self) -> None:
        """Put back the blocks of delta that were replaced since the last `accept` or `undo`."""
        while self._overwritten:
            delta, i, row = self._overwritten.pop()
            super().replace(delta, i, row)

    def accept(self, w: Tensor) -> None:
        """Keep only the gradients at the new w that this iteration asked for: the next step may ask again."""
        self._overwritten.clear()
        asked, self._asked = self._asked, []
        self.memory = [e for e in asked if torch.equal(e.point[0], w)]

    def _name(self, index: Index) -> int | None:
        """Return -1 for all blocks, the number of a single block, and None for other sets of blocks."""
        if index.count == 1:
            return index.numbers[0]
        return -1 if index is self.problem.all else None

    def _recall(
        self, kind: str, block: int, point: Point, compute: Callable[[], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        for entry in self.memory:
            if entry.is_of(kind, block, point):
                if not any(entry is other for other in self._asked):
                    self._asked.append(entry)
                return entry.gradients
        gradients = compute()
        # Copies: delta is overwritten in place, and a gradient may be a view of it.
        kept = (point[0], *(rows.clone() for rows in point[1:]))
        self.memory.append(Remembered(kind, block, kept, tuple(gradient.clone() for gradient in gradients)))
        self._asked.append(self.memory[-1])
        return gradients
