"""`cifar10`: small photographs of ten kinds of things; the binary or the python version, unpacked or as archive."""

import io
import pickle
import tarfile
from collections.abc import Sequence

import numpy as np
import torch

from sihg.robust.data._unpack import unpack
from sihg.robust.data.locations import Arrays, Part, Piece, Place, Published, Source, UnreadableError
from sihg.robust.data.pickles import unpickle_arrays
from sihg.robust.data.samples import Samples, as_samples

ROW = 1 + 3 * 32 * 32  # a label and its pixels, plane by plane: a record of the binary version
BATCHES = (  # name, md5 in the binary version, which is also that of its values, and md5 in the python version
    ("data_batch_1", "5dd7e06a14cb22eb9f671a540d1b7c25", "c99cafc152244af753f735de768cd75f"),
    ("data_batch_2", "5ea93a67294ea407fff1d09f752e9692", "d4bba439e000b95fd0a9bffe97cbabec"),
    ("data_batch_3", "942cd6a4bcdd0dd3c604fbe906cb4421", "54ebc095f3ab1f0389bbae665268c751"),
    ("data_batch_4", "ae636b3ba5c66a11e91e8cb52e771fcb", "634d18415352ddfa80567beed471001a"),
    ("data_batch_5", "53f37980c15c3d472c316c40844f3f0d", "482c414d41f54cd18b22e5b47cb7c3cb"),
    ("test_batch", "803d5f7f4d78ea53de84dbe85f74fb6d", "40351d587109b95175f43aff81a1287e"),
)
BINARY = ("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", 170052171)
PYTHON = ("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", 170498071)
MAX_MEMBERS = 1000  # of an archive
MAX_PICKLE = 2.0  # bytes of a pickled batch, at most, per byte of its values


def read(data: bytes, pieces: Sequence[Piece]) -> list[Arrays]:
    """Read the records (n, 3073) of batches: of one file, or of several in one archive."""
    batches = _members(data, pieces) if pieces[0][1].member else [data]
    return [
        (_records(raw, part, pickled=not (place.member or place.path).endswith(".bin")),)
        for raw, (part, place) in zip(batches, pieces, strict=True)
    ]


def _members(data: bytes, pieces: Sequence[Piece]) -> list[bytes]:
    """Read members of an archive by their exact names in one pass, without extracting files."""
    wanted = {place.member: part for part, place in pieces}
    limit = max(int(MAX_PICKLE * np.prod(part.shape)) for part, _ in pieces) + 4096  # of a member
    found: dict[str, bytes] = {}
    try:
        unpacked = unpack(data, len(BATCHES) * limit)
        if len(unpacked) > len(BATCHES) * limit:
            raise UnreadableError(f"it unpacks to more than {len(BATCHES) * limit} bytes")
        # Mode r| only reads ahead, so that no header can lead back to an earlier one.
        with tarfile.open(fileobj=io.BytesIO(unpacked), mode="r|") as archive:
            for number, info in enumerate(archive):
                if number >= MAX_MEMBERS:
                    raise UnreadableError(f"it has more than {MAX_MEMBERS} members")
                if info.isfile() and info.name in wanted:
                    if not 0 <= info.size <= limit:
                        raise UnreadableError(f"its member {info.name} has {info.size} bytes")
                    member = archive.extractfile(info)
                    found[info.name] = member.read() if member else b""
    except Exception as error:  # a broken archive may raise anything
        raise UnreadableError(f"archive: {str(error) or type(error).__name__}") from error
    if lost := [name for name in wanted if name not in found]:
        raise UnreadableError(f"it has no member {lost[0]}")
    return [found[place.member] for _, place in pieces]


def _records(raw: bytes, part: Part, *, pickled: bool) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    n = part.shape[0]
    if pickled:
        labels, values = _unpickled(raw, n)
        records = np.concatenate([labels[:, None], values], 1)
    elif len(raw) != n * ROW:
        raise UnreadableError(f"{part.name} has {len(raw)} bytes, not {n * ROW}")
    else:
        records = np.frombuffer(raw, np.uint8).reshape(n, ROW)
    if (bad := records[:, 0] > 9).any():
        raise UnreadableError(f"label {records[bad.argmax(), 0]} in row {bad.argmax()} of {part.name}, not 0 to 9")
    return records


def _unpickled(
    raw: bytes, n: int
) -> tuple[np.ndarray[tuple[int], np.dtype[np.uint8]], np.ndarray[tuple[int, int], np.dtype[np.uint8]]]:
    """Return labels (n,) and pixels (n, 3072) of a batch of the python version."""
    try:
        batch = unpickle_arrays(raw)
    except pickle.UnpicklingError as error:
        raise UnreadableError(str(error)) from error
    batch = {_text(key): value for key, value in batch.items()} if isinstance(batch, dict) else {}
    values, labels = batch.get("data"), batch.get("labels")
    if not (isinstance(values, np.ndarray) and values.dtype == np.uint8 and values.shape == (n, ROW - 1)):
        raise UnreadableError(f"its pickle has no array 'data' of uint8 {(n, ROW - 1)}")
    if not (isinstance(labels, list) and len(labels) == n and all(type(y) is int and 0 <= y < 256 for y in labels)):
        raise UnreadableError(f"its pickle has no list 'labels' of {n} class numbers")
    return np.array(labels, np.uint8), values


def _text(key: object) -> object:
    return key.decode("latin1") if isinstance(key, bytes) else key


def join(source: Source, arrays: dict[str, Arrays]) -> tuple[Samples, Samples]:
    """Convert the training batches found, in their order, and the test batch to samples."""
    train = [arrays[part.name][0] for part in source.parts[:-1] if part.name in arrays]
    return _samples(source, train), _samples(source, [arrays[source.parts[-1].name][0]])


def _samples(source: Source, records: Sequence[np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]) -> Samples:
    x = np.concatenate([batch[:, 1:] for batch in records]).reshape(-1, 3, 32, 32)
    y = np.concatenate([batch[:, 0] for batch in records])
    return as_samples((torch.from_numpy(x), torch.from_numpy(y)), classes=source.classes, name=source.name)


def _part(name: str, binary: str, python: str) -> Part:
    places = []
    for folder in ("cifar10/", ""):
        places += [
            Place(f"{folder}cifar-10-batches-bin/{name}.bin", md5=binary, size=10000 * ROW),
            Place(f"{folder}cifar-10-batches-py/{name}", md5=python),
            Place(f"{folder}{BINARY[0]}", f"cifar-10-batches-bin/{name}.bin", BINARY[1]),
            Place(f"{folder}{PYTHON[0]}", f"cifar-10-batches-py/{name}", PYTHON[1]),
        ]
    return Part(name, (10000, ROW), tuple(places), binary, optional=name != "test_batch")


CIFAR10 = Source(
    name="cifar10",
    about="small photographs",
    shape=(3, 32, 32),
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    n=(50000, 10000),
    parts=tuple(_part(*batch) for batch in BATCHES),
    published=(
        Published(
            f"cifar10/{BINARY[0]}",
            *BINARY[1:],
            (
                f"https://www.cs.toronto.edu/~kriz/{BINARY[0]}",
                f"https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/{BINARY[0]}",
            ),
        ),
    ),
    read=read,
    join=join,
)
