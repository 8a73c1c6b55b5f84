"""Labelled samples, in memory or read when they are needed: what every source gives and everything else takes."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from sihg.core.draw import generator
from sihg.errors import InputError
from sihg.robust.data.array_files import MappedRows
from sihg.robust.data.available_memory import max_memory
from sihg.robust.data.lazy_rows import Index, LazyRows, RowSource, as_floats
from sihg.robust.data.loader import unpack_loader
from sihg.robust.data.locations import DataWarning
from sihg.robust.data.pixels import as_tensor
from sihg.robust.data.reading import read_ahead
from sihg.robust.data.torch_dataset import HALF_FLOATS, ItemRows, known_labels
from sihg.robust.threat import Bounds

FLOATS = (torch.float32, torch.float64)
MAX_UNNAMED_CLASSES = 100_000  # without names of the classes; one label of 1e9 would make 1e9 classes
BYTES_PER_READ = 2**24  # of samples that are read into memory


@dataclass(frozen=True, eq=False)
class Samples:
    """A labelled data set. Images stay uint8, where a value v stands for v / 255.

    Args:
        x: The samples, (n, ...), uint8, float32 or float64. If they are not in memory (`lazy`), it is a tensor on the
            device "meta", which has their shape and type and no values: read them with `floats` or `reader`.
        y: The labels, (n,) int64, from 0 to len(classes) - 1.
        classes: The names of the classes.
        name: What messages call the set.
        lazy: What reads the samples when they are needed; None if they are in x.
    Example:
        >>> samples = as_samples((torch.zeros(3, 2), [0, 1, 1]))
        >>> len(samples), samples.shape, samples.classes
        (3, (2,), ('0', '1'))
    """

    x: Tensor
    y: Tensor
    classes: tuple[str, ...]
    name: str
    lazy: LazyRows | None = None

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        return f"Samples({self.name!r}, {len(self)} of shape {self.shape}, {len(self.classes)} classes)"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])

    @property
    def is_random(self) -> bool:
        """Whether reading a sample again may give another: a torch Dataset with random transforms."""
        return self.lazy is not None and self.lazy.source.is_random

    def take(self, index: Tensor | slice) -> "Samples":
        """Return the samples at these rows; nothing is read."""
        if self.lazy is None:
            return replace(self, x=self.x[index], y=self.y[index])
        lazy = self.lazy.take(index)
        return replace(self, x=lazy.placeholder(), y=self.y[index], lazy=lazy)

    def floats(self, index: Index = slice(None), *, seed: int = 0, epoch: int = 0) -> Tensor:
        """Return rows of x as models see them: uint8 as float32 in [0, 1], floats unchanged.

        The seed and the epoch decide the random transforms of a torch Dataset, and nothing else.
        """
        if self.lazy is None:
            return as_floats(self.x[index])
        return self.lazy.read(index, seed, epoch, floats=True)

    def reader(self, batches: Sequence[Tensor], *, seed: int = 0, epoch: int = 0) -> Iterator[Tensor]:
        """Yield the `floats` of each batch of rows in order; samples not in memory are read ahead."""
        if self.lazy is None:
            return (self.floats(rows) for rows in batches)
        return read_ahead(self.lazy, batches, seed, epoch)

    def probe(self) -> Tensor:
        """Return x or, if it is not in memory, up to 256 rows of it, spread evenly."""
        return self.x if self.lazy is None else self.lazy.probe()

    def when_read(self, *, bounds: Bounds = None, workers: int = 0) -> "Samples":
        """Return the same samples; those not in memory are checked against bounds when read, and read by workers."""
        return self if self.lazy is None else replace(self, lazy=replace(self.lazy, bounds=bounds, workers=workers))

    def settled(self) -> "Samples":
        """Return the samples in memory if they fit, unless they are random; otherwise unchanged."""
        if self.lazy is None or self.is_random or self.lazy.bytes_in_memory > max_memory():
            return self
        x = torch.empty((len(self), *self.shape), dtype=self.x.dtype)
        chunks = torch.arange(len(self)).split(max(1, BYTES_PER_READ // max(1, self.lazy.bytes_per_row)))
        for rows, part in zip(chunks, read_ahead(self.lazy, chunks, floats=False), strict=True):
            x[rows] = part
        return replace(self, x=x, lazy=None)


def as_samples(data: object, *, classes: Sequence[str] | None = None, name: str = "data") -> Samples:
    """Convert data to Samples and check every row.

    Args:
        data: Samples, a torch Dataset of pairs (x, y) or a DataLoader of it, or a pair (x, y) of tensors or arrays.
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
    return open_samples(data, classes=classes, name=name).settled()


