"""Bilinear coupling phi_i(w, delta_i) = <A_i w, delta_i>, whose gradients are products with A_i and its adjoint."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sihg.core.draw import generator
from sihg.errors import InputError
from sihg.minimax._layout import BlockLayout, Blocks, Index, WeightLayout, flat, shaped

NORM_ITERATIONS = 30


@dataclass(frozen=True)
class LinearMap:
    """A linear operator by two functions.

    Args:
        forward: w -> A w, shaped like a block of delta.
        adjoint: delta_i -> A^T delta_i, shaped like w.
    Example:
        >>> double = LinearMap(lambda w: 2 * w, lambda d: 2 * d)
        >>> double.forward(torch.tensor([1.0, 3.0]))
        tensor([2., 6.])
    """

    forward: Callable[[Tensor], Tensor]
    adjoint: Callable[[Tensor], Tensor]

    @staticmethod
    def of(matrix: Tensor) -> "LinearMap":
        """Return the map of a matrix (d, m), dense or sparse."""
        matrix = matrix.detach()
        if matrix.layout is torch.strided:
            transposed = matrix.t()
        else:
            transposed = matrix.t().to_sparse_coo().coalesce()
            matrix = matrix.to_sparse_coo().coalesce()
        return LinearMap(matrix.matmul, transposed.matmul)


Maps = Tensor | Sequence[Tensor | LinearMap]
Starts = tuple[Tensor, Tensor | Sequence[Tensor]]


class BilinearCoupling:
    """The coupling of `Problem.bilinear`."""

    def __init__(self, blocks: Maps, w0: Tensor, delta0: Tensor | Sequence[Tensor]) -> None:
        self.w_layout, self.delta_layout = WeightLayout.of(w0), BlockLayout.of(delta0)
        self.w_size, self.dtype = w0.numel(), w0.dtype
        # Matrices of one shape are one tall matrix for products with all blocks at once.
        self.whole = LinearMap.of(blocks.detach().flatten(0, 1)) if isinstance(blocks, Tensor) else None
        self.maps = [LinearMap.of(block) if isinstance(block, Tensor) else block for block in blocks]
        self.by_functions = [i for i, block in enumerate(blocks) if isinstance(block, LinearMap)]

    def phi(self, w: Tensor, rows: Tensor, index: Index) -> Tensor:
        """Return <A_i w, delta_i> for each i in index."""
        x, blocks = shaped(w, self.w_layout.shapes[0]), self.delta_layout.form(rows, index)
        pairs = zip(index.numbers, blocks, strict=True)
        return torch.stack([(self.maps[i].forward(x) * row).sum() for i, row in pairs])

    def gradient_w(self, w: Tensor, rows: Tensor, index: Index) -> Tensor:  # noqa: ARG002
        """Return sum_i A_i^T delta_i."""
        if index.count == self.delta_layout.n and not rows.any():  # the usual start: saves a pass over the data
            return rows.new_zeros(self.w_layout.shapes[0].numel())
        if self.whole and index.count == self.delta_layout.n:
            return self.whole.adjoint(rows)
        if index.count == 1:
            i = index.numbers[0]
            return flat(self.maps[i].adjoint(shaped(rows, self.delta_layout.shapes[i])))
        blocks: Blocks = self.delta_layout.form(rows, index)
        first, *rest = (self.maps[i].adjoint(row) for i, row in zip(index.numbers, blocks, strict=True))
        total = flat(first)
        for part in rest:
            total = total + flat(part)
        return total

    def gradient_delta(self, w: Tensor, rows: Tensor, index: Index) -> Tensor:  # noqa: ARG002
        """Return A_i w for each i in index, end to end."""
        if self.whole and index.count == self.delta_layout.n:
            return self.whole.forward(w)
        x = shaped(w, self.w_layout.shapes[0])
        if index.count == 1:
            return flat(self.maps[index.numbers[0]].forward(x))
        return torch.cat([flat(self.maps[i].forward(x)) for i in index.numbers])

    def gradients(self, w: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Return both gradients."""
        blocks = self.delta_layout.all
        return self.gradient_w(w, delta, blocks), self.gradient_delta(w, delta, blocks)

    def gradient_w_change(self, w: Tensor, i: int, new: Tensor, old: Tensor) -> tuple[Tensor, int]:
        """Return A_i^T (new - old): one product, where a coupling that is only linear in w takes two gradients."""
        return self.gradient_w(w, new - old, self.delta_layout.each[i]), 1

    @cached_property
    def norms(self) -> Tensor:
        """The norms ||A_i|| by power iteration, times 1.05 since it never overestimates."""
        draw = generator(0, "block-norms")
        start = torch.randn(self.w_size, generator=draw, dtype=self.dtype).to(self.delta_layout.device)
        return 1.05 * torch.stack([self._norm(index, start) for index in self.delta_layout.each])

    def _norm(self, index: Index, v: Tensor) -> Tensor:
        tiny = torch.finfo(v.dtype).tiny
        for _ in range(NORM_ITERATIONS):
            u = self.gradient_delta(v / v.norm().clamp_min(tiny), v, index)
            v = self.gradient_w(v, u, index)
        size: Tensor = u.norm()
        return size

    def check_gradients(self, w: Tensor, delta: Tensor) -> None:
        """Check <A w, d> = <w, A^T d> of each LinearMap for a random pair: a wrong adjoint leads to a wrong answer."""
        draw = generator(0, "adjoint")
        w = torch.randn(w.shape, generator=draw, dtype=w.dtype).to(w)
        d = torch.randn(delta.shape, generator=draw, dtype=w.dtype).to(w)
        for i in self.by_functions:
            index, block = self.delta_layout.each[i], self.delta_layout.block(d, i)
            left, right = self.gradient_delta(w, block, index), self.gradient_w(w, block, index)
            if left.shape != block.shape or right.shape != w.shape:
                raise InputError(
                    "linear-map-shape",
                    block=i,
                    height=block.numel(),
                    width=w.numel(),
                    forward=left.numel(),
                    adjoint=right.numel(),
                )
            a, b = float(left @ block), float(w @ right)
            size = float(left.norm() * block.norm() + w.norm() * right.norm())
            if abs(a - b) > 1e3 * torch.finfo(w.dtype).eps * size:
                raise InputError("linear-map-adjoint", block=i, a=a, b=b)


