"""`mnist` and `fashion-mnist`: images and labels in idx files, packed by gzip or not."""

from collections.abc import Sequence

import numpy as np
import torch

from sihg.robust.data._unpack import unpack
from sihg.robust.data.locations import Arrays, Part, Piece, Place, Published, Source, UnreadableError
from sihg.robust.data.samples import Samples, as_samples

UINT8 = 8  # the idx code of the only type that these sets use
NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
SHAPES = ((60000, 28, 28), (60000,), (10000, 28, 28), (10000,))


def read(data: bytes, pieces: Sequence[Piece]) -> list[Arrays]:
    """Read the array of an idx file, which must have the shape of the part."""
    ((part, place),) = pieces
    header = bytes((0, 0, UINT8, len(part.shape))) + b"".join(n.to_bytes(4, "big") for n in part.shape)
    size = len(header) + int(np.prod(part.shape))
    if place.path.endswith(".gz"):
        try:
            data = unpack(data, size)
        except UnreadableError as error:
            raise UnreadableError(f"gzip: {error}") from error
    if data[:4] != header[:4]:
        raise UnreadableError(f"it begins with {data[:4].hex() or 'nothing'}, not with the {header[:4].hex()} of idx")
    if data[: len(header)] != header:
        shape = tuple(int.from_bytes(data[i : i + 4], "big") for i in range(4, len(header), 4))
        raise UnreadableError(f"it says shape {shape}, not {part.shape}")
    if len(data) != size:
        raise UnreadableError(
            f"it holds {'more' if len(data) > size else f'{len(data)} bytes, less'} than {size} bytes"
        )
    array = np.frombuffer(data, np.uint8, offset=len(header)).reshape(part.shape)
    if array.ndim == 1 and array.max() > 9:
        raise UnreadableError(f"label {array.max()} in row {array.argmax()}, not 0 to 9")
    return [(array,)]


def join(source: Source, arrays: dict[str, Arrays]) -> tuple[Samples, Samples]:
    """Convert images and labels to samples for training and for testing."""
    train_x, train_y, test_x, test_y = (torch.from_numpy(arrays[part.name][0].copy()) for part in source.parts)
    train = as_samples((train_x[:, None], train_y), classes=source.classes, name=source.name)
    return train, as_samples((test_x[:, None], test_y), classes=source.classes, name=source.name)


def _source(
    name: str,
    about: str,
    classes: tuple[str, ...],
    raw: str,
    mirrors: tuple[str, ...],
    sums: Sequence[tuple[str, int, str]],
    licence: str = "",
) -> Source:
    """Describe a set of four idx files; `sums` has md5 and size of each packed file and md5 of its values."""
    parts, published = [], []
    for file, shape, (md5, size, content) in zip(NAMES, SHAPES, sums, strict=True):
        unpacked = 4 + 4 * len(shape) + int(np.prod(shape))
        places = []
        for folder in (name, raw):
            places += [Place(f"{folder}/{file}.gz", md5=md5), Place(f"{folder}/{file}", size=unpacked)]
        parts.append(Part(file, shape, tuple(places), content))
        urls = tuple(f"{mirror}{file}.gz" for mirror in mirrors)
        published.append(Published(f"{name}/{file}.gz", md5, size, urls))
    return Source(
        name, about, (1, 28, 28), classes, (60000, 10000), tuple(parts), tuple(published), read, join, licence
    )


MNIST = _source(
    "mnist",
    "handwritten digits",
    tuple("0123456789"),
    "MNIST/raw",
    (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
    ),
    (
        ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9912422, "6510e85a72c3e9475c492d559d3770d2"),
        ("d53e105ee54ea40749a09fcbcd1e9432", 28881, "e86ee40d66677c011a9abda399ec8c4d"),
        ("9fb629c4189551a2d022fa330f9573f3", 1648877, "240610fa99e73bfa49df8e7fc24d3206"),
        ("ec29112dd5afa0611ce80d1b7f02629c", 4542, "073c3904dfbd3e141ff8aa01cfde6b15"),
    ),
)

FASHION_MNIST = _source(
    "fashion-mnist",
    "pieces of clothing",
    (
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    "FashionMNIST/raw",
    (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
    ),
    (
        ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26421880, ""),
        ("25c81989df183df01b3e8a0aad5dffbe", 29515, ""),
        ("bef4ecab320f06d8554ea6380940ec79", 4422102, ""),
        ("bb300cfdad3c16e7a12a480ee83cd310", 5148, ""),
    ),
)
