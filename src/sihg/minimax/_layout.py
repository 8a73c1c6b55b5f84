"""Store a user's w (tensor or dict) and delta (tensor or list) in one flat vector each.

Inside the solvers everything is a flat vector, so that an update reads like the paper's. Only the coupling, f and g
see the user's shapes, through views.
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
    """Some of the blocks: as a tensor for the coupling, and as numbers where blocks are treated one by one."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.count = tensor, len(tensor)

    @cached_property
    def numbers(self) -> list[int]:
        """Convert the tensor to a list of block numbers."""
        return [int(i) for i in self.tensor]


@dataclass(frozen=True)
class WeightLayout:
    """The layout of w as one vector: a tensor of some shape, or named tensors end to end."""

    shapes: tuple[Size, ...]
    names: tuple[str, ...] | None  # None: a single tensor

    @staticmethod
    def of(w: Tensor | Mapping[str, Tensor]) -> "WeightLayout":
        """Return the layout of a user's w0."""
        if isinstance(w, Tensor):
            return WeightLayout((w.shape,), None)
        if not isinstance(w, Mapping) or not w or not all(isinstance(v, Tensor) for v in w.values()):
            raise InputError("w0-type", got=_describe(w))
        return WeightLayout(tuple(v.shape for v in w.values()), tuple(w))

    def pack(self, w: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Copy w into a new flat vector."""
        pieces = self._ordered(w)
        _check_dtypes("w0", pieces)
        if tuple(p.shape for p in pieces) != self.shapes:
            got, wanted = [tuple(p.shape) for p in pieces], [tuple(s) for s in self.shapes]
            raise InputError("w-shapes", got=got, wanted=wanted)
        return torch.cat([p.detach().reshape(-1) for p in pieces])

    def flat(self, w: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Concatenate the values of w; a view if w is a single tensor."""
        return flat(self._ordered(w))

    def _ordered(self, w: Tensor | Mapping[str, Tensor]) -> list[Tensor]:
        if isinstance(w, Tensor):
            return [w]
        if self.names is None or set(w) != set(self.names):
            raise InputError("w-keys", got=sorted(w), names=sorted(self.names or ()))
        return [w[name] for name in self.names]

    def pieces(self, vector: Tensor) -> list[Tensor]:
        """Split a vector into views, one per tensor of w."""
        if self.names is None:
            return [shaped(vector, self.shapes[0])]
        split = vector.split([shape.numel() for shape in self.shapes])
        return [piece.view(shape) for piece, shape in zip(split, self.shapes, strict=True)]

    def form(self, pieces: Sequence[Tensor]) -> Weights:
        """Return the pieces in the user's form: a tensor or a dict."""
        return pieces[0] if self.names is None else dict(zip(self.names, pieces, strict=True))

    def unpack(self, vector: Tensor) -> Weights:
        """Return views of a vector in the user's form."""
        return self.form(self.pieces(vector))


@dataclass(frozen=True)
class BlockLayout:
    """The layout of delta as one vector: n blocks end to end, all of one shape (a tensor) or different (a list)."""

    shapes: tuple[Size, ...]
    offsets: tuple[int, ...]
    stacked: bool
    device: torch.device

    @staticmethod
    def of(delta: Tensor | Sequence[Tensor]) -> "BlockLayout":
        """Return the layout of a user's delta0."""
        if isinstance(delta, Tensor):
            if delta.dim() == 0 or len(delta) == 0:
                raise InputError("delta0-shape", shape=tuple(delta.shape))
            shapes = (delta.shape[1:],) * len(delta)
        elif isinstance(delta, Sequence) and len(delta) and all(isinstance(d, Tensor) for d in delta):
            shapes = tuple(d.shape for d in delta)
        else:
            raise InputError("delta0-type", got=_describe(delta))
        offsets = tuple(accumulate((shape.numel() for shape in shapes), initial=0))
        return BlockLayout(shapes, offsets, isinstance(delta, Tensor), delta[0].device)

    @property
    def n(self) -> int:
        """The number of blocks."""
        return len(self.shapes)

    @cached_property
    def all(self) -> Index:
        """The index of all blocks."""
        return Index(torch.arange(self.n, device=self.device))

    @cached_property
    def each(self) -> list[Index]:
        """The index of each block alone."""
        return [Index(row) for row in self.all.tensor.split(1)]

    def pack(self, delta: Tensor | Sequence[Tensor]) -> Tensor:
        """Copy delta into a new flat vector."""
        pieces = list(delta)
        _check_dtypes("delta0", pieces)
        if tuple(p.shape for p in pieces) != self.shapes:
            raise InputError("delta-shapes", blocks=len(pieces), n=self.n, shapes=[tuple(p.shape) for p in pieces[:3]])
        return torch.cat([p.detach().reshape(-1) for p in pieces])

    def block(self, vector: Tensor, i: int) -> Tensor:
        """Return a flat view of block i of a full delta."""
        return vector[self.offsets[i] : self.offsets[i + 1]]

    def others(self, vector: Tensor, i: int, scratch: Tensor) -> Tensor:
        """Copy all blocks but i of a full delta, end to end, into scratch memory of delta's size."""
        size = vector.numel() - self.shapes[i].numel()
        return torch.cat((vector[: self.offsets[i]], vector[self.offsets[i + 1] :]), out=scratch[:size])

    def form(self, rows: Tensor, index: Index) -> Blocks:
        """Return views of the flat rows of the blocks in index, in the user's form."""
        if self.stacked:
            return rows.view(index.count, *self.shapes[0])
        shapes = [self.shapes[i] for i in index.numbers]
        split = rows.split([shape.numel() for shape in shapes])
        return [piece.view(shape) for piece, shape in zip(split, shapes, strict=True)]


def shaped(vector: Tensor, shape: Size) -> Tensor:
    """Return a vector in this shape; itself if the shape is flat, as a view costs as much as a sum of 1,000 numbers."""
    return vector if len(shape) == 1 else vector.view(shape)


def flat(values: Tensor | Sequence[Tensor] | Mapping[str, Tensor]) -> Tensor:
    """Concatenate tensors to one vector; a view if there is only one."""
    if isinstance(values, Tensor):
        return values if values.dim() == 1 else values.reshape(-1)
    pieces = list(values.values()) if isinstance(values, Mapping) else values
    return pieces[0].reshape(-1) if len(pieces) == 1 else torch.cat([p.reshape(-1) for p in pieces])


def _check_dtypes(name: str, pieces: Sequence[Tensor]) -> None:
    kinds = {(p.dtype, p.device) for p in pieces}
    if len(kinds) > 1 or not pieces[0].is_floating_point():
        found = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
        raise InputError("start-dtype", name=name, got=found)


def _describe(value: object) -> str:
    return type(value).__name__ + (" (empty)" if isinstance(value, Sequence | Mapping) and not value else "")
