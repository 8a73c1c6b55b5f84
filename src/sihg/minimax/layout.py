"""How a user's w (tensor or dict) and delta (tensor or list) lie in one flat vector each.

Inside the solvers everything is a flat vector, so that an update reads like the paper's; only the coupling, f and g
see the user's own shapes. All shaping is by views.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Size, Tensor

from sihg.errors import InputError

Weights = Tensor | dict[str, Tensor]
Blocks = Tensor | list[Tensor]


class Index:
    """Some of the blocks: a tensor for the coupling; their numbers only where blocks are treated one by one."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.count = tensor, len(tensor)

    @cached_property
    def numbers(self) -> list[int]:
        """The blocks' numbers."""
        return [int(i) for i in self.tensor]


@dataclass(frozen=True)
class WeightLayout:
    """w as one vector: a tensor of some shape, or named tensors end to end."""

    shapes: tuple[Size, ...]
    names: tuple[str, ...] | None  # None: a single tensor

    @staticmethod
    def of(w: Tensor | Mapping[str, Tensor]) -> "WeightLayout":
        """The layout of a user's w0."""
        if isinstance(w, Tensor):
            return WeightLayout((w.shape,), None)
        if not isinstance(w, Mapping) or not w or not all(isinstance(v, Tensor) for v in w.values()):
            raise InputError(f"w0 must be a tensor or a dict of tensors, got {_describe(w)}: pass one of these")
        return WeightLayout(tuple(v.shape for v in w.values()), tuple(w))

    def pack(self, w: Tensor | Mapping[str, Tensor]) -> Tensor:
        """A new flat vector with w's values."""
        pieces = self._ordered(w)
        _check_dtypes("w0", pieces)
        if tuple(p.shape for p in pieces) != self.shapes:
            raise InputError(f"w has shapes {[tuple(p.shape) for p in pieces]}, not {[tuple(s) for s in self.shapes]}")
        return torch.cat([p.detach().reshape(-1) for p in pieces])

    def flat(self, w: Tensor | Mapping[str, Tensor]) -> Tensor:
        """The values of w end to end; a view where there is only one tensor."""
        return flat(self._ordered(w))

    def _ordered(self, w: Tensor | Mapping[str, Tensor]) -> list[Tensor]:
        if isinstance(w, Tensor):
            return [w]
        if self.names is None or set(w) != set(self.names):
            raise InputError(f"w has the keys {sorted(w)}, the problem's has {sorted(self.names or ())}")
        return [w[name] for name in self.names]

    def pieces(self, vector: Tensor) -> list[Tensor]:
        """Views of the vector, one a tensor of w."""
        if self.names is None:
            return [vector.view(self.shapes[0])]
        split = vector.split([shape.numel() for shape in self.shapes])
        return [piece.view(shape) for piece, shape in zip(split, self.shapes, strict=True)]

    def form(self, pieces: Sequence[Tensor]) -> Weights:
        """The pieces in the user's form."""
        return pieces[0] if self.names is None else dict(zip(self.names, pieces, strict=True))

    def unpack(self, vector: Tensor) -> Weights:
        """The vector in the user's form (views)."""
        return self.form(self.pieces(vector))


@dataclass(frozen=True)
class BlockLayout:
    """delta as one vector: n blocks end to end, all of one shape (a tensor) or each of its own (a list)."""

    shapes: tuple[Size, ...]
    offsets: tuple[int, ...]
    stacked: bool

    @staticmethod
    def of(delta: Tensor | Sequence[Tensor]) -> "BlockLayout":
        """The layout of a user's delta0."""
        if isinstance(delta, Tensor):
            if delta.dim() == 0 or len(delta) == 0:
                raise InputError(
                    f"delta0 must have shape (n, ...) with n >= 1, got {tuple(delta.shape)}: add the block"
                )
            shapes = (delta.shape[1:],) * len(delta)
        elif isinstance(delta, Sequence) and len(delta) and all(isinstance(d, Tensor) for d in delta):
            shapes = tuple(d.shape for d in delta)
        else:
            raise InputError(f"delta0 must be a tensor (n, ...) or a list of n tensors, got {_describe(delta)}")
        offsets = tuple(accumulate((shape.numel() for shape in shapes), initial=0))
        return BlockLayout(shapes, offsets, isinstance(delta, Tensor))

    @property
    def n(self) -> int:
        """The number of blocks."""
        return len(self.shapes)

    def pack(self, delta: Tensor | Sequence[Tensor]) -> Tensor:
        """A new flat vector with delta's values."""
        pieces = list(delta)
        _check_dtypes("delta0", pieces)
        if tuple(p.shape for p in pieces) != self.shapes:
            raise InputError(f"delta has {len(pieces)} blocks, not {self.n} of the problem's shapes")
        return torch.cat([p.detach().reshape(-1) for p in pieces])

    def block(self, vector: Tensor, i: int) -> Tensor:
        """Block i of a full delta, a flat view."""
        return vector[self.offsets[i] : self.offsets[i + 1]]

    def others(self, vector: Tensor, i: int, scratch: Tensor) -> Tensor:
        """All blocks but i of a full delta, end to end, copied into scratch memory of delta's size."""
        size = vector.numel() - self.shapes[i].numel()
        return torch.cat((vector[: self.offsets[i]], vector[self.offsets[i + 1] :]), out=scratch[:size])

    def form(self, rows: Tensor, index: Index) -> Blocks:
        """Flat rows for the blocks in index, in the user's form (views)."""
        if self.stacked:
            return rows.view(index.count, *self.shapes[0])
        shapes = [self.shapes[i] for i in index.numbers]
        split = rows.split([shape.numel() for shape in shapes])
        return [piece.view(shape) for piece, shape in zip(split, shapes, strict=True)]


def flat(values: Tensor | Sequence[Tensor] | Mapping[str, Tensor]) -> Tensor:
    """Tensors end to end as one vector; a view where there is only one."""
    if isinstance(values, Tensor):
        return values.reshape(-1)
    pieces = list(values.values()) if isinstance(values, Mapping) else values
    return pieces[0].reshape(-1) if len(pieces) == 1 else torch.cat([p.reshape(-1) for p in pieces])


def _check_dtypes(what: str, pieces: Sequence[Tensor]) -> None:
    kinds = {(p.dtype, p.device) for p in pieces}
    if len(kinds) > 1 or not pieces[0].is_floating_point():
        found = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
        raise InputError(f"{what} must be floating point of one dtype on one device, got {found}: convert it")


def _describe(value: object) -> str:
    return type(value).__name__ + (" (empty)" if isinstance(value, Sequence | Mapping) and not value else "")
