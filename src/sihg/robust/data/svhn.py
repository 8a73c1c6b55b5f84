"""`svhn`: house numbers in street view pictures, cropped to 32x32, in two MATLAB files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.io
import torch

from sihg.robust.data.locations import Arrays, Part, Piece, Place, Published, Source, UnreadableError
from sihg.robust.data.samples import Samples, as_samples

MIRRORS = ("http://ufldl.stanford.edu/housenumbers/", "https://ufldl.stanford.edu/housenumbers/")
FILES = (
    ("train", 73257, "e26dedcc434d2e4c54c9b2d4a06d8373", 182040794, "2ed26c62c676b31b0a22261465117038"),
    ("test", 26032, "eb5a983be6a315427106f1b164d9cef3", 64275384, "1d911fc5c40d13e6d1336825f011c8df"),
)


def read(path: Path, pieces: Sequence[Piece]) -> list[Arrays]:
    """Read images (n, 3, 32, 32) and labels (n,) of a MAT-file, whose label 10 stands for the digit 0."""
    ((part, _),) = pieces
    with path.open("rb") as file:
        try:
            variables = scipy.io.loadmat(file, variable_names=["X", "y"])
        except Exception as error:  # scipy raises whatever a broken file causes
            raise UnreadableError(f"not a MAT-file of version 5: {type(error).__name__}: {error}") from error
    for name, shape in (("X", (*part.shape[2:], part.shape[1], part.shape[0])), ("y", (part.shape[0], 1))):
        array = variables.get(name)
        if array is None or array.shape != shape or array.dtype.kind not in "uif":
            what = "missing" if array is None else f"{array.dtype} {array.shape}"
            raise UnreadableError(f"its variable {name} is {what}, not numbers of shape {shape}")
    x, y = variables["X"], variables["y"].ravel()
    if x.dtype != np.uint8:
        raise UnreadableError(f"its variable X is {x.dtype}, not uint8")
    bad = (y < 1) | (y > 10) | (y != np.trunc(y))
    if bad.any():
        raise UnreadableError(f"label {y[bad.argmax()]} in row {bad.argmax()}, not 1 to 10")
    return [(np.ascontiguousarray(x.transpose(3, 2, 0, 1)), (y % 10).astype(np.uint8))]


def join(source: Source, arrays: dict[str, Arrays]) -> tuple[Samples, Samples]:
    """Convert the arrays of both files to samples."""
    train, test = (
        as_samples(tuple(map(torch.from_numpy, arrays[part.name])), classes=source.classes, name=source.name)
        for part in source.parts
    )
    return train, test


def _part(name: str, n: int, md5: str, content: str) -> Part:
    file = f"{name}_32x32.mat"
    return Part(file, (n, 3, 32, 32), (Place(f"svhn/{file}", md5=md5), Place(file, md5=md5)), content)


SVHN = Source(
    name="svhn",
    about="house numbers",
    shape=(3, 32, 32),
    classes=tuple("0123456789"),
    n=(73257, 26032),
    parts=tuple(_part(name, n, md5, content) for name, n, md5, _, content in FILES),
    published=tuple(
        Published(f"svhn/{name}_32x32.mat", md5, size, tuple(f"{mirror}{name}_32x32.mat" for mirror in MIRRORS))
        for name, _, md5, size, _ in FILES
    ),
    read=read,
    join=join,
    licence="SVHN is offered by its publishers for non-commercial use only (http://ufldl.stanford.edu/housenumbers).",
)
