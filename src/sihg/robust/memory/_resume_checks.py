"""Checks on a resume: what a checkpoint saved of the perturbation memory, and whether its files are as they were."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sihg.errors import InputError
from sihg.robust.memory._row_format import Index, RowFormat, RowTags
from sihg.robust.memory._shards import Shards
from sihg.store.memory_files import ID_BYTES

SECTOR_BYTES = 512  # a power cut can separate what lies in two sectors


@dataclass
class Unfinished:
    """The rows that an epoch must write again after a resume, and the tags that the checkpoint has for them."""

    epoch: int
    rows: NDArray[np.bool_]  # of the owned samples, in their order
    tags: RowTags


def check_state(state: Mapping[str, Tensor], samples: Index, rows_as: RowFormat) -> tuple[NDArray[Any], Index]:
    """Return the values and tags of a `state` of these samples; raise InputError if it does not fit."""
    if missing := {"values", "tags", "eps"} - state.keys():
        raise InputError("memory-state-incomplete", names=", ".join(sorted(missing)))
    values, tags, eps = state["values"].cpu().numpy(), state["tags"].cpu().numpy(), float(state["eps"])
    found = (values.shape, values.dtype.newbyteorder("<"), tags.shape, tags.dtype, eps)
    shape = (len(samples), *rows_as.shape)
    if found != (shape, rows_as.kind, (len(samples), 2), np.dtype(np.int64), rows_as.eps):
        raise InputError(
            "memory-state-other",
            dtype=rows_as.dtype,
            shape=shape,
            eps=rows_as.eps,
            found_dtype=values.dtype,
            found_shape=values.shape,
            found_eps=eps,
        )
    wrong = (tags < (-1, 0)).any(axis=1) | (tags >= (2**32 - 1, 2**32)).any(axis=1)
    if wrong.any():
        i = int(np.flatnonzero(wrong)[0])
        raise InputError("memory-state-damaged", sample=int(samples[i]), tag=tags[i].tolist())
    return values.reshape(len(samples), rows_as.values), tags


def check_file_state(state: Mapping[str, Tensor], count: int, own: bytes, folder: Path | None) -> RowTags:
    """Return the tags of a `file_state` of `count` samples; raise InputError if it is of another folder."""
    if missing := {"id", "tags"} - state.keys():
        raise InputError("memory-files-state", folder=folder, names=", ".join(sorted(missing)))
    identity, tags = state["id"].cpu().numpy(), state["tags"].cpu().numpy()
    wanted = ((ID_BYTES,), np.dtype(np.uint8), (2, count, 2), np.dtype(np.int32))
    if (identity.shape, identity.dtype, tags.shape, tags.dtype) != wanted:
        raise InputError("memory-files-state", folder=folder, names=f"tags of {count} samples")
    if identity.tobytes() != own:
        raise InputError("memory-files-other", folder=folder, found=own.hex(), wanted=identity.tobytes().hex())
    return np.ascontiguousarray(tags).view(np.uint32)


def check_unchanged(rows_as: RowFormat, shards: Shards, where: Index, slot: int, saved: RowTags, epoch: int) -> None:
    """Raise InputError unless rows have the saved tags, and the content that these tags are for."""
    rows = shards.gather(slot, where)
    good = (rows_as.tags(rows)[:, 1:] == saved).all(axis=1)
    good &= np.where(saved[:, 0] > 0, rows_as.checksums(rows) == saved[:, 1], ~rows.any(axis=1))
    if not good.all():
        i = int(np.flatnonzero(~good)[0])
        rows_as.refuse_changed(rows[i : i + 1], int(where[i]), slot, saved[i], epoch)


def check_open(rows_as: RowFormat, shards: Shards, where: Index, saved: RowTags, epoch: int) -> None:
    """Raise InputError unless rows that the epoch has to write have the saved tags, or were written in the epoch.

    Their values do not matter. A crash while they were written can have left some old and some new bytes, also of
    a tag if its epoch and its checksum lie in two sectors.
    """
    rows = shards.gather(epoch % 2, where)
    tags = rows_as.tags(rows)[:, 1:]
    split = ((shards.places(where) + 1) * rows_as.row_bytes - 4) % SECTOR_BYTES == 0
    good = (tags[:, 0] == epoch + 1) | ((tags[:, 0] == saved[:, 0]) & ((tags[:, 1] == saved[:, 1]) | split))
    if not good.all():
        i = int(np.flatnonzero(~good)[0])
        rows_as.refuse_changed(rows[i : i + 1], int(where[i]), epoch % 2, saved[i], epoch)
