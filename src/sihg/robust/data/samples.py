"""Labelled samples in memory: what every source gives and everything else takes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from sihg.core.draw import generator
from sihg.errors import InputError

FLOATS = (torch.float32, torch.float64)


@dataclass(frozen=True, eq=False)
class Samples:
    """A labelled data set in memory; images stay uint8, where a value v stands for v / 255."""

    x: Tensor  # (n, ...) uint8, float32 or float64
    y: Tensor  # (n,) int64, 0 .. len(classes) - 1
    classes: tuple[str, ...]
    name: str

    def __len__(self) -> int:
        return len(self.y)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])

    def take(self, index: Tensor | slice) -> "Samples":
        """Some of the samples."""
        return replace(self, x=self.x[index], y=self.y[index])

    def floats(self, index: Tensor | slice = slice(None)) -> Tensor:
        """Some of x as the models see it: uint8 as float32 in [0, 1], floats as they are."""
        x = self.x[index]
        return x.to(torch.float32).div_(255) if x.dtype == torch.uint8 else x


def as_samples(data: object, *, classes: Sequence[str] | None = None, name: str = "data") -> Samples:
    """Samples from Samples, from a torch Dataset of pairs (x, y), or from a pair of tensors or arrays (x, y).

    Class names come from `classes`, else from the data set's own `classes`, else they are the labels themselves.
    """
    if isinstance(data, Samples):
        return _checked(data.x, data.y, data.classes if classes is None else classes, data.name)
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        data = data.tensors
    if isinstance(data, Dataset):
        own = getattr(data, "classes", None)
        return _checked(*_stacked(data), own if classes is None else classes, name)
    if isinstance(data, tuple | list) and len(data) == 2:
        return _checked(_tensor(data[0], "x"), _tensor(data[1], "y"), classes, name)
    raise InputError(
        f"a {type(data).__name__} is not a data set: give Samples, a torch Dataset of pairs (x, y), or a pair (x, y)"
    )


def stratified_split(samples: Samples, n: int, seed: int = 0) -> tuple[Samples, Samples]:
    """Split off `n` samples, each class in proportion; the same samples and seed give the same split, in order."""
    if not 0 < n < len(samples):
        raise InputError(f"cannot hold out {n} of the {len(samples)} samples of {samples.name}: give more samples")
    chosen = torch.zeros(len(samples), dtype=torch.bool)
    chosen[stratified_rows(samples, n, seed)] = True
    return samples.take((~chosen).nonzero().flatten()), samples.take(chosen.nonzero().flatten())


def stratified_subset(samples: Samples, n: int | None, seed: int = 0) -> Samples:
    """Take `n` samples, each class in proportion, in order; None takes all."""
    if n is None or n == len(samples):
        return samples
    if n != int(n) or not 0 < n < len(samples):
        raise InputError(
            f"cannot take {n} of the {len(samples)} samples of {samples.name}: give 1 to {len(samples)}, or leave it "
            "out for all",
            code="samples-range",
            samples=n,
        )
    return stratified_split(samples, n, seed)[1]


def stratified_rows(samples: Samples, n: int, seed: int) -> Tensor:
    """The places of `n` samples, each class in proportion, in order; those for a smaller number are among them."""
    place = torch.empty(len(samples), dtype=torch.float64)
    for label in samples.y.unique().tolist():
        rows = (samples.y == label).nonzero().flatten()
        order = torch.randperm(len(rows), generator=generator(seed, f"held out/{label}"))
        place[rows] = (order.double() + 0.5) / len(rows)
    return place.argsort(stable=True)[:n].sort().values


def check_classes(train: Samples) -> None:
    """Refuse training samples that have none of some class, which nobody could learn."""
    missing = (train.y.bincount(minlength=len(train.classes)) == 0).nonzero().flatten().tolist()
    if missing:
        raise InputError(
            f"{train.name}: class {train.classes[missing[0]]!r} has no sample for training: add some, or leave the "
            "class out"
        )


def pixels(image: Image.Image) -> NDArray[np.uint8]:
    """A PIL image as uint8 (channels, height, width): grey ones have one channel, all others three."""
    if image.mode.startswith(("I", "F")):
        raise InputError(f"an image of mode {image.mode} has more than 8 bits a channel: convert it to L or RGB")
    array = np.asarray(image.convert("L" if image.mode in ("1", "L", "LA") else "RGB"))
    return np.array(array[None] if array.ndim == 2 else array.transpose(2, 0, 1), order="C")


def _stacked(data: Any) -> tuple[Tensor, Tensor]:
    """All items of a Dataset; the first shape is everybody's."""
    if not hasattr(data, "__len__"):
        raise InputError(f"{type(data).__name__} has no length: give a map-style Dataset")
    xs: list[Tensor] = []
    ys: list[Tensor] = []
    for row in range(len(data)):
        item = data[row]
        if not (isinstance(item, tuple | list) and len(item) == 2):
            raise InputError(f"row {row} of the Dataset is a {type(item).__name__}, not a pair (x, y): return pairs")
        x = (
            torch.from_numpy(pixels(item[0]))
            if isinstance(item[0], Image.Image)
            else _tensor(item[0], f"x of row {row}")
        )
        y = _tensor(item[1], f"y of row {row}")
        if y.numel() != 1:
            raise InputError(f"y of row {row} has shape {tuple(y.shape)}: give one class number a sample")
        if xs and (x.shape != xs[0].shape or x.dtype != xs[0].dtype):
            raise InputError(
                f"x of row {row} is {x.dtype} {tuple(x.shape)}, that of row 0 is {xs[0].dtype} {tuple(xs[0].shape)}: "
                "make all samples alike"
            )
        xs.append(x)
        ys.append(y.flatten())
    if not xs:
        raise InputError("the Dataset is empty: give at least one sample")
    return torch.stack(xs), torch.cat(ys)


