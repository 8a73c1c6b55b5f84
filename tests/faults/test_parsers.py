"""Malformed files of every kind: each is refused with one InputError, without other programs, hangs or much memory."""

import gzip
import io
import json
import os
import pickle
import random
import signal
import struct
import subprocess
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save_file
from torch.utils.data import Dataset

from sihg.errors import InputError
from sihg.robust.data import DataWarning, as_samples, digits, load
from sihg.robust.data.pickles import unpickle_arrays
from sihg.robust.models.state_dicts import read_state_dict
from tests.refused import refused
from tests.robust.data.sets import archive, pickled, put, small_cifar, small_mnist, small_svhn, write_mnist, write_svhn

FLIPS = 120  # per form of a set
SECONDS = 60  # a test that takes longer hangs
IMAGES = "train-images-idx3-ubyte"
TEST_BATCH = "cifar10/cifar-10-batches-bin/test_batch.bin"
TRAIN_BATCH = "cifar10/cifar-10-batches-bin/data_batch_1.bin"
REAL = Path(os.environ.get("SIHG_DATA", "nowhere"))


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """Fail a test that hangs."""

    def stop(*_: object) -> NoReturn:
        pytest.fail(f"not done after {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test that starts another program."""

    def started(*what: object, **_: object) -> NoReturn:
        pytest.fail(f"started {what}")

    monkeypatch.setattr(subprocess, "Popen", started)
    for name in ("system", "popen", "posix_spawn", "posix_spawnp", "fork", "execv"):
        monkeypatch.setattr(os, name, started)


# ---- images

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 3\n%%EndComments\n(%pipe%touch owned) (w) file\nshowpage\n%%EOF\n"


def png(width: int, height: int) -> bytes:
    """A PNG that announces a size and has one row."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">2I5B", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(10))) + chunk(b"IEND", b"")


def image(kind: str, size: tuple[int, int] = (4, 3)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, (1, 2, 3)).save(out, kind)
    return out.getvalue()


def images_with(folder: Path, name: str, data: bytes) -> str:
    """Name a folder of four good images and this one."""
    for i in range(4):
        put(folder / "a" / f"{i}.png", image("PNG"))
    put(folder / "a" / name, data)
    return f"folder:{folder}"


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("ending", [".png", ".jpg", ".tif"])
def test_an_eps_of_another_name_runs_nothing(ending: str, tmp_path: Path) -> None:
    with refused("image-unreadable"):
        load(images_with(tmp_path, f"x{ending}", EPS))


@pytest.mark.usefixtures("alone")
def test_an_eps_of_a_dataset_runs_nothing() -> None:
    class Lazy(Dataset[Any]):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> Any:
            return Image.open(io.BytesIO(EPS)), 0

    with refused("image-unreadable", path="x of row 0"):
        as_samples(Lazy())


def test_a_broken_image_of_a_dataset_is_named() -> None:
    class Broken(Dataset[Any]):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> Any:
            return Image.open(io.BytesIO(image("PNG", (400, 300))[:-90])), 0

    with refused("image-unreadable", path="x of row 0"):
        as_samples(Broken())


BAD_IMAGES = [
    png(10**5, 10**5),
    png(10_000, 10_000),
    png(2**31 - 1, 2**31 - 1),
    png(9000, 9000),
    b"P6\n100000 100000\n255\n",
    b"P5\n99999999999999999999 9\n255\n",
    b"GIF89a" + b"\xff" * 300,
    b"BM" + b"\xff" * 100,
    b"II*\0\x08\0\0\0" + b"\xff" * 100,
    b"RIFF\xff\xff\xff\xffWEBPVP8 " + b"\xff" * 100,
    b"\x89PNG\r\n\x1a\n\xff\xff\xff\xffIHDR",
    b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    b"\0" * 1000,
]


@pytest.mark.parametrize("number", range(len(BAD_IMAGES)))
def test_a_bad_image_is_refused(number: int, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        load(images_with(tmp_path, "x.png", BAD_IMAGES[number]))


def test_a_large_image_is_refused_before_it_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # as some programs do
    with refused("image-pixels", width=10**5, height=10**5):
        load(images_with(tmp_path, "x.png", png(10**5, 10**5)))
    with (tmp_path / "a" / "x.png").open("wb") as file:
        file.truncate(2**40)
    with refused("file-too-large", bytes=2**40):
        load(f"folder:{tmp_path}")


def test_images_larger_than_the_memory_are_not_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("image_folder", "samples"):
        monkeypatch.setattr(f"sihg.robust.data.{module}.max_memory", lambda: 100)
    name = images_with(tmp_path, "x.png", image("PNG"))
    train, _ = load(name)
    assert train.lazy is not None
    assert train.floats([0])[0, :, 0, 0].mul(255).round().tolist() == [1, 2, 3]
    put(tmp_path / "a" / "x.png", png(10**5, 10**5))
    with pytest.raises(InputError):
        load(name)


@pytest.mark.parametrize("kind", ["BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"])
def test_a_flipped_image_loads_or_is_refused(kind: str, tmp_path: Path) -> None:
    whole, rng = image(kind), random.Random(kind)
    name = images_with(tmp_path, "x.png", whole)
    assert load(name)[0].shape == (3, 3, 4)
    for _ in range(FLIPS):
        put(tmp_path / "a" / "x.png", flipped(whole, rng))
        with suppress(InputError):
            load(name)


# ---- .npz files and labels


def npy(header: str, data: bytes = b"", version: int = 1) -> bytes:
    size = len(header).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes((version, 0)) + size + header.encode() + data


def described(dtype: str, shape: str) -> str:
    return f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}\n"


def npz(x: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x.npy", x)
        file.writestr("y.npy", npy(described("<i8", "(2,)"), bytes(16)))
    return out.getvalue()


def announcing(data: bytes, size: int) -> bytes:
    """Change the size that a zip archive announces for its first member."""
    place = data.index(b"PK\1\2") + 24
    return data[:place] + size.to_bytes(4, "little") + data[place + 4 :]


ZEROS = bytes(10**7)


NPZ = [
    npz(npy(described("|u1", "(100000000000,)"), ZEROS)),
    announcing(npz(npy(described("|u1", "(10000000,)"), ZEROS)), 2**32 - 2),
    announcing(npz(npy(described("|u1", "(4000000000,)"), ZEROS)), 4 * 10**9 + 80),
    npz(npy(described("|u1", "(2," + " " * 10**5 + ")"), b"ab", 2)),
    npz(npy(described("|u1", "(" * 5000 + "2" + ")" * 5000), b"ab")),
    npz(npy(described("|u1", "(-2,)"), b"ab")),
    npz(npy(described("|u1", f"({2**62}, 4)"), b"ab")),
    npz(npy(described("|u1", "(0," + f"{2**63},)"), b"")),
    npz(npy(described("|O", "(2,)"), pickle.dumps([1, 2]))),
    npz(npy(described("|V8", "(2,)"), bytes(16))),
    npz(npy("__import__('os').system('true')", b"ab")),
    npz(npy("", b"")),
    npz(b"\x93NUMPY\x09\x09"),
    npz(b""),
    npz(npy(described("|u1", "(2,)"), b"a")),
    npz(npy(described("|u1", "(2,)"), b"ab"))[:-30],
    b"PK\5\6" + bytes(18),
    b"PK\3\4",
    b"",
    npy("x" * 65000),
]


@pytest.mark.parametrize("number", range(len(NPZ)))
def test_a_bad_npz_file_is_refused(number: int, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load(f"npz:{put(tmp_path / 'a.npz', NPZ[number])}")
    assert "\n" not in str(caught.value)


def test_a_npz_file_larger_than_the_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with path.open("wb") as file:
        file.truncate(2**43)
    with refused("npz-unreadable"):  # of a file that does not fit only the directory is read
        load(f"npz:{path}")


HUGE: list[Any] = [10**9, 2**31, 2**63 - 1, np.uint64(2**63), 1e9, 1e30, -1, -(2**63), float("inf"), 10**30]


def from_npz(x: NDArray[np.float32], y: list[Any], folder: Path) -> object:
    np.savez(folder / "a.npz", x=x, y=np.array(y))
    return load(f"npz:{folder / 'a.npz'}")


def from_pair(x: NDArray[np.float32], y: list[Any], _: Path) -> object:
    return as_samples((x, y))


def from_tensors(x: NDArray[np.float32], y: list[Any], _: Path) -> object:
    return as_samples((torch.from_numpy(x), np.array(y)))


def from_dataset(x: NDArray[np.float32], y: list[Any], _: Path) -> object:
    class Items(Dataset[Any]):
        def __len__(self) -> int:
            return len(y)

        def __getitem__(self, index: int) -> Any:
            return x[index], y[index]

    return as_samples(Items())


def from_source(x: NDArray[np.float32], y: list[Any], folder: Path) -> object:
    """Load a function of the user's own, in a file."""
    (folder / "pair.pkl").write_bytes(pickle.dumps((x, y)))
    file = repr(str(folder / "pair.pkl"))
    code = f"import pickle\nfrom pathlib import Path\nPAIR = pickle.loads(Path({file}).read_bytes())\n"
    (folder / "own.py").write_text(code + "def data():\n    return PAIR, PAIR\n")
    return load(f"{folder / 'own.py'}:data")


@pytest.mark.parametrize("label", HUGE)
@pytest.mark.parametrize("read", [from_npz, from_pair, from_tensors, from_dataset, from_source])
def test_a_huge_label_is_one_error(read: Callable[..., object], label: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(np.zeros((3, 2), np.float32), [0, 1, label], tmp_path)
    codes = ("sample-label-range", "npz-label-range", "not-numbers", "npz-unreadable")
    assert caught.value.code in codes, str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("dtype", [torch.uint64, torch.float64, torch.int64])
def test_the_label_that_is_refused_is_named(dtype: torch.dtype) -> None:
    label = 2**63 if dtype == torch.uint64 else 2**62
    y = torch.tensor([0, label], dtype=dtype)
    with refused("sample-label-range", row=1, label=label):
        as_samples((torch.zeros(2, 1), y))
    with refused("sample-label-range", row=1, label=label):
        as_samples((torch.zeros(2, 1), y), classes=["a", "b"])


# ---- published sets


def refuse(code: str, name: str, folder: Path) -> None:
    with warnings.catch_warnings(), refused(code) as caught:
        warnings.simplefilter("ignore", DataWarning)
        load(name, folder)
    assert "\n" not in str(caught.value)


IDX = [
    gzip.compress(bytes(10**8)),
    gzip.compress(b""),
    gzip.compress(b"") * 1000,
    b"\x1f\x8b\x08\x1c" + b"\xff" * 2000,
    b"\x1f\x8b",
]


@pytest.mark.parametrize("number", range(len(IDX)))
def test_a_bad_idx_file_is_refused(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path / "mnist", small_mnist(monkeypatch))
    put(tmp_path / "mnist" / f"{IMAGES}.gz", IDX[number])
    refuse("data-damaged", "mnist", tmp_path)


@pytest.mark.parametrize("size", [2**21, 2**43])
def test_a_file_larger_than_published_is_not_read(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path / "mnist", small_mnist(monkeypatch), packed=False)
    with (tmp_path / "mnist" / IMAGES).open("wb") as file:
        file.truncate(size)
    refuse("data-damaged", "mnist", tmp_path)


def nested(kind: bytes, depth: int, key: bool = False) -> bytes:
    """A pickle of lists (a) or tuples inside each other; as a key, its hash takes a C frame for each."""
    inner = b"]" * depth + b"a" * (depth - 1) if kind == b"a" else b")" + kind * depth
    return b"\x80\x02" + (b"}" + inner + b"Ns" if key else inner) + b"."


PICKLES = {
    "lists": nested(b"a", 50_000),
    "tuples": nested(b"\x85", 300_000),
    "a key of tuples": nested(b"\x85", 300_000, key=True),
    "memo": b"\x80\x02Nr\xff\xff\xff\x7f.",
    "marks": b"\x80\x02" + b"(" * 10**6 + b".",
    "opcodes": b"\x80\x02" + b"N0" * 10**6 + b"N.",
    "encode": b"\x80\x02c_codecs\nencode\nX\x06\0\0\0latin1q\x010(X\x10\x27\0\0"
    + b"x" * 10_000
    + b"h\x01tq\x020]q\x03("
    + b"".join(b"c_codecs\nencode\nh\x02R" for _ in range(50))
    + b"e.",
    "idna": b"\x80\x02c_codecs\nencode\nX\x04\0\0\0" + b"abcd" + b"X\x04\0\0\0idna\x86R.",
    "array": b"\x80\x02cnumpy\nndarray\nJ\xff\xff\xff\x7f\x85R.",
    "length": b"\x80\x04\x8e" + (2**60).to_bytes(8, "little") + b"abc.",
    "frame": b"\x80\x04\x95" + (2**60).to_bytes(8, "little") + b"N.",
    "cut": pickle.dumps([1, 2])[:-1],
    "empty stack": b"\x80\x020.",
    "unknown memo": b"\x80\x02h\x07.",
    "code": b"cos\nsystem\n(S'true'\ntR.",
}


@pytest.mark.parametrize("name", PICKLES)
def test_a_bad_pickle_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(pickle.UnpicklingError):
        unpickle_arrays(PICKLES[name])
    records = small_cifar(monkeypatch)
    put(tmp_path / TEST_BATCH, records["test_batch"].tobytes())
    put(tmp_path / "cifar10" / "cifar-10-batches-py" / "data_batch_1", PICKLES[name])
    refuse("data-damaged", "cifar10", tmp_path)


@pytest.mark.parametrize("protocol", range(5))
def test_a_good_pickle_is_read(protocol: int) -> None:
    batch = np.arange(2 * 3073, dtype=np.uint32).astype(np.uint8).reshape(2, 3073)
    batch[:, 0] = 7
    found = unpickle_arrays(pickled(batch, protocol))
    assert {str(key).strip("b'"): value for key, value in found.items()}["labels"] == [7, 7]


def tar(*headers: tuple[str, int, bytes]) -> bytes:
    """A packed archive of headers with these names, sizes and types, without data."""
    out = b""
    for name, size, kind in headers:
        info = tarfile.TarInfo(name)
        info.size, info.type = size, kind
        out += info.tobuf(tarfile.GNU_FORMAT)
    return gzip.compress(out + bytes(1024))


WANTED = "cifar-10-batches-bin/data_batch_1.bin"


ARCHIVES = [
    gzip.compress(bytes(10**8)),
    archive({"big": bytes(10**7)}),
    archive({str(i): b"" for i in range(2000)}),
    tar((WANTED, 2**40, tarfile.REGTYPE)),
    tar((WANTED, -512, tarfile.REGTYPE)),
    tar(("other", -1024, tarfile.REGTYPE), (WANTED, 12, tarfile.REGTYPE)),
    tar(*[("long", 0, tarfile.GNUTYPE_LONGNAME)] * 3000),
    tar(("long", 2**40, tarfile.GNUTYPE_LONGNAME)),
    tar(("pax", 2**40, tarfile.XHDTYPE)),
    tar((WANTED, 0, tarfile.SYMTYPE)),
    tar((WANTED, 0, tarfile.DIRTYPE)),
    archive({WANTED: b"x"})[:-40],
]


@pytest.mark.parametrize("number", range(len(ARCHIVES)))
def test_a_bad_archive_is_refused(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = small_cifar(monkeypatch)
    put(tmp_path / TEST_BATCH, records["test_batch"].tobytes())
    put(tmp_path / "cifar10" / "cifar-10-binary.tar.gz", ARCHIVES[number])
    refuse("data-damaged", "cifar10", tmp_path)


def matlab(*elements: tuple[int, bytes], order: bytes = b"IM") -> bytes:
    """A MAT-file of these elements, each a type and its bytes."""
    header = b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\1" + order
    return header + b"".join(struct.pack("<2I", kind, len(data)) + data for kind, data in elements)


def variable(name: bytes, kind: int, *shape: int, data: tuple[int, bytes] = (2, b"")) -> bytes:
    """A MATLAB variable of a class (1 cell, 2 struct, 5 sparse, 6 double, 9 uint8) that announces a shape."""

    def element(code: int, content: bytes) -> bytes:
        return struct.pack("<2I", code, len(content)) + content + bytes(-len(content) % 8)

    dims = struct.pack(f"<{len(shape)}i", *shape)
    return element(6, struct.pack("<2I", kind, 0)) + element(5, dims) + element(1, name) + element(*data)


def packed(kind: int, content: bytes) -> bytes:
    return zlib.compress(struct.pack("<2I", kind, len(content)) + content)


SHAPE = (32, 32, 3, 3)
BOMB = zlib.compress(struct.pack("<2I", 14, 10**8) + bytes(10**8))


MAT_FILES = [
    matlab((15, BOMB)),
    matlab((15, BOMB), (15, BOMB)),
    matlab((14, variable(b"X", 9, 10**9, 1))),
    matlab((14, variable(b"X", 1, 10**9, 1))),
    matlab((14, variable(b"X", 2, 10**9, 1))),
    matlab((14, variable(b"X", 5, 10**9, 10**9))),
    matlab((14, variable(b"X", 9, *SHAPE)), (14, variable(b"y", 9, 3, 1, data=(2, b"\1\2\3")))),
    matlab((14, variable(b"X", 1, *SHAPE)), (14, variable(b"y", 9, 3, 1))),
    matlab((14, variable(b"X", 9, *SHAPE)), (14, variable(b"y", 1, 10**9, 1))),
    matlab((14, variable(b"X", 9, *[1] * 1000))),
    matlab((14, variable(b"X" * 10**5, 9, 1, 1))),
    matlab((15, packed(14, variable(b"X", 9, -1, -1)))),
    matlab((15, packed(15, packed(14, variable(b"X", 9, *SHAPE))))),
    matlab((14, b"")),
    matlab(*[(0, b"")] * 10**5),
    matlab() + struct.pack("<2I", 14, 2**32 - 1),
    matlab(order=b"XX"),
    matlab(order=b"MI"),
    b"\x89HDF\r\n\x1a\n" + bytes(600),
    struct.pack("<5i", 0, 2**30, 2**30, 0, 2) + b"X\0",
    b"",
]


@pytest.mark.parametrize("number", range(len(MAT_FILES)))
def test_a_bad_mat_file_is_refused(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = small_svhn(monkeypatch)
    write_svhn(tmp_path / "svhn", x, np.array([10, 1, 9], np.uint8))
    put(tmp_path / "svhn" / "train_32x32.mat", MAT_FILES[number])
    refuse("data-damaged", "svhn", tmp_path)


# ---- flipped bits of published sets


def flipped(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def content(name: str, folder: Path) -> bytes:
    """All samples and labels of a set."""
    return b"".join(part.x.numpy().tobytes() + part.y.numpy().tobytes() for part in load(name, folder))


def write_cifar(folder: Path, records: dict[str, NDArray[np.uint8]], form: str) -> None:
    kind = form.partition(" ")[0]
    if kind == "bin":
        files = {f"cifar-10-batches-bin/{name}.bin": batch.tobytes() for name, batch in records.items()}
    else:
        files = {f"cifar-10-batches-py/{name}": pickled(batch) for name, batch in records.items()}
    if "archive" in form:
        name = {"bin": "cifar-10-binary.tar.gz", "py": "cifar-10-python.tar.gz"}[kind]
        files = {name: archive(files)}
    for path, data in files.items():
        put(folder / "cifar10" / path, data)


def write_set(form: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a small set in one of its forms and return its name."""
    name, _, how = form.partition(" ")
    if name == "mnist":
        write_mnist(folder / "mnist", small_mnist(monkeypatch), packed=how == "gz")
    elif name == "svhn":
        x, _ = small_svhn(monkeypatch)
        write_svhn(folder / "svhn", x, np.array([10, 1, 9], np.uint8), packed=how == "packed")
    elif name == "cifar10":
        write_cifar(folder, small_cifar(monkeypatch), how)
    return name


FORMS = ["mnist gz", "mnist idx", "svhn packed", "svhn plain"]
FORMS += [f"cifar10 {how}" for how in ("bin", "py", "bin archive", "py archive")]


def count_silent(name: str, folder: Path, flips: int, seed: object) -> int:
    """Flip bits at random places of the files, one at a time; count the loads that give other samples."""
    rng, good, silent = random.Random(str(seed)), content(name, folder), 0
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for _ in range(flips):
        path = rng.choice(files)
        whole, status = path.read_bytes(), path.stat()
        path.write_bytes(flipped(whole, rng))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        with suppress(InputError):
            silent += content(name, folder) != good
        path.write_bytes(whole)
    assert content(name, folder) == good
    return silent


@pytest.mark.parametrize("form", FORMS)
def test_no_flipped_bit_of_a_published_set_is_silent(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = write_set(form, tmp_path, monkeypatch)
    assert count_silent(name, tmp_path, FLIPS, form) == 0


@pytest.mark.parametrize("how", ["gz", "idx"])
def test_no_flipped_bit_is_silent_where_the_sums_of_values_are_unknown(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for Fashion-MNIST: a file without its published sum is used with a warning, at every load."""
    write_mnist(tmp_path / "mnist", small_mnist(monkeypatch, content=False), packed=how == "gz")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        good = content("mnist", tmp_path)
    path, rng = tmp_path / "mnist" / (IMAGES + (".gz" if how == "gz" else "")), random.Random(how)
    whole = path.read_bytes()
    for _ in range(FLIPS):
        path.write_bytes(flipped(whole, rng))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                changed = content("mnist", tmp_path) != good
            except InputError:
                continue
        assert not changed or any(str(path) in str(warning.message) for warning in caught)


def test_no_flipped_bit_of_the_digits_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, rng = digits.PATH.read_bytes(), random.Random(0)
    path = tmp_path / "digits.npz"
    monkeypatch.setattr(digits, "PATH", path)
    for _ in range(FLIPS):
        path.write_bytes(flipped(whole, rng))
        with refused("digits-damaged", path=path):
            load("digits")
    path.write_bytes(whole)
    assert len(load("digits")[0]) == digits.TRAIN


@pytest.mark.skipif(not (REAL / TEST_BATCH).is_file(), reason=f"SIHG_DATA names no folder with {TEST_BATCH}")
def test_no_flipped_bit_of_the_real_cifar10_is_silent(tmp_path: Path) -> None:
    rng, folder = random.Random(0), tmp_path / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name in (TEST_BATCH, TRAIN_BATCH):
        (tmp_path / name).write_bytes((REAL / name).read_bytes())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # only one batch for training
        load("cifar10", tmp_path)
        for _ in range(25):
            path = tmp_path / rng.choice((TEST_BATCH, TRAIN_BATCH))
            place, bit = rng.randrange(path.stat().st_size), 1 << rng.randrange(8)
            flip_in_place(path, place, bit)
            with refused("data-damaged", path=str(path)):
                load("cifar10", tmp_path)
            flip_in_place(path, place, bit)
        load("cifar10", tmp_path)


def flip_in_place(path: Path, place: int, bit: int) -> None:
    """Flip a bit of a file, which keeps its size and time."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes((byte ^ bit,)))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


# ---- weights


def torch_zip(pickled_object: bytes, **members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, data in {"data.pkl": pickled_object, "version": b"3\n", "byteorder": b"little", **members}.items():
            file.writestr(f"archive/{name}", data)
    return out.getvalue()


def saved(value: object) -> bytes:
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


def deflated(data: bytes) -> bytes:
    """The same zip archive with its members compressed."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            new.writestr(info.filename, old.read(info))
    return out.getvalue()


def safetensors(header: bytes, length: int | None = None, data: bytes = b"") -> bytes:
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


STATE = {"a": torch.ones(3)}
ENTRY = {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}
WEIGHTS = {
    "header of 2**60 bytes.safetensors": safetensors(b"{}", 2**60),
    "header of 2**64 bytes.safetensors": safetensors(b"{}", 2**64 - 1),
    "nested header.safetensors": safetensors(b"[" * 10**6),
    "nested object.safetensors": safetensors(b'{"a":' * 10**5),
    "huge shape.safetensors": safetensors(
        json.dumps({"a": {**ENTRY, "shape": [2**62, 2**62]}}).encode(), None, bytes(12)
    ),
    "huge offset.safetensors": safetensors(json.dumps({"a": {**ENTRY, "data_offsets": [0, 2**62]}}).encode()),
    "unknown type.safetensors": safetensors(json.dumps({"a": {**ENTRY, "dtype": "F99"}}).encode(), None, bytes(12)),
    "no data.safetensors": safetensors(json.dumps({"a": ENTRY}).encode()),
    "empty.safetensors": b"",
    "zeros.safetensors": bytes(100),
    "empty.pt": b"",
    "zeros.pt": bytes(100),
    "cut.pt": saved(STATE)[:-100],
    "half.pt": saved(STATE)[:200],
    "bomb.pt": deflated(saved({"a": torch.zeros(10**7)})),
    "announced.pt": announcing(saved(STATE), 2**32 - 2),
    "no members.pt": b"PK\5\6" + bytes(18),
    "only magic.pt": b"PK\3\4",
    "number.pt": saved(3),
    "model.pt": saved(torch.nn.Linear(2, 2)),
    **{f"{name} in a zip.pt": torch_zip(data) for name, data in PICKLES.items()},
    **{f"{name} alone.pt": data for name, data in PICKLES.items()},
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_bad_weights_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_state_dict(put(tmp_path / name, WEIGHTS[name]))
    assert caught.value.code.startswith("weights-")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("how", ["zip", "old", "safetensors", "state_dict"])
def test_good_weights_and_links_to_them_are_read(how: str, tmp_path: Path) -> None:
    path = tmp_path / ("a.safetensors" if how == "safetensors" else "a.pt")
    if how == "safetensors":
        save_file(STATE, path)
    else:
        value = {"state_dict": STATE} if how == "state_dict" else STATE
        torch.save(value, path, _use_new_zipfile_serialization=how != "old")
    link = tmp_path / f"link{path.suffix}"
    link.symlink_to(path)
    for place in (path, link):
        assert read_state_dict(place).tensors["a"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_flipped_weights_load_or_are_refused(suffix: str, tmp_path: Path) -> None:
    path, rng = tmp_path / f"a{suffix}", random.Random(suffix)
    torch.save(STATE, path) if suffix == ".pt" else save_file(STATE, path)
    whole = path.read_bytes()
    for _ in range(2 * FLIPS):
        path.write_bytes(flipped(whole, rng))
        with suppress(InputError):
            read_state_dict(path)


# ---- pipes, devices and folders


def make_pipe(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)


def link_device(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to("/dev/zero")


def make_folder(path: Path) -> None:
    path.mkdir(parents=True)


@pytest.mark.filterwarnings("ignore::sihg.robust.data.DataWarning")  # an entry that is not a file is skipped
@pytest.mark.parametrize("make", [make_pipe, link_device, make_folder])
@pytest.mark.parametrize("what", ["npz", "image", "pt", "safetensors", "mnist", "svhn", "cifar10"])
def test_what_is_not_a_regular_file_is_refused(what: str, make: Callable[[Path], None], tmp_path: Path) -> None:
    def read() -> object:
        path = tmp_path / {"image": "set/a/x.png", "mnist": f"mnist/{IMAGES}", "cifar10": TEST_BATCH}.get(
            what, "svhn/train_32x32.mat" if what == "svhn" else f"a.{what}"
        )
        make(path)
        if what in ("pt", "safetensors"):
            return read_state_dict(path)
        return load({"npz": f"npz:{path}", "image": f"folder:{tmp_path / 'set'}"}.get(what, what), tmp_path)

    with pytest.raises(InputError) as caught:
        read()
    folder = ("npz-unreadable", "weights-unreadable")
    assert caught.value.code in ("not-a-regular-file", "no-images", "data-missing", *folder)
