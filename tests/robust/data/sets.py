"""Small sets in the published formats, and the sources that describe them."""

import gzip
import io
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from numpy.typing import NDArray

from sihg.robust.data import SOURCES
from sihg.robust.data.cifar10 import ROW
from sihg.robust.data.file_checks import content_md5
from sihg.robust.data.locations import Source

N = {"train": 12, "t10k": 5}
BATCH = 4  # images in a small CIFAR-10 batch


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def small_mnist(monkeypatch: pytest.MonkeyPatch, *, content: bool = True) -> dict[str, NDArray[np.uint8]]:
    """Let `mnist` be a set of 12 + 5 images of 4x3; give its arrays by the names of their files."""
    rng = np.random.default_rng(0)
    source, arrays, parts = SOURCES["mnist"], {}, []
    for part in source.parts:
        n = N[part.name.partition("-")[0]]
        images = "images" in part.name
        array = rng.integers(0, 256 if images else 10, (n, 4, 3) if images else n, np.uint8)
        arrays[part.name] = array
        known = content_md5((array,)) if content else ""
        parts.append(replace(part, shape=array.shape, content=known))
    monkeypatch.setitem(SOURCES, "mnist", replace(source, parts=tuple(parts)))
    return arrays


def write_mnist(folder: Path, arrays: dict[str, NDArray[np.uint8]], *, packed: bool = True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        data = idx_bytes(array)
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(data) if packed else data)


def small_cifar(monkeypatch: pytest.MonkeyPatch) -> dict[str, NDArray[np.uint8]]:
    """Let `cifar10` have batches of four images; give their records."""
    rng = np.random.default_rng(1)
    source, records, parts = SOURCES["cifar10"], {}, []
    for part in source.parts:
        batch = rng.integers(0, 256, (BATCH, ROW), np.uint8)
        batch[:, 0] %= 10
        records[part.name] = batch
        places = tuple(replace(place, size=0) for place in part.places)
        parts.append(replace(part, shape=batch.shape, content=content_md5((batch,)), places=places))
    monkeypatch.setitem(SOURCES, "cifar10", replace(source, parts=tuple(parts)))
    return records


def small_svhn(monkeypatch: pytest.MonkeyPatch) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Let `svhn` have three images a file, the same in both."""
    x = np.random.default_rng(2).integers(0, 256, (3, 3, 32, 32), np.uint8)
    y = np.array([0, 1, 9], np.uint8)
    source = SOURCES["svhn"]
    parts = tuple(replace(part, shape=x.shape, content=content_md5((x, y))) for part in source.parts)
    with_source(monkeypatch, replace(source, parts=parts))
    return x, y


def write_svhn(folder: Path, x: NDArray[np.uint8], y: NDArray[np.generic], *, packed: bool = True) -> None:
    folder.mkdir(exist_ok=True)
    for name in ("train", "test"):
        variables = {"X": x.transpose(2, 3, 1, 0), "y": y[:, None]}
        scipy.io.savemat(folder / f"{name}_32x32.mat", variables, do_compression=packed)


def pickled(batch: NDArray[np.uint8], protocol: int = 2) -> bytes:
    """A batch of the python version."""
    return pickle.dumps({b"data": batch[:, 1:].copy(), b"labels": batch[:, 0].tolist()}, protocol)


def archive(members: dict[str, bytes]) -> bytes:
    """A tar.gz without a time in it: tests are named after it, the same in every worker."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(out.getvalue(), mtime=0)


def put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def with_source(monkeypatch: pytest.MonkeyPatch, source: Source) -> None:
    monkeypatch.setitem(SOURCES, source.name, source)
