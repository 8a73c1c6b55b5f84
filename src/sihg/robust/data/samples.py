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
MAX_UNNAMED_CLASSES = 100_000  # without names of the classes; one label of 1e9 would make 1e9 classes
MAX_PIXELS = 2**26  # of an image; a file of a few bytes can announce any number


@dataclass(frozen=True, eq=False)
class Samples:
    """A labelled data set in memory. Images stay uint8, where a value v stands for v / 255.

    Args:
        x: The samples, (n, ...), uint8, float32 or float64.
        y: The labels, (n,) int64, from 0 to len(classes) - 1.
        classes: The names of the classes.
        name: What messages call the set.
    Example:
        >>> samples = as_samples((torch.zeros(3, 2), [0, 1, 1]))
        >>> len(samples), samples.shape, samples.classes
        (3, (2,), ('0', '1'))
    """

    x: Tensor
    y: Tensor
    classes: tuple[str, ...]
    name: str

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        return f"Samples({self.name!r}, {len(self)} of shape {self.shape}, {len(self.classes)} classes)"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])

    def take(self, index: Tensor | slice) -> "Samples":
        """Return the samples at these rows."""
        return replace(self, x=self.x[index], y=self.y[index])

    def floats(self, index: Tensor | slice = slice(None)) -> Tensor:
        """Return rows of x as models see them: uint8 as float32 in [0, 1], floats unchanged."""
        x = self.x[index]
        return x.to(torch.float32).div_(255) if x.dtype == torch.uint8 else x


def as_samples(data: object, *, classes: Sequence[str] | None = None, name: str = "data") -> Samples:
    """Convert data to Samples and check every row.

    Args:
        data: Samples, a torch Dataset of pairs (x, y), or a pair (x, y) of tensors or arrays.
        classes: The names of the classes (default: the data set's own `classes`, else the labels).
        name: What messages call the set.
    Returns:
        The samples.
    Raises:
        InputError: If a row cannot be used; the message names it.
    Example:
        >>> as_samples((torch.tensor([[0], [255]], dtype=torch.uint8), [0, 1])).floats().tolist()
        [[0.0], [1.0]]
    """
    if isinstance(data, Samples):
        return _checked(data.x, data.y, data.classes if classes is None else classes, data.name)
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        data = data.tensors
    if isinstance(data, Dataset):
        own = getattr(data, "classes", None)
        return _checked(*_stack_items(data), own if classes is None else classes, name)
    if isinstance(data, tuple | list) and len(data) == 2:
        return _checked(_as_tensor(data[0], "x"), _as_tensor(data[1], "y"), classes, name)
    raise InputError("not-a-data-set", type=type(data).__name__)


def stratified_split(samples: Samples, n: int, seed: int = 0) -> tuple[Samples, Samples]:
    """Split off `n` samples, each class in proportion; the same samples and seed give the same split.

    Args:
        samples: The samples to split.
        n: How many to split off.
        seed: Decides which.
    Returns:
        The other samples and the `n` samples, both in their old order.
    Raises:
        InputError: Unless 0 < n < len(samples) ("split-range").
    Example:
        >>> rest, held_out = stratified_split(as_samples((torch.zeros(6, 2), [0, 0, 0, 0, 1, 1])), 3)
        >>> held_out.y.tolist()
        [0, 0, 1]
    """
    if not 0 < n < len(samples):
        raise InputError("split-range", n=n, count=len(samples), name=samples.name)
    chosen = torch.zeros(len(samples), dtype=torch.bool)
    chosen[stratified_rows(samples, n, seed)] = True
    return samples.take((~chosen).nonzero().flatten()), samples.take(chosen.nonzero().flatten())


def stratified_subset(samples: Samples, n: int | None, seed: int = 0) -> Samples:
    """Take `n` samples, each class in proportion.

    Args:
        samples: The samples to choose from.
        n: How many to take; None takes all.
        seed: Decides which.
    Returns:
        The chosen samples, in their old order.
    Raises:
        InputError: Unless 0 < n <= len(samples) ("samples-range").
    Example:
        >>> stratified_subset(as_samples((torch.zeros(6, 2), [0, 0, 0, 0, 1, 1])), 3).y.tolist()
        [0, 0, 1]
    """
    if n is None or n == len(samples):
        return samples
    if n != int(n) or not 0 < n < len(samples):
        raise InputError("samples-range", samples=n, count=len(samples), name=samples.name)
    return stratified_split(samples, n, seed)[1]


def stratified_rows(samples: Samples, n: int, seed: int) -> Tensor:
    """Choose `n` rows, each class in proportion, in order; the rows for a smaller n are among them."""
    place = torch.empty(len(samples), dtype=torch.float64)
    for label in samples.y.unique().tolist():
        rows = (samples.y == label).nonzero().flatten()
        order = torch.randperm(len(rows), generator=generator(seed, f"held out/{label}"))
        place[rows] = (order.double() + 0.5) / len(rows)
    return place.argsort(stable=True)[:n].sort().values


def check_classes(train: Samples) -> None:
    """Raise InputError if a class has no training sample."""
    missing = (train.y.bincount(minlength=len(train.classes)) == 0).nonzero().flatten().tolist()
    if missing:
        name = train.classes[missing[0]]
        raise InputError("training-class-missing", label=name, name=train.name)


