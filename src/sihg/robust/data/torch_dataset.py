"""A torch Dataset as rows: its labels, whether it is random, and items whose randomness is (seed, epoch, row)."""

import random
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Subset

from sihg.core.draw import generator
from sihg.errors import InputError, SihgError
from sihg.robust.data.lazy_rows import RowSource, check_same_shape
from sihg.robust.data.locations import DataWarning
from sihg.robust.data.pixels import as_tensor, from_image

LABEL_ATTRIBUTES = ("targets", "labels")  # where Datasets keep the labels of all items
HALF_FLOATS = (torch.float16, torch.bfloat16)
_LABELS_READ: "weakref.WeakKeyDictionary[Any, Tensor]" = weakref.WeakKeyDictionary()


class ItemRows(RowSource):
    """The items of a map-style Dataset, read one by one. Before each, the generators that it may use are seeded.

    Args:
        dataset: The Dataset of pairs (x, y).
    """

    runs_user_code = True

    def __init__(self, dataset: Any) -> None:
        if not hasattr(dataset, "__len__"):
            raise InputError("dataset-length", type=type(dataset).__name__)
        if len(dataset) == 0:
            raise InputError("dataset-empty")
        self.dataset = dataset
        self.labels: Tensor | None = None
        first, state = self._watched(seed=0)
        again, _ = self._watched(seed=0)
        other, other_state = self._watched(seed=1)
        self.shape, self.dtype = tuple(first[0].shape), first[0].dtype
        self.first_label = first[1]
        self.is_repeatable = _equal(first, again)
        # An item that seeds the generators itself ends in the same state from any other: it is not random.
        drawn = any(now != start and now != then for (start, now), (_, then) in zip(state, other_state, strict=True))
        self.is_random = drawn or not self.is_repeatable or not _equal(first, other)

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, rows: Sequence[int], seed: int, epoch: int) -> Tensor:
        """Read these items; of a known set, an item must have its label."""
        out = torch.empty((len(rows), *self.shape), dtype=self.dtype)
        with own_generators():
            for place, (row, (x, y)) in enumerate(zip(rows, self._items(rows, seed, epoch), strict=True)):
                check_same_shape(x, row, self.shape, self.dtype)
                if self.labels is not None and not bool(y == self.labels[row]):
                    raise InputError("dataset-label", row=row, label=y.item(), known=self.labels[row].item())
                out[place] = x
        return out

    def read_all(self) -> tuple[Tensor, Tensor]:
        """Read every item once, in order, and stack what they hold."""
        xs, ys = [], []
        with own_generators():
            for row, (x, y) in enumerate(self._items(range(len(self)), 0, 0)):
                check_same_shape(x, row, self.shape, self.dtype)
                xs.append(x)
                ys.append(y)
        return torch.stack(xs), _joined(ys)

    def read_labels(self) -> Tensor:
        """Read every item once for its label; a later call for the same Dataset reads nothing."""
        try:
            known = _LABELS_READ.get(self.dataset)
        except TypeError:  # such as a dataclass, which cannot be hashed
            return self._labels_of_items()
        if known is None or len(known) != len(self):
            known = _LABELS_READ[self.dataset] = self._labels_of_items()
        return known

    def _labels_of_items(self) -> Tensor:
        from rich.console import Console
        from rich.progress import track

        text = f"the Dataset has no list `targets`, so its {len(self):,} items are read once for their labels"
        warnings.warn(text, DataWarning, stacklevel=6)
        console = Console(stderr=True)
        items = self._items(range(len(self)), 0, 0)
        shown = track(items, "labels of the Dataset", len(self), console=console, disable=not console.is_terminal)
        with own_generators():
            return _joined([y for _, y in shown])

    def _items(self, rows: Sequence[int], seed: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Read items, each after seeding the generators, whose states the caller keeps."""
        for row in rows:
            seed_generators(generator(seed, "item", epoch, row).initial_seed())
            yield self._item(row)

    def _item(self, row: int) -> tuple[Tensor, Tensor]:
        try:
            item = self.dataset[row]
        except SihgError:
            raise
        except Exception as error:
            raise InputError("dataset-failed", row=row, type=type(error).__name__, error=_line(error)) from error
        if not (isinstance(item, tuple | list) and len(item) == 2):
            raise InputError("dataset-item", row=row, type=type(item).__name__)
        x = from_image(item[0], row) if isinstance(item[0], Image.Image) else as_tensor(item[0], f"x of row {row}")
        y = as_tensor(item[1], f"y of row {row}")
        if y.numel() != 1:
            raise InputError("label-shape", row=row, shape=tuple(y.shape))
        return x.float() if x.dtype in HALF_FLOATS else x, y.flatten()

    def _watched(self, seed: int) -> tuple[tuple[Tensor, Tensor], list[tuple[bytes, bytes]]]:
        """Read row 0 after seeding, and return it with the state of each generator before and after."""
        with own_generators():
            seed_generators(generator(seed, "item").initial_seed())
            before = _generator_states()
            item = self._item(0)
            return item, list(zip(before, _generator_states(), strict=True))


def known_labels(dataset: Any) -> Tensor | None:
    """Return the labels that a Dataset keeps beside its items, without reading one; None if it keeps none."""
    if isinstance(dataset, Subset):
        whole = known_labels(dataset.dataset)
        return None if whole is None else whole[torch.as_tensor(dataset.indices, dtype=torch.int64)]
    for name in LABEL_ATTRIBUTES:
        try:
            labels = as_tensor(getattr(dataset, name), name)
        except (AttributeError, InputError):
            continue
        if labels.shape == (len(dataset),) and not labels.is_complex():
            return labels
    return None


def seed_generators(seed: int) -> None:
    """Seed the generators that a transform may draw from: torch's, numpy's and Python's own."""
    torch.default_generator.manual_seed(seed)  # torch.manual_seed also looks for other devices, in milliseconds
    np.random.seed(seed % 2**32)  # noqa: NPY002 - it is the one that transforms use
    random.seed(seed)


@contextmanager
def own_generators() -> Iterator[None]:
    """Give the generators back their states."""
    before = torch.default_generator.get_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        yield
    finally:
        torch.default_generator.set_state(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        random.setstate(before[2])


def _generator_states() -> list[bytes]:
    torch_state = torch.default_generator.get_state().numpy().tobytes()
    return [torch_state, repr(np.random.get_state(legacy=False)).encode(), repr(random.getstate()).encode()]  # noqa: NPY002


def _equal(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> bool:
    """Return whether two readings of an item are the same, values that are not finite too."""
    return all(
        a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(one, other, strict=True)
    )


def _joined(labels: Sequence[Tensor]) -> Tensor:
    try:
        return torch.cat(list(labels))
    except RuntimeError as error:  # torch does not mix uint64 with other types
        raise InputError("not-numbers", what="y", error=_line(error)) from error


def _line(error: Exception) -> str:
    return (str(error) or repr(error)).split("\n")[0]