def _tensor(value: object, what: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    try:
        array = np.asarray(value)
        return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), copy=True))
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} cannot be read as numbers ({error}): give a tensor or an array") from None


def _checked(x: Tensor, y: Tensor, names: Sequence[str] | None, name: str) -> Samples:
    """The samples, if every row of them can be used."""
    if x.ndim < 1 or y.ndim != 1 or len(x) != len(y):
        raise InputError(
            f"{name}: x has shape {tuple(x.shape)} and y {tuple(y.shape)}: give (n, ...) and (n,) with the same n"
        )
    if len(y) == 0:
        raise InputError(f"{name} is empty: give at least one sample")
    if x[0].numel() == 0:
        raise InputError(f"{name}: x has shape {tuple(x.shape)}: a sample needs at least one feature")
    if x.dtype in (torch.float16, torch.bfloat16):
        x = x.float()
    if x.dtype != torch.uint8 and x.dtype not in FLOATS:
        raise InputError(f"{name}: x is {x.dtype}: give uint8 from 0 to 255, or floats")
    if x.dtype != torch.uint8:
        _every(x.isfinite().reshape(len(x), -1), x.reshape(len(x), -1), f"{name}: x", "values must be finite")
    if y.is_complex():
        raise InputError(f"{name}: y is {y.dtype}: give whole numbers")
    if not y.is_floating_point():
        y = y.to(torch.int64)
    whole = y.isfinite() & (y == y.trunc()) & (y >= 0) if y.is_floating_point() else y >= 0
    _every(whole, y, f"{name}: label", "labels are whole numbers from 0 on")
    y = y.to(torch.int64)
    if names is None:
        names = [str(label) for label in range(int(y.max()) + 1)]
    _every(y < len(names), y, f"{name}: label", f"there are {len(names)} classes, 0 to {len(names) - 1}")
    return Samples(x.contiguous(), y.contiguous(), tuple(map(str, names)), name)


def _every(good: Tensor, values: Tensor, what: str, rule: str) -> None:
    """Name the first row, and its value, where `good` does not hold."""
    if good.all():
        return
    first = tuple((~good).nonzero()[0].tolist())
    raise InputError(f"{what} of row {first[0]} is {values[first].item()}: {rule}")
