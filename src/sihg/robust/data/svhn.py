"""`svhn`: house numbers in street view pictures, cropped to 32x32, in two MATLAB files."""

import io
import struct
from collections.abc import Sequence
from math import prod

import numpy as np
import scipy.io
import torch

from sihg.robust.data._unpack import ZLIB, unpack
from sihg.robust.data.locations import Arrays, Part, Piece, Place, Published, Source, UnreadableError
from sihg.robust.data.samples import Samples, as_samples

MIRRORS = ("http://ufldl.stanford.edu/housenumbers/", "https://ufldl.stanford.edu/housenumbers/")
FILES = (
    ("train", 73257, "e26dedcc434d2e4c54c9b2d4a06d8373", 182040794, "2ed26c62c676b31b0a22261465117038"),
    ("test", 26032, "eb5a983be6a315427106f1b164d9cef3", 64275384, "1d911fc5c40d13e6d1336825f011c8df"),
)
HEADER_BYTES = 128  # of a MAT-file of version 5; its last two say how numbers are stored
COMPRESSED = 15  # the type of a variable that is packed by zlib
NUMBERS = ("uint8", "uint16", "uint32", "int8", "int16", "int32", "single", "double")
MAX_UNPACKED = 2  # bytes of all variables, at most, per value
MAX_VARIABLES = 100
SPARE_BYTES = 2**20


def read(data: bytes, pieces: Sequence[Piece]) -> list[Arrays]:
    """Read images (n, 3, 32, 32) and labels (n,) of a MAT-file, whose label 10 stands for the digit 0."""
    ((part, _),) = pieces
    shapes = {"X": (*part.shape[2:], part.shape[1], part.shape[0]), "y": (part.shape[0], 1)}
    try:
        data = _unpacked(data, MAX_UNPACKED * prod(part.shape) + SPARE_BYTES)
        listed = {name: (kind, shape) for name, shape, kind in scipy.io.whosmat(io.BytesIO(data))}
        for name, shape in shapes.items():  # before memory is taken for them
            kind, found = listed.get(name, ("missing", ()))
            if kind not in NUMBERS or found != shape:
                raise ValueError(f"its variable {name} is {kind} {found or ''}, not numbers of shape {shape}")
        variables = scipy.io.loadmat(io.BytesIO(data), variable_names=list(shapes))
    except Exception as error:  # scipy raises whatever a broken file causes
        raise UnreadableError(f"not a MAT-file of version 5: {type(error).__name__}: {error}") from error
    x, y = variables["X"], variables["y"].ravel()
    if x.dtype != np.uint8 or x.shape != shapes["X"] or y.dtype.kind not in "uif" or len(y) != part.shape[0]:
        raise UnreadableError(f"its variables X and y are {x.dtype} {x.shape} and {y.dtype} {y.shape}")
    bad = (y < 1) | (y > 10) | (y != np.trunc(y))
    if bad.any():
        raise UnreadableError(f"label {y[bad.argmax()]} in row {bad.argmax()}, not 1 to 10")
    return [(np.ascontiguousarray(x.transpose(3, 2, 0, 1)), (y % 10).astype(np.uint8))]


def _unpacked(data: bytes, limit: int) -> bytes:
    """Return the MAT-file with its compressed variables unpacked, if they are not larger than the limit."""
    order = {b"IM": "<", b"MI": ">"}.get(data[HEADER_BYTES - 2 : HEADER_BYTES])
    if order is None:
        raise ValueError("its header does not say so")
    view, left = memoryview(data), limit
    parts: list[bytes | memoryview] = [view[:HEADER_BYTES]]
    place = HEADER_BYTES
    while place < len(data):
        kind, length = struct.unpack_from(f"{order}2I", data, place)
        variable = view[place : place + 8 + length]
        place += 8 + length
        if place > len(data):
            raise ValueError(f"a variable of {length} bytes is cut short")
        parts.append(unpack(variable[8:], left, ZLIB) if kind == COMPRESSED else variable)
        left -= len(parts[-1])
        if left < 0 or len(parts) > MAX_VARIABLES:
            raise ValueError(f"it has more than {limit} bytes or {MAX_VARIABLES} variables")
    return b"".join(parts) if any(isinstance(part, bytes) for part in parts) else data


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
