"""Malformed .npy files and tar shards, which are read by row: one InputError each, nothing unpickled, no hang."""

import gzip
import io
import os
import pickle
import random
import tarfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from sihg.errors import InputError
from sihg.robust.data import Samples, load
from sihg.robust.data.sources import open_data
from tests.faults.test_parsers import NPZ, described, flipped, npy
from tests.refused import refused
from tests.robust.data.lazy_sets import images, labels, members, write_npy, write_shard
from tests.robust.data.sets import put

FLIPS = 150
BAD_NPY = {
    "huge": npy(described("|u1", "(100000000000,)"), bytes(100)),
    "overflow": npy(described("|u1", f"({2**62}, 4)"), b"ab"),
    "empty and huge": npy(described("|u1", "(0," + f"{2**63},)"), b""),
    "negative": npy(described("|u1", "(-2,)"), b"ab"),
    "nested": npy(described("|u1", "(" * 5000 + "2" + ")" * 5000), b"ab"),
    "objects": npy(described("|O", "(40,)"), pickle.dumps(list(range(40)))),
    "structures": npy(described("|V8", "(40,)"), bytes(320)),
    "complex": npy(described("<c8", "(40, 2)"), bytes(640)),
    "code": npy("__import__('os').system('true')", b"ab"),
    "no header": npy("", b""),
    "version": b"\x93NUMPY\x09\x09",
    "nothing": b"",
    "zip": NPZ[8],
    "no shape": npy(described("|u1", "()"), b"a"),
    "short": npy(described("|u1", "(40, 3, 4, 5)"), bytes(2399)),
    "long header": npy("x" * 65000),
}


@pytest.mark.parametrize("name", BAD_NPY)
@pytest.mark.parametrize("array", ["x_train", "y_train"])
def test_a_bad_npy_file_is_refused(name: str, array: str, tmp_path: Path) -> None:
    folder = write_npy(tmp_path / "a")
    put(folder / f"{array}.npy", BAD_NPY[name])
    with pytest.raises(InputError) as caught:
        load(f"npy:{folder}")
    assert "\n" not in str(caught.value)


def test_a_file_in_column_order_is_refused(tmp_path: Path) -> None:
    folder = write_npy(tmp_path / "a", x=np.asfortranarray(images()), y=labels())
    with refused("npy-order"):
        load(f"npy:{folder}")


def test_missing_arrays_and_folders_are_named(tmp_path: Path) -> None:
    with refused("no-npy-folder"):
        load(f"npy:{tmp_path / 'nowhere'}")
    with refused("npy-files", file="y.npy", files="labels.npy, x_train.npy"):
        load(f"npy:{write_npy(tmp_path / 'a', x_train=images(), labels=labels())}")
    (tmp_path / "empty").mkdir()
    with refused("npy-files", file="x.npy", files="no other .npy file"):
        load(f"npy:{tmp_path / 'empty'}")
    with refused("sample-shapes"):
        load(f"npy:{write_npy(tmp_path / 'b', x=images(), y=labels(39))}")


def test_a_file_that_is_cut_while_it_is_used_is_an_error_and_no_signal(tmp_path: Path) -> None:
    folder = write_npy(tmp_path / "a")
    train, _ = open_data(f"npy:{folder}")
    with (folder / "x_train.npy").open("r+b") as file:
        file.truncate(500)
    with refused("data-cut-short"):
        train.floats()


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.tar")
    with refused("not-a-regular-file"):
        load(f"wds:{tmp_path / 'a.tar'}")


def tar(*headers: tuple[str, int, bytes], end: bool = True) -> bytes:
    """A tar file of headers with these names, sizes and types, without data."""
    out = b""
    for name, size, kind in headers:
        info = tarfile.TarInfo(name)
        info.size, info.type = size, kind
        out += info.tobuf(tarfile.GNU_FORMAT)
    return out + bytes(1024 if end else 0)


def linked() -> bytes:
    """A tar file whose image is a link to a file outside."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, target in (("0.png", "/etc/passwd"), ("1.png", "../x.png")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
        label = tarfile.TarInfo("0.cls")
        label.size = 1
        archive.addfile(label, io.BytesIO(b"0"))
    return out.getvalue()


PAX = tar(("x", 30, tarfile.XHDTYPE), end=False)
BAD_TARS = {
    "nothing": b"",
    "zeros": bytes(10240),
    "packed": gzip.compress(tar(("0.png", 0, tarfile.REGTYPE))),
    "noise": random.Random(0).randbytes(5000),
    "huge": tar(("0.png", 2**40, tarfile.REGTYPE)),
    "negative": tar(("0.png", -512, tarfile.REGTYPE)),
    "back": tar(("other", -1024, tarfile.DIRTYPE), ("0.png", 12, tarfile.REGTYPE)),
    "long name": tar(("long", 2**40, tarfile.GNUTYPE_LONGNAME)),
    "fields": tar(("pax", 2**40, tarfile.XHDTYPE)),
    "broken fields": PAX + b"99999 path=a\n".ljust(512, b"\0") + bytes(1024),
    "fields without length": PAX + b"path=a\n".ljust(512, b"\0") + bytes(1024),
    "sparse": tar(("0.png", 10, tarfile.GNUTYPE_SPARSE)),
    "links": linked(),
    "no end": tar(("0.txt", 0, tarfile.REGTYPE), end=False),
    "only names": tar(*[("long", 0, tarfile.GNUTYPE_LONGNAME)] * 3000),
}


@pytest.mark.parametrize("name", BAD_TARS)
def test_a_bad_shard_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load(f"wds:{put(tmp_path / 'a.tar', BAD_TARS[name])}")
    assert "\n" not in str(caught.value)


def test_a_shard_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = write_shard(tmp_path / "a.tar", members(8)).read_bytes()
    used = len(whole.rstrip(b"\0"))
    for size in range(0, used, 777):
        with pytest.raises(InputError):
            load(f"wds:{put(tmp_path / 'a.tar', whole[:size])}")


def test_an_array_in_a_shard_is_not_unpickled(tmp_path: Path) -> None:
    content = {name.replace("png", "npy"): data for name, data in members(8).items()}
    content["0000.npy"] = npy(described("|O", "(2,)"), pickle.dumps([1, 2]))
    with refused("npy-unreadable"):
        load(f"wds:{write_shard(tmp_path / 'a.tar', content)}")


@pytest.mark.parametrize("kind", ["npy", "wds"])
def test_a_flipped_file_loads_or_is_refused(kind: str, tmp_path: Path) -> None:
    rng, loads = random.Random(kind), 0
    path = write_npy(tmp_path / "a") / "x_train.npy" if kind == "npy" else tmp_path / "a" / "a.tar"
    if kind == "wds":
        write_shard(path, members(8))
    whole = path.read_bytes()
    for _ in range(FLIPS):
        put(path, flipped(whole[: 200 if kind == "npy" else None], rng) + (whole[200:] if kind == "npy" else b""))
        with suppress(InputError):
            train, test = load(f"{kind}:{tmp_path / 'a'}")
            assert isinstance(train, Samples)
            assert train.lazy is test.lazy is None
            loads += 1
    assert 0 < loads < FLIPS