def check_alike(train: Samples, test: Samples) -> None:
    """Raise InputError unless training and test samples have the same shape and type."""
    (a, b), (c, d) = ((samples.shape, samples.x.dtype) for samples in (train, test))
    if (a, b) != (c, d):
        raise InputError("train-test-differ", name=train.name, train_dtype=b, train_shape=a, test_dtype=d, test_shape=c)


def as_pixels(image: Image.Image) -> NDArray[np.uint8]:
    """Convert a PIL image to uint8 (channels, height, width): one channel if it is grey, else three."""
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise InputError("image-pixels", width=width, height=height, limit=MAX_PIXELS)
    if image.mode.startswith(("I", "F")):
        raise InputError("image-bits", mode=image.mode)
    array = np.asarray(image.convert("L" if image.mode in ("1", "L", "LA") else "RGB"))
    return np.array(array[None] if array.ndim == 2 else array.transpose(2, 0, 1), order="C")


def _stack_items(data: Any) -> tuple[Tensor, Tensor]:
    """Stack all items of a Dataset, which must be alike."""
    if not hasattr(data, "__len__"):
        raise InputError("dataset-length", type=type(data).__name__)
    xs: list[Tensor] = []
    ys: list[Tensor] = []
    for row in range(len(data)):
        item = data[row]
        if not (isinstance(item, tuple | list) and len(item) == 2):
            raise InputError("dataset-item", row=row, type=type(item).__name__)
        x = _from_image(item[0], row) if isinstance(item[0], Image.Image) else _as_tensor(item[0], f"x of row {row}")
        y = _as_tensor(item[1], f"y of row {row}")
        if y.numel() != 1:
            raise InputError("label-shape", row=row, shape=tuple(y.shape))
        if xs and (x.shape != xs[0].shape or x.dtype != xs[0].dtype):
            raise InputError(
                "samples-differ",
                row=row,
                dtype=x.dtype,
                shape=tuple(x.shape),
                first_dtype=xs[0].dtype,
                first_shape=tuple(xs[0].shape),
            )
        xs.append(x)
        ys.append(y.flatten())
    if not xs:
        raise InputError("dataset-empty")
    try:
        return torch.stack(xs), torch.cat(ys)
    except RuntimeError as error:  # torch does not mix uint64 with other types
        raise InputError("not-numbers", what="y", error=str(error).split("\n")[0]) from error


def _from_image(image: Image.Image, row: int) -> Tensor:
    """Convert an image of a Dataset, which Pillow may decode only now."""
    if image.format == "EPS":  # decoded by another program, Ghostscript
        raise InputError("image-unreadable", path=f"x of row {row}", reason="EPS is a program, not pixels")
    try:
        return torch.from_numpy(as_pixels(image))
    except InputError as error:
        raise error.within(f"x of row {row}") from None
    except Exception as error:  # a broken image may raise anything
        raise InputError("image-unreadable", path=f"x of row {row}", reason=error) from error


def _as_tensor(value: object, what: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    try:
        array = np.asarray(value)
        return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), copy=True))
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError("not-numbers", what=what, error=error) from None


def _checked(x: Tensor, y: Tensor, names: Sequence[str] | None, name: str) -> Samples:
    """Return the samples if every row can be used."""
    shapes = f"{name}: x has shape {tuple(x.shape)} and y {tuple(y.shape)}"
    if x.ndim < 1 or y.ndim != 1 or len(x) != len(y):
        raise InputError("sample-shapes", shapes=shapes)
    if len(y) == 0:
        raise InputError("samples-empty", name=name)
    if x[0].numel() == 0:
        raise InputError("no-features", shapes=shapes)
    if x.dtype in (torch.float16, torch.bfloat16):
        x = x.float()
    if x.dtype != torch.uint8 and x.dtype not in FLOATS:
        raise InputError("sample-type", name=name, dtype=x.dtype)
    if x.dtype != torch.uint8:
        values = x.reshape(len(x), -1)
        if bad := _first_bad(values.isfinite(), values):
            raise InputError("sample-not-finite", row=bad[0], name=name, bad=bad[1])
    if y.is_complex():
        raise InputError("label-type", name=name, dtype=y.dtype)
    wide = y if y.is_floating_point() else y.to(torch.int64)  # uint64 from 2**63 on becomes negative
    whole = wide.isfinite() & (wide == wide.trunc()) & (wide >= 0) if y.is_floating_point() else wide >= 0
    if bad := _first_bad(whole, y):
        raise _label_error(name, *bad, "labels are integers from 0 on")
    count = MAX_UNNAMED_CLASSES if names is None else len(names)
    if bad := _first_bad(wide < count, y):  # as floats too, since 1e30 has no int64
        what = "more need the names of the classes" if names is None else f"there are {count} classes"
        raise _label_error(name, *bad, f"labels are 0 to {count - 1}, {what}")
    y = wide.to(torch.int64)
    if names is None:
        names = [str(label) for label in range(int(y.max()) + 1)]
    return Samples(x.contiguous(), y.contiguous(), tuple(map(str, names)), name)


def _first_bad(good: Tensor, values: Tensor) -> tuple[int, float] | None:
    """Return the first row where `good` is false, and its value."""
    if good.all():
        return None
    place = tuple((~good).nonzero()[0].tolist())
    return place[0], values[place].item()


def _label_error(name: str, row: int, label: float, rule: str) -> InputError:
    return InputError("sample-label-range", row=row, name=name, label=label, rule=rule)
