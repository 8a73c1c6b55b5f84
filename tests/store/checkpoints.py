"""Small checkpoints to write, compare and damage."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sihg.store.checkpoint import write_checkpoint


def tensors(seed: int = 0) -> dict[str, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    weights = {"w": torch.randn(7, 5, generator=generator), "b": torch.randn(3, generator=generator).double()}
    return {"model": weights, "memory": {"rows": torch.randint(-127, 127, (40,), generator=generator).to(torch.int8)}}


def write(folder: Path, number: int, **more: Any) -> Path:
    return write_checkpoint(folder, f"last-{number:07d}", tensors(number), {"step": number}, **more)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def same(a: dict[str, dict[str, Tensor]], b: dict[str, dict[str, Tensor]]) -> bool:
    return a.keys() == b.keys() and all(
        a[k].keys() == b[k].keys() and all(torch.equal(a[k][n], b[k][n]) for n in a[k]) for k in a
    )