def open_samples(data: object, *, classes: Sequence[str] | None = None, name: str = "data") -> Samples:
    """Convert data to Samples as `as_samples` does, but leave the items of a Dataset with known labels unread.

    So a subset can be chosen first. `settled` then reads it, if it fits.
    """
    if isinstance(data, Samples):
        return _checked(data.x, data.y, data.classes if classes is None else classes, data.name, data.lazy)
    if isinstance(data, DataLoader):
        data = unpack_loader(data, name)
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        data = data.tensors
    if isinstance(data, Dataset):
        own = getattr(data, "classes", None)
        return _open_dataset(data, own if classes is None else classes, name)
    if isinstance(data, tuple | list) and len(data) == 2:
        if isinstance(data[0], np.memmap) and data[0].ndim and data[0].nbytes > max_memory():
            return lazy_samples(MappedRows(data[0]), as_tensor(data[1], "y"), classes=classes, name=name)
        return _checked(as_tensor(data[0], "x"), *_from_one_hot(as_tensor(data[1], "y"), classes, name), name)
    raise InputError("not-a-data-set", type=type(data).__name__)


def lazy_samples(source: RowSource, y: Tensor, *, classes: Sequence[str] | None, name: str) -> Samples:
    """Return samples that a source reads when they are needed; the labels are checked now."""
    lazy = LazyRows(source, torch.arange(len(source)), name)
    return _checked(lazy.placeholder(), y, classes, name, lazy)


def _open_dataset(data: Any, classes: Sequence[str] | None, name: str) -> Samples:
    """Return the items of a Dataset: in memory if that is the only way to learn the labels, and they fit."""
    source = ItemRows(data)
    if not source.is_repeatable:
        text = "draws random numbers of its own, so runs cannot be repeated bit by bit: let it draw from torch's, "
        warnings.warn(f"{name}: the Dataset {text}numpy's or Python's global generator", DataWarning, stacklevel=4)
    labels = known_labels(data)
    if labels is None or not bool(labels[0] == source.first_label):
        size = len(source) * source.dtype.itemsize * torch.Size(source.shape).numel()
        if not source.is_random and size <= max_memory():
            return _checked(*source.read_all(), classes, name)
        labels = source.read_labels()
    samples = lazy_samples(source, labels, classes=classes, name=name)
    source.labels = samples.y
    return samples


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


def _checked(x: Tensor, y: Tensor, names: Sequence[str] | None, name: str, lazy: LazyRows | None = None) -> Samples:
    """Return the samples if every row can be used; rows of x that are not in memory are checked when they are read."""
    shapes = f"{name}: x has shape {tuple(x.shape)} and y {tuple(y.shape)}"
    if x.ndim < 1 or y.ndim != 1 or len(x) != len(y):
        raise InputError("sample-shapes", shapes=shapes)
    if len(y) == 0:
        raise InputError("samples-empty", name=name)
    if x[0].numel() == 0:
        raise InputError("no-features", shapes=shapes)
    if x.dtype in HALF_FLOATS:
        x = x.float()
    if x.dtype != torch.uint8 and x.dtype not in FLOATS:
        raise InputError("sample-type", name=name, dtype=x.dtype)
    if x.dtype != torch.uint8 and lazy is None:
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
    return Samples(x.contiguous(), y.contiguous(), tuple(map(str, names)), name, lazy)


def _from_one_hot(y: Tensor, classes: Sequence[str] | None, name: str) -> tuple[Tensor, Sequence[str] | None]:
    """Return the place of the 1 in each row of one-hot labels, with as many classes as columns; others unchanged."""
    if y.ndim != 2 or y.shape[1] < 2 or not bool((((y == 0) | (y == 1)).all(1) & (y.sum(1) == 1)).all()):
        return y, classes
    warnings.warn(f"{name}: y is one-hot, so the place of the 1 is the label", DataWarning, stacklevel=4)
    return y.to(torch.uint8).argmax(1), classes or [str(label) for label in range(y.shape[1])]


def _first_bad(good: Tensor, values: Tensor) -> tuple[int, float] | None:
    """Return the first row where `good` is false, and its value."""
    if good.all():
        return None
    place = tuple((~good).nonzero()[0].tolist())
    return place[0], values[place].item()


def _label_error(name: str, row: int, label: float, rule: str) -> InputError:
    return InputError("sample-label-range", row=row, name=name, label=label, rule=rule)
