"""A torch DataLoader as a data set: its Dataset, where the loader gives all of that, else its batches, read once."""

import warnings
from collections.abc import Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, Subset, default_collate

from sihg.errors import InputError, SihgError
from sihg.robust.data.available_memory import max_memory
from sihg.robust.data.locations import DataWarning
from sihg.robust.data.pixels import as_tensor


def unpack_loader(loader: "DataLoader[Any]", name: str) -> object:
    """Return the Dataset behind a loader, or all its batches as a pair (x, y).

    A Dataset can be read by row, so that samples larger than memory stay where they are. A loader that shuffles gives
    the samples in the order of its Dataset, with a warning. One that does more (draws or collates in its own way, or
    reads a stream) is read once.
    """
    dataset: Any = loader.dataset
    sampler, size = loader.sampler, loader.batch_size
    plain = size is not None and loader.collate_fn is default_collate and isinstance(dataset, Sized)
    if plain and type(sampler) is SequentialSampler:
        kept = len(dataset) // (size or 1) * (size or 1) if loader.drop_last else len(dataset)
        return dataset if kept == len(dataset) else Subset(dataset, range(kept))
    shuffles = type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(dataset)
    if plain and shuffles and not loader.drop_last:
        text = "the DataLoader shuffles: samples are taken in the order of its Dataset"
        warnings.warn(f"{name}: {text}", DataWarning, stacklevel=4)
        return dataset
    if isinstance(sampler, RandomSampler):
        text = "the DataLoader draws its samples, so another call takes others: give its Dataset, or a fixed subset"
        warnings.warn(f"{name}: {text}", DataWarning, stacklevel=4)
    return _read_batches(loader)


def _read_batches(loader: "DataLoader[Any]") -> tuple[Tensor, Tensor]:
    """Read every batch once, and join them; a loader without batches gives single samples."""
    xs: list[Tensor] = []
    ys: list[Tensor] = []
    batches, limit, size = iter(loader), max_memory(), 0
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            break
        except SihgError:
            raise
        except Exception as error:  # the user's Dataset may raise anything
            why = (str(error) or repr(error)).split("\n")[0]
            raise InputError("loader-failed", number=len(xs), type=type(error).__name__, error=why) from error
        if not (isinstance(batch, tuple | list) and len(batch) == 2):
            raise InputError("loader-batch", number=len(xs), type=type(batch).__name__)
        x, y = (as_tensor(part, f"{what} of batch {len(xs)}") for part, what in zip(batch, "xy", strict=True))
        if loader.batch_sampler is None and y.dim() == 0:
            x, y = x[None], y[None]
        if xs and (x.shape[1:] != xs[0].shape[1:] or x.dtype != xs[0].dtype):
            found = {"dtype": x.dtype, "shape": tuple(x.shape[1:])}
            first = {"first_dtype": xs[0].dtype, "first_shape": tuple(xs[0].shape[1:])}
            raise InputError("samples-differ", row=sum(map(len, ys)), **found, **first)
        size += x.numel() * x.element_size()
        if size > limit:
            raise InputError("loader-memory", count=sum(map(len, ys)), limit=limit)
        xs.append(x)
        ys.append(y)
    if not xs:
        raise InputError("dataset-empty")
    return torch.cat(xs), torch.cat(ys)
