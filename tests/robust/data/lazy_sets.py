"""Small sets in every form that is read by row, all with the same images and labels."""

import io
import random
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import Dataset

N, SHAPE = 40, (3, 4, 5)


def images(n: int = N) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (n, *SHAPE), np.uint8)


def labels(n: int = N) -> NDArray[np.int64]:
    return np.arange(n) % 4


def png(image: NDArray[np.uint8]) -> bytes:
    out = io.BytesIO()
    Image.fromarray(image.transpose(1, 2, 0).squeeze()).save(out, "PNG")
    return out.getvalue()


def write_npy(folder: Path, **arrays: NDArray[Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in (arrays or {"x_train": images(), "y_train": labels()}).items():
        np.save(folder / f"{name}.npy", array)
    return folder


def write_folder(folder: Path) -> Path:
    """Write the images in classes; rows are then in another order, sorted by class."""
    for i, (image, label) in enumerate(zip(images(), labels(), strict=True)):
        path = folder / f"class{label}" / f"{i:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(image))
    return folder


def members(n: int = N, *, arrays: bool = False) -> dict[str, bytes]:
    found = {}
    for i, (image, label) in enumerate(zip(images(n), labels(n), strict=True)):
        found[f"{i:04}.{'npy' if arrays else 'png'}"] = npy(image) if arrays else png(image)
        found[f"{i:04}.cls"] = str(label).encode()
    return found


def npy(array: NDArray[Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def write_shard(path: Path, content: dict[str, bytes], kind: int = tarfile.PAX_FORMAT, mtime: float = 0.5) -> Path:
    """Write a tar file; a time with a fraction gives every member a header of further fields, as WebDataset does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=kind) as archive:
        for name, data in content.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), mtime if kind == tarfile.PAX_FORMAT else int(mtime)
            archive.addfile(info, io.BytesIO(data))
    return path


class Items(Dataset[Any]):
    """Floats in [0, 1] by row, counted when they are read; with noise of the global generators if random."""

    def __init__(self, n: int = N, *, noise: str = "", targets: bool = True) -> None:
        self.n, self.noise, self.reads = n, noise, 0
        if targets:
            self.targets = labels(n).tolist()

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        self.reads += 1
        x = torch.full((1, 4, 5), row / (2 * self.n))
        if self.noise == "torch":
            x = x + torch.rand(1, 4, 5) / 2
        elif self.noise == "numpy":
            x = x + torch.from_numpy(np.random.rand(1, 4, 5) / 2).float()  # noqa: NPY002
        elif self.noise == "python":
            x = x + random.random() / 2
        elif self.noise == "flip" and random.random() < 0.5:
            x = 0.5 - x
        elif self.noise == "own":
            x = x + torch.from_numpy(np.random.default_rng().random((1, 4, 5)) / 2).float()
        elif self.noise == "seeded":
            torch.manual_seed(row)
            x = x + torch.rand(1, 4, 5) / 2
        return x, row % 4
