"""Arrays in .npy files and in the like members of archives, of which only the rows that are needed are read."""

import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sihg.errors import InputError
from sihg.robust.data.available_memory import max_memory
from sihg.robust.data.lazy_rows import RowSource
from sihg.robust.data.pixels import as_single, as_tensor, channels_first, reason_of
from sihg.store.files import open_regular

READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
PARSE_ERRORS = (  # what numpy and zipfile raise for broken files
    *(OSError, ValueError, EOFError, ArithmeticError, MemoryError, SyntaxError, TokenError, TypeError),
    *(AttributeError, LookupError, RuntimeError),
)
KINDS = "biuf"  # of numbers: bool, int, unsigned, float


class RandomFile:
    """A regular file that several threads read at any place; it stays the same file if its name gets another.

    Args:
        path: The file.
    Raises:
        InputError: It is not a regular file, or cannot be opened ("data-unreadable").
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open_regular(path) as file:
                self._handle = os.dup(file.fileno())
            self.size = os.fstat(self._handle).st_size
        except OSError as error:
            raise InputError("data-unreadable", path=str(path), reason=error.strerror or error) from error
        self._lock = threading.Lock()
        weakref.finalize(self, os.close, self._handle)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill the buffer with the bytes from an offset on; InputError if the file ends before."""
        done = 0
        try:
            while done < len(buffer):
                if hasattr(os, "preadv"):  # needs no lock, and no place that processes would share
                    read = os.preadv(self._handle, [buffer[done:]], offset + done)
                else:
                    with self._lock:
                        os.lseek(self._handle, offset + done, os.SEEK_SET)
                        found = os.read(self._handle, len(buffer) - done)
                    read = len(found)
                    buffer[done : done + read] = found
                if not read:
                    raise InputError("data-cut-short", path=str(self.path), offset=offset + done)
                done += read
        except OSError as error:
            raise InputError("data-unreadable", path=str(self.path), reason=error.strerror or error) from error

    def read_at(self, offset: int, size: int) -> bytes:
        """Return bytes from an offset on."""
        buffer = bytearray(size)
        self.read_into(memoryview(buffer), offset)
        return bytes(buffer)

    def handle(self) -> BinaryIO:
        """Return a file object of its own, for parsers."""
        return os.fdopen(os.dup(self._handle), "rb", buffering=0)


@dataclass(frozen=True)
class ArrayPlace:
    """An array in a file: where its values begin, and what they are."""

    file: RandomFile
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """How many bytes the values take."""
        return prod(self.shape) * self.dtype.itemsize

    def read(self) -> NDArray[np.generic]:
        """Read all values."""
        if self.nbytes > max_memory():
            raise too_large(self.file.path, self.nbytes)
        out = np.empty(self.shape, self.dtype)
        self.file.read_into(out.reshape(-1).view(np.uint8).data, self.offset)
        return out


def too_large(path: Path, size: int) -> InputError:
    """Make the error for an array that can only be read as a whole, and does not fit."""
    return InputError("data-too-large", path=str(path), bytes=size, limit=max_memory())


def find_array(file: RandomFile, offset: int = 0, size: int | None = None) -> ArrayPlace:
    """Read the header of a .npy file, or of one inside another file, and check it against the bytes that are there.

    Args:
        file: The file.
        offset: Where the .npy begins in it.
        size: How many bytes it has (default: all the rest).
    Raises:
        InputError: It is no array of numbers in row order, or it is cut short ("npy-unreadable").
    """
    size = file.size - offset if size is None else size
    try:
        with file.handle() as handle, np.errstate(all="raise"):  # a dimension of 2**63 overflows in numpy
            handle.seek(offset)
            version = np.lib.format.read_magic(handle)
            if version not in READERS:
                raise ValueError(f"version {version[0]}.{version[1]}")
            shape, fortran_order, dtype = READERS[version](handle)
            begin = handle.tell()
    except PARSE_ERRORS as error:
        raise InputError("npy-unreadable", path=str(file.path), error=reason_of(error)) from error
    found = f"{dtype} of shape {shape}"
    if dtype.hasobject or dtype.kind not in KINDS:
        raise InputError("npy-unreadable", path=str(file.path), error=f"{found}, which are not numbers")
    if fortran_order and len(shape) > 1:
        raise InputError("npy-order", path=str(file.path))
    left = offset + size - begin
    if min(shape, default=0) < 0 or max(shape, default=0) > left or prod(shape) * dtype.itemsize > left:
        raise InputError("npy-unreadable", path=str(file.path), error=f"it is too short for {found}")
    return ArrayPlace(file, begin, tuple(shape), dtype)


class MappedRows(RowSource):
    """The rows of an array that numpy has mapped (`numpy.load(path, mmap_mode="r")`).

    Args:
        array: The array, (n, ...).
    """

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array
        example = self.read([], 0, 0)
        self.shape, self.dtype = tuple(example.shape[1:]), example.dtype

    def __len__(self) -> int:
        return len(self.array)

    def read(self, rows: Sequence[int], seed: int, epoch: int) -> Tensor:  # noqa: ARG002
        """Copy these rows."""
        x = as_tensor(self.array[np.array(rows, np.int64)], "x")
        return x.float() if x.dtype == torch.float16 else x


class ArrayRows(RowSource):
    """The rows of an array in a file. Reading needs no address space, and a file cut short is an error, not a signal.

    Args:
        place: The array, (n, ...). As in .npz files, images get their channels first, and float64 becomes float32.
    """

    def __init__(self, place: ArrayPlace) -> None:
        self.place = place
        example = self._converted(np.empty((0, *place.shape[1:]), place.dtype))
        self.shape, self.dtype = tuple(example.shape[1:]), example.dtype

    def __len__(self) -> int:
        return self.place.shape[0] if self.place.shape else 0

    def read(self, rows: Sequence[int], seed: int, epoch: int) -> Tensor:  # noqa: ARG002
        """Read these rows."""
        place = self.place
        out = np.empty((len(rows), *place.shape[1:]), place.dtype)
        buffer, step = out.reshape(-1).view(np.uint8).data, out.nbytes // max(1, len(rows))
        for i, row in enumerate(rows):
            place.file.read_into(buffer[i * step : (i + 1) * step], place.offset + row * step)
        return self._converted(out)

    def _converted(self, x: NDArray[Any]) -> Tensor:
        x = channels_first(as_single(x))
        x = np.ascontiguousarray(x, dtype=x.dtype.newbyteorder("="))
        tensor = torch.from_numpy(x)
        return tensor.float() if x.dtype == np.float16 else tensor
