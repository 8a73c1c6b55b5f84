"""Recognise samples by a sum: of all their bytes in memory, of some rows where reading all would take long."""

from collections.abc import Iterable, Sequence
from hashlib import sha256

import torch
from torch import Tensor

from sihg.robust.data.lazy_rows import probed
from sihg.robust.data.samples import BYTES_PER_READ, Samples

BY_ROWS = "rows:"  # begins a sum of all labels and of up to 256 rows of x, spread evenly


def sum_of(parts: Sequence[Samples], like: str | None = None) -> str:
    """Return a SHA-256 of sets of samples, the same whether they are in memory or not if `like` is the same.

    Args:
        parts: The sets, one after the other.
        like: A sum to compare with. It decides what is summed: all of x, or some rows. By default some rows, if a set
            is not in memory. Sets whose transforms cannot be repeated are recognised by their labels and shapes.
    """
    by_rows = any(part.lazy is not None for part in parts) if like is None else like.startswith(BY_ROWS)
    digest = sha256()
    for part in parts:
        if by_rows:
            digest.update(f"{part.x.dtype} {tuple(part.x.shape)}".encode())
        for x in _some_rows(part) if by_rows else _all_rows(part):
            digest.update(x.contiguous().numpy().data)
        digest.update(part.y.contiguous().numpy().data)
    return f"{BY_ROWS if by_rows else ''}{digest.hexdigest()}"


def _some_rows(part: Samples) -> Sequence[Tensor]:
    if part.lazy is None:
        return [part.x[probed(len(part), part.x[0].numel() * part.x.dtype.itemsize)]]
    return [part.lazy.probe()] if part.lazy.source.is_repeatable else []


def _all_rows(part: Samples) -> Iterable[Tensor]:
    if part.lazy is None:
        return [part.x]
    chunks = torch.arange(len(part)).split(max(1, BYTES_PER_READ // max(1, part.lazy.bytes_per_row)))
    return map(part.lazy.read, chunks)
