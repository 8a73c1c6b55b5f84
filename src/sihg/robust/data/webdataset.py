"""`wds:PATH`: shards in the format of WebDataset, tar files whose members are read by row, without unpacking them."""

import io
import re
import tarfile
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from glob import glob
from itertools import product
from pathlib import Path, PurePosixPath

import numpy as np
import torch

from sihg.errors import InputError
from sihg.robust.data.array_files import PARSE_ERRORS, RandomFile
from sihg.robust.data.decoded_rows import Decoded, DecodedRows, as_row
from sihg.robust.data.npz_file import TEST_SHARE
from sihg.robust.data.pixels import MAX_FILE_BYTES, decode_image, reason_of
from sihg.robust.data.samples import Samples, check_alike, check_classes, lazy_samples, stratified_split

BLOCK = tarfile.BLOCKSIZE
IMAGE_ENDINGS = ("bmp", "jpeg", "jpg", "npy", "pgm", "png", "ppm", "tif", "tiff", "webp")
LABEL_ENDING = "cls"
MAX_LABEL_BYTES = 20
MAX_HEADER_BYTES = 2**16  # of a long name, or of the further fields of a member
MAX_SHARDS = 10**5
MAX_OPEN = 64  # shards
EXTENDED = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


def load(path: Path) -> tuple[Samples, Samples]:
    """Find the samples of shards: members NAME.png (or another image, or .npy) and NAME.cls, a class number as text.

    PATH is a folder with train*.tar and test*.tar (or val*.tar), a folder of other .tar files, or a pattern such as
    data/set-{0000..0009}.tar or data/*.tar. Without shards for testing, a fixed fifth of each class is held out. Only
    headers and labels are read.
    """
    name = f"wds:{path}"
    if not path.is_dir():
        return _held_out(_samples(expand(str(path)), name))
    train = sorted(path.glob("train*.tar"))
    test = sorted(path.glob("test*.tar")) or sorted(path.glob("val*.tar"))
    if not (train and test):
        return _held_out(_samples(sorted(path.glob("*.tar")), name))
    first = _samples(train, name)
    second = _samples(test, name, first.classes)
    check_alike(first, second)
    check_classes(first)
    return first, second


def expand(pattern: str) -> list[Path]:
    """Return the files that a pattern with {000..123}, * and ? names, in order; a range must be there in full."""
    parts = _RANGE.split(pattern)
    ranges = []
    for low, high in zip(parts[1::3], parts[2::3], strict=True):
        if len(high) > len(str(MAX_SHARDS)) or int(high) - int(low) >= MAX_SHARDS:
            raise InputError("too-many-shards", pattern=pattern, limit=MAX_SHARDS)
        ranges.append([str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)])
    found: list[Path] = []
    for numbers in product(*ranges):
        text = "".join(part + number for part, number in zip(parts[::3], (*numbers, ""), strict=True))
        found += sorted(map(Path, glob(text))) if any(mark in text for mark in "*?[") else [Path(text)]  # noqa: PTH207
    return found


def _held_out(whole: Samples) -> tuple[Samples, Samples]:
    train, test = stratified_split(whole, max(1, round(TEST_SHARE * len(whole))))
    check_classes(train)
    return train, test


def _samples(shards: Sequence[Path], name: str, classes: tuple[str, ...] | None = None) -> Samples:
    if not shards:
        raise InputError("no-shards", name=name)
    rows = ShardRows(shards)
    return lazy_samples(rows, rows.labels, classes=classes, name=name)


class ShardRows(DecodedRows):
    """The samples of shards, found by the offsets of their members.

    Args:
        shards: The tar files. They are not compressed, and each sample lies in one of them.
    """

    def __init__(self, shards: Sequence[Path]) -> None:
        self.shards = shards
        self._open: OrderedDict[int, RandomFile] = OrderedDict()
        self._lock = threading.Lock()
        self._sizes: dict[int, int] = {}
        found = [(shard, *sample) for shard in range(len(shards)) for sample in _index(self._file(shard))]
        if not found:
            raise InputError("shard-empty", path=str(shards[0]))
        self.index = np.array([row[:4] for row in found], np.int64)  # shard, offset, size, whether it is an array
        self.labels = torch.tensor([row[4] for row in found])
        self.learn_shape()

    def __len__(self) -> int:
        return len(self.index)

    def decode(self, rows: Sequence[int]) -> list[Decoded]:
        """Decode the members of these rows."""
        found: list[Decoded] = []
        for row in rows:
            shard, offset, size, is_array = self.index[row].tolist()
            data, where = self._file(shard).read_at(offset, size), f"{self.shards[shard]}, row {row}"
            found.append(_array(data, where) if is_array else decode_image(data, where))
        return found

    def _file(self, shard: int) -> RandomFile:
        """Return an open shard; only some stay open, since the number of files that a process may open is limited."""
        with self._lock:
            file = self._open.pop(shard, None) or RandomFile(self.shards[shard])
            if self._sizes.setdefault(shard, file.size) != file.size:
                raise _damaged(file, "it was changed after the start")
            self._open[shard] = file
            if len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
        return file