def bilinear_starts(blocks: Maps, w0: Tensor | None, delta0: Tensor | Sequence[Tensor] | None) -> Starts:
    """Return the starts, zero where they are not given; raise InputError if they do not fit the blocks."""
    _check_blocks(blocks, w0)
    matrices = [block for block in blocks if isinstance(block, Tensor)]
    if len(matrices) != len(blocks) and (w0 is None or delta0 is None):
        raise InputError("bilinear-starts-missing")
    if w0 is None:
        w0 = torch.zeros(matrices[0].shape[1], dtype=matrices[0].dtype, device=matrices[0].device)
    if delta0 is None:
        delta0 = [torch.zeros(len(matrix), dtype=w0.dtype, device=w0.device) for matrix in matrices]
        delta0 = torch.stack(delta0) if len({len(matrix) for matrix in matrices}) == 1 else delta0
    if len(delta0) != len(blocks):
        raise InputError("bilinear-block-count", blocks=len(blocks), count=len(delta0))
    for i, block in enumerate(blocks):
        if not isinstance(block, Tensor):
            continue
        wanted = (delta0[i].numel(), w0.numel())
        if tuple(block.shape) != wanted:
            raise InputError("bilinear-block-shape", block=i, wanted=wanted, shape=tuple(block.shape))
        if block.dtype != w0.dtype:
            raise InputError("bilinear-dtype", block=i, dtype=w0.dtype, found=block.dtype)
    return w0, delta0


def _check_blocks(blocks: Maps, w0: Tensor | None) -> None:
    if isinstance(blocks, Tensor) and blocks.dim() != 3:
        raise InputError("bilinear-blocks-shape", shape=tuple(blocks.shape))
    if not len(blocks):
        raise InputError("bilinear-empty")
    for i, block in enumerate(blocks):
        if not isinstance(block, LinearMap) and not (isinstance(block, Tensor) and block.dim() == 2):
            raise InputError("bilinear-block-type", block=i, type=type(block).__name__)
    if w0 is not None and not isinstance(w0, Tensor):
        raise InputError("bilinear-w0-type", type=type(w0).__name__)
