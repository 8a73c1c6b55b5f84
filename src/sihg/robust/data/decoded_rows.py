"""Rows that are decoded one by one, images or arrays: the first ones decide the shape, all others must have it."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sihg.robust.data.lazy_rows import RowSource, check_same_shape
from sihg.robust.data.pixels import as_single, channels_first, with_channels

SHAPE_ROWS = 64  # spread evenly, whose channels decide those of all images
Decoded = NDArray[Any]


class DecodedRows(RowSource):
    """A source whose rows are decoded by `decode`. Grey images among colour images get three channels."""

    @abstractmethod
    def decode(self, rows: Sequence[int]) -> list[Decoded]:
        """Return each row as an array: an image (channels, height, width), or any other."""

    def learn_shape(self) -> None:
        """Decode a few rows; from then on `shape` and `dtype` are known."""
        spread = np.linspace(0, len(self) - 1, min(len(self), SHAPE_ROWS)).round().astype(int).tolist()
        examples = self.decode(spread)
        like = [x for x in examples if x.ndim == 3 and x.shape[1:] == examples[0].shape[1:]]
        first = max(like or examples[:1], key=len)
        self.shape, self.dtype = first.shape, torch.from_numpy(first).dtype

    def read(self, rows: Sequence[int], seed: int, epoch: int) -> Tensor:  # noqa: ARG002
        """Decode these rows."""
        out = torch.empty((len(rows), *self.shape), dtype=self.dtype)
        for place, (row, x) in enumerate(zip(rows, self.decode(rows), strict=True)):
            if x.ndim == 3 and len(self.shape) == 3:
                x = np.array(with_channels(x, self.shape[0]))
            tensor = torch.from_numpy(x)
            check_same_shape(tensor, row, self.shape, self.dtype)
            out[place] = tensor
        return out


def as_row(array: Decoded) -> Decoded:
    """Return an array of one sample as those of .npz files: channels first, float32 for other floats."""
    if array.dtype.kind not in "uf" or array.ndim == 0:
        raise ValueError(f"{array.dtype} of shape {array.shape} is no sample")
    array = channels_first(as_single(array[None]))[0]
    array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
    return array.astype(np.float32) if array.dtype == np.float16 else array
