"""Bilinear coupling phi_i(w, delta_i) = <A_i w, delta_i>, where gradients are products with A_i and its adjoint."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sihg.core.draw import generator
from sihg.core.prox import Convex
from sihg.errors import InputError
from sihg.minimax.constants import Constants
from sihg.minimax.layout import Blocks, Index
from sihg.minimax.problem import Problem


@dataclass(frozen=True)
class LinearMap:
    """A linear operator: `forward(w)` is A w, shaped like a block; `adjoint(delta_i)` is A^T delta_i, shaped like w."""

    forward: Callable[[Tensor], Tensor]
    adjoint: Callable[[Tensor], Tensor]

    @staticmethod
    def of(matrix: Tensor) -> "LinearMap":
        """The map of a matrix (d, m), dense or sparse."""
        matrix = matrix.detach()
        if matrix.layout is torch.strided:
            transposed = matrix.t()
        else:
            transposed = matrix.t().to_sparse_coo().coalesce()
            matrix = matrix.to_sparse_coo().coalesce()
        return LinearMap(lambda w: matrix @ w, lambda d: transposed @ d)


class BilinearProblem(Problem):
    """A problem whose coupling is <A_i w, delta_i>; made by `Problem.bilinear`."""

    bilinear_in_both = True

    def __init__(
        self,
        blocks: Tensor | Sequence[Tensor | LinearMap],
        w0: Tensor | None,
        delta0: Tensor | Sequence[Tensor] | None,
        f: Convex | None,
        g: Convex | Sequence[Convex] | None,
        constants: Constants | Mapping[str, float] | None,
    ) -> None:
        if isinstance(blocks, Tensor) and blocks.dim() != 3:
            raise InputError(f"blocks must have shape (n, d, m), got {tuple(blocks.shape)}: use blocks[None] for n = 1")
        if not len(blocks):
            raise InputError("blocks is empty: give at least one matrix or LinearMap")
        for i, block in enumerate(blocks):
            if not isinstance(block, LinearMap) and not (isinstance(block, Tensor) and block.dim() == 2):
                raise InputError(f"block {i} must be a matrix or a LinearMap, got {type(block).__name__}")
        if w0 is not None and not isinstance(w0, Tensor):
            raise InputError(f"w0 of a bilinear problem must be a tensor, got {type(w0).__name__}")
        matrices = [block for block in blocks if isinstance(block, Tensor)]
        if len(matrices) != len(blocks) and (w0 is None or delta0 is None):
            raise InputError("linear operators do not tell their shapes: give w0 and delta0")
        if w0 is None:
            w0 = torch.zeros(matrices[0].shape[1], dtype=matrices[0].dtype, device=matrices[0].device)
        if delta0 is None:
            delta0 = [torch.zeros(len(matrix), dtype=w0.dtype, device=w0.device) for matrix in matrices]
            delta0 = torch.stack(delta0) if len({len(matrix) for matrix in matrices}) == 1 else delta0
        if len(delta0) != len(blocks):
            raise InputError(f"{len(blocks)} blocks but delta0 has {len(delta0)}: give one start a block")
        for i, block in enumerate(blocks):
            if isinstance(block, Tensor) and tuple(block.shape) != (delta0[i].numel(), w0.numel()):
                wanted = (delta0[i].numel(), w0.numel())
                raise InputError(f"block {i} has shape {tuple(block.shape)}, delta0 and w0 ask for {wanted}")
        # Matrices of one shape are one tall matrix for whatever needs all blocks at once.
        self.whole = LinearMap.of(blocks.detach().flatten(0, 1)) if isinstance(blocks, Tensor) else None
        for i, matrix in enumerate(matrices):
            if matrix.dtype != w0.dtype:
                raise InputError(f"matrix {i} is {matrix.dtype}, w0 {w0.dtype}: give both the same dtype")
        self.maps = [LinearMap.of(block) if isinstance(block, Tensor) else block for block in blocks]
        super().__init__(self._inner_products, w0, delta0, f, g, constants, linear_in_w=True)

    def gradient_w(self, w: Tensor, rows: Tensor, index: Index) -> Tensor:  # noqa: ARG002
        """sum_i A_i^T delta_i."""
        if self.whole and index is self.all:
            return self.whole.adjoint(rows)
        if index.count == 1:
            i = index.numbers[0]
            return self.maps[i].adjoint(rows.view(self.delta_layout.shapes[i])).reshape(-1)
        first, *rest = (
            self.maps[i].adjoint(row) for i, row in zip(index.numbers, self._rows(rows, index), strict=True)
        )
        total = first.reshape(-1)
        for part in rest:
            total = total + part.reshape(-1)
        return total

    def gradient_delta(self, w: Tensor, rows: Tensor, index: Index) -> Tensor:  # noqa: ARG002
        """A_i w, end to end."""
        if self.whole and index is self.all:
            return self.whole.forward(w)
        shaped = w.view(self.w_layout.shapes[0])
        if index.count == 1:
            return self.maps[index.numbers[0]].forward(shaped).reshape(-1)
        return torch.cat([self.maps[i].forward(shaped).reshape(-1) for i in index.numbers])

    def gradients(self, w: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Both gradients."""
        return self.gradient_w(w, delta, self.all), self.gradient_delta(w, delta, self.all)

    def gradient_w_change(self, w: Tensor, i: int, new: Tensor, old: Tensor) -> tuple[Tensor, int]:
        """A_i^T (new - old): one product, where a coupling that is only linear in w takes two block gradients."""
        return self.gradient_w(w, new - old, self.only(i)), 1

    def _rows(self, rows: Tensor, index: Index) -> Blocks:
        return self.delta_layout.form(rows, index)

    def _inner_products(self, w: Tensor, delta: Blocks, index: Tensor) -> Tensor:
        pairs = zip(index.tolist(), delta, strict=True)
        return torch.stack([(self.maps[i].forward(w) * row).sum() for i, row in pairs])

    def check_gradients(self) -> None:
        """<A w, d> = <w, A^T d> for a random pair, since a wrong adjoint converges to a wrong answer."""
        draw = generator(0, "adjoint")
        w = torch.randn(self.w0.shape, generator=draw, dtype=self.w0.dtype).to(self.w0)
        d = torch.randn(self.delta0.shape, generator=draw, dtype=self.w0.dtype).to(self.w0)
        for i in range(self.n):
            block = self.delta_layout.block(d, i)
            left, right = self.gradient_delta(w, block, self.only(i)), self.gradient_w(w, block, self.only(i))
            if left.shape != block.shape or right.shape != w.shape:
                raise InputError(
                    f"block {i}: forward gives {left.numel()} numbers for {block.numel()}, "
                    f"adjoint {right.numel()} for {w.numel()}: shape forward(w) like delta_i, adjoint(delta_i) like w"
                )
            a, b = float(left @ block), float(w @ right)
            size = float(left.norm() * block.norm() + w.norm() * right.norm())
            if abs(a - b) > 1e3 * torch.finfo(w.dtype).eps * size:
                raise InputError(f"block {i}: <A w, d> = {a:.6g} but <w, A^T d> = {b:.6g}: correct the adjoint")