def _array(data: bytes, where: str) -> Decoded:
    """Read a .npy member; nothing is unpickled."""
    try:
        with np.errstate(all="raise"):
            return as_row(np.lib.format.read_array(io.BytesIO(data), allow_pickle=False))
    except PARSE_ERRORS as error:
        raise InputError("npy-unreadable", path=where, error=reason_of(error)) from error


# ---- the index of a shard


def _index(file: RandomFile) -> Iterator[tuple[int, int, int, int]]:
    """Yield offset, size, whether it is an array, and label of each sample; they must have one image and one label."""
    samples: dict[str, dict[str, tuple[int, int]]] = {}
    for name, offset, size in _members(file):
        path = PurePosixPath(name)
        key, _, ending = path.name.partition(".")
        if key and ending:  # others are hidden, or have no ending
            samples.setdefault(f"{path.parent}/{key}", {})[ending.lower()] = offset, size
    for key, members in samples.items():
        images = [ending for ending in members if ending.rpartition(".")[2] in IMAGE_ENDINGS]
        labels = [ending for ending in members if ending.rpartition(".")[2] == LABEL_ENDING]
        if len(images) != 1 or len(labels) != 1:
            found = ", ".join(sorted(members))
            raise InputError("shard-sample", path=str(file.path), key=key.removeprefix("./"), found=found)
        offset, size = members[images[0]]
        if size > MAX_FILE_BYTES:
            raise InputError("file-too-large", path=f"{file.path}: {key}", bytes=size, limit=MAX_FILE_BYTES)
        label = _label(file, key, *members[labels[0]])
        yield offset, size, int(images[0].endswith("npy")), label


def _label(file: RandomFile, key: str, offset: int, size: int) -> int:
    text = file.read_at(offset, min(size, MAX_LABEL_BYTES + 1)).strip()
    if len(text) > MAX_LABEL_BYTES or not text.isdigit() or int(text) >= 2**63:
        raise InputError("shard-label", path=str(file.path), key=key.removeprefix("./"), text=text[:MAX_LABEL_BYTES])
    return int(text)


def _members(file: RandomFile) -> Iterator[tuple[str, int, int]]:
    """Yield name, offset and size of each regular file in a tar archive from its headers, always going forward."""
    place, name, size = 0, "", -1  # the last two from headers before that of the member
    while True:
        info = _header(file, place)
        if info is None:
            return
        place += BLOCK
        if info.type in (tarfile.GNUTYPE_LONGNAME, *EXTENDED):
            if not 0 <= info.size <= MAX_HEADER_BYTES:
                raise _damaged(file, f"a header of {info.size} bytes")
            data = file.read_at(place, info.size)
            if info.type == tarfile.GNUTYPE_LONGNAME:
                name = data.rstrip(b"\0").decode("utf-8", "surrogateescape")
            else:
                fields = _fields(file, data)
                name, size = fields.get("path", name), int(fields.get("size", size))
            length = info.size
        else:
            length = size if size >= 0 else info.size
            if length < 0 or (info.isreg() and place + length > file.size) or info.type == tarfile.GNUTYPE_SPARSE:
                raise _damaged(file, f"{name or info.name} cannot have {length} bytes at {place}")
            if info.isreg():
                yield name or info.name, place, length
            name, size = "", -1
        place += -(-length // BLOCK) * BLOCK


def _header(file: RandomFile, place: int) -> tarfile.TarInfo | None:
    """Read one header; None at the end mark."""
    if place + BLOCK > file.size:
        raise _damaged(file, "it ends without an end mark")
    block = file.read_at(place, BLOCK)
    if not any(block):
        return None
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError, OverflowError) as error:
        raise _damaged(file, f"{error} at {place}") from error


def _fields(file: RandomFile, data: bytes) -> dict[str, str]:
    """Return the path and the size in the further fields of a member: lines "LENGTH KEY=VALUE"."""
    found = {}
    while data:
        length = data.partition(b" ")[0]
        if not length.isdigit() or not len(length) + 1 < int(length) <= len(data):
            raise _damaged(file, "a header with broken fields")
        key, _, value = data[len(length) + 1 : int(length) - 1].partition(b"=")
        if key == b"path" or (key == b"size" and value.isdigit() and len(value) < MAX_LABEL_BYTES):
            found[key.decode()] = value.decode("utf-8", "surrogateescape")
        data = data[int(length) :]
    return found


def _damaged(file: RandomFile, why: str) -> InputError:
    return InputError("shard-damaged", path=str(file.path), why=why)
