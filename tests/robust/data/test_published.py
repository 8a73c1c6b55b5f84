"""The published formats: read strictly, checked whenever they are read, found in the layouts that people have."""

import gzip
import json
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sihg.errors import InputError
from sihg.robust.data import SOURCES, DataWarning, file_checks, load
from sihg.robust.data.file_checks import content_md5
from sihg.robust.data.locations import data_folder
from sihg.robust.data.pickles import unpickle_arrays
from sihg.store.files import read_regular
from tests.refused import refused
from tests.robust.data.sets import (
    BATCH,
    archive,
    idx_bytes,
    pickled,
    put,
    small_cifar,
    small_mnist,
    small_svhn,
    write_mnist,
    write_svhn,
)

IMAGES = "train-images-idx3-ubyte"
LABELS = "train-labels-idx1-ubyte"


@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw"])
@pytest.mark.parametrize("packed", [True, False])
def test_idx(folder: str, packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = small_mnist(monkeypatch)
    write_mnist(tmp_path / folder, arrays, packed=packed)
    train, test = load("mnist", tmp_path)
    assert train.x[:, 0].numpy().tobytes() == arrays[IMAGES].tobytes()
    assert train.y.tolist() == arrays[LABELS].tolist()
    assert (len(test), test.shape, test.classes) == (5, (1, 4, 3), tuple("0123456789"))


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda raw: gzip.compress(raw)[:-20], "gzip: "),
        (lambda raw: flipped(gzip.compress(raw), 40), "gzip: "),
        (lambda _: b"not gzip at all", "gzip: "),
        (lambda raw: gzip.compress(flipped(raw, 3)), "it begins with 00000802"),
        (lambda raw: gzip.compress(flipped(raw, 7)), r"it says shape \(13, 4, 3\), not \(12, 4, 3\)"),
        (lambda raw: gzip.compress(raw[:-1]), "bytes, less than 160 bytes"),
        (lambda raw: gzip.compress(raw + b"x"), "more than 160 bytes"),
        (lambda _: gzip.compress(b""), "it begins with nothing"),
        (lambda raw: gzip.compress(flipped(raw, 99)), f"other values than published in {IMAGES}"),
    ],
)
def test_a_damaged_idx_file_is_refused(
    harm: Callable[[bytes], bytes], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = small_mnist(monkeypatch)
    write_mnist(tmp_path / "mnist", arrays)
    path = tmp_path / "mnist" / f"{IMAGES}.gz"
    path.write_bytes(harm(idx_bytes(arrays[IMAGES])))
    with pytest.raises(InputError, match=message) as caught:
        load("mnist", tmp_path)
    text = str(caught.value)
    assert str(path) in text
    assert "md5 expected f68b3c2dcbeaaa9fbdd348bbdeb94873, found " in text
    assert "`sihg data get mnist`" in text
    assert "\n" not in text


def test_a_bit_flip_in_an_unpacked_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = small_mnist(monkeypatch)
    write_mnist(tmp_path / "mnist", arrays, packed=False)
    path = tmp_path / "mnist" / IMAGES
    path.write_bytes(flipped(path.read_bytes(), 99))
    with pytest.raises(InputError, match=f"of the values; md5 expected {content_md5((arrays[IMAGES],))}, found "):
        load("mnist", tmp_path)


def test_labels_out_of_range_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = small_mnist(monkeypatch, content=False)
    arrays[LABELS][3] = 10
    write_mnist(tmp_path / "mnist", arrays)
    with (
        pytest.warns(DataWarning, match="not a published file"),
        pytest.raises(InputError, match=r"label 10 in row 3, not 0 to 9"),
    ):
        load("mnist", tmp_path)


def test_unknown_sums_are_warned_of_at_every_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path / "mnist", small_mnist(monkeypatch, content=False))
    for _ in range(2):
        with pytest.warns(DataWarning) as caught:
            load("mnist", tmp_path)
        assert len(caught) == 4
        assert caught[0].filename == __file__
        assert "reads well, but is not a published file (md5 expected f68b3c2d" in str(caught[0].message)


def test_a_planted_or_old_verdict_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = small_mnist(monkeypatch)
    write_mnist(
        tmp_path / "mnist", {name: np.bitwise_xor(array, np.uint8(1)) for name, array in arrays.items()}, packed=False
    )
    verdicts = {}
    for name in arrays:
        path = tmp_path / "mnist" / name
        status = path.stat()
        verdicts[f"mnist/{name}"] = {
            "size": status.st_size,
            "mtime_ns": status.st_mtime_ns,
            "state": "ok",
            "md5": "0" * 32,
            "parts": [name],
        }
    (tmp_path / ".sihg-checked.json").write_text(json.dumps(verdicts))
    with refused("data-damaged"):
        load("mnist", tmp_path)


def test_reading_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path / "mnist", small_mnist(monkeypatch))
    load("mnist", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mnist"]


def test_the_bytes_that_are_hashed_are_those_that_are_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = small_mnist(monkeypatch)
    write_mnist(tmp_path / "mnist", arrays)
    reads: list[str] = []

    def changed_after(path: Path, limit: int) -> bytes:
        data = read_regular(path, limit)
        reads.append(path.name)
        path.write_bytes(b"changed")
        return data

    monkeypatch.setattr(file_checks, "read_regular", changed_after)
    assert load("mnist", tmp_path)[0].y.tolist() == arrays[LABELS].tolist()
    assert len(reads) == len(set(reads)) == 4


def test_a_file_is_checked_at_every_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path / "mnist", small_mnist(monkeypatch), packed=False)
    path = tmp_path / "mnist" / IMAGES
    load("mnist", tmp_path)
    status = path.stat()
    path.write_bytes(flipped(path.read_bytes(), 99))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with refused("data-damaged", path=str(path)):
        load("mnist", tmp_path)


def test_missing_files_say_where_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path / "mnist", small_mnist(monkeypatch))
    (tmp_path / "mnist" / f"{LABELS}.gz").unlink()
    with pytest.raises(InputError) as caught:
        load("mnist", tmp_path)
    text = str(caught.value)
    assert f"no {LABELS} in {tmp_path} (looked in mnist, MNIST/raw)" in text
    assert "`sihg data get mnist`, or set SIHG_DATA" in text


def test_where_data_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SIHG_DATA", raising=False)
    assert data_folder() == tmp_path / "cache" / "sihg" / "data"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder() == tmp_path / ".cache" / "sihg" / "data"
    monkeypatch.setenv("SIHG_DATA", str(tmp_path / "mine"))
    assert data_folder() == tmp_path / "mine"
    assert data_folder(tmp_path) == tmp_path


def test_svhn_label_10_is_the_digit_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = small_svhn(monkeypatch)
    write_svhn(tmp_path / "svhn", x, np.array([10, 1, 9], np.uint8))
    train, test = load("svhn", tmp_path)
    assert train.y.tolist() == test.y.tolist() == [0, 1, 9]
    assert train.x.numpy().tobytes() == x.tobytes()


@pytest.mark.parametrize(
    ("labels", "cut", "message"),
    [
        ([0, 1, 9], 0, "label 0 in row 0, not 1 to 10"),
        ([10, 1, 2.5], 0, "label 2.5 in row 2"),
        ([10, 1], 0, "its variable y is uint8"),
        ([10, 1, 8], 0, "other values than published"),
        ([10, 1, 9], 500, "not a MAT-file of version 5"),
        ([10, 1, 9], 10**9, "not a MAT-file of version 5"),
    ],
)
def test_a_damaged_mat_file_is_refused(
    labels: list[float], cut: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, _ = small_svhn(monkeypatch)
    y = np.array(labels, np.float64 if 2.5 in labels else np.uint8)
    write_svhn(tmp_path / "svhn", x, y)
    path = tmp_path / "svhn" / "train_32x32.mat"
    path.write_bytes(path.read_bytes()[: -cut or None])
    with pytest.raises(InputError, match=message) as caught:
        load("svhn", tmp_path)
    assert "md5 expected e26dedcc434d2e4c54c9b2d4a06d8373, found " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", ["bin", "py", "bin archive", "py archive"])
@pytest.mark.parametrize("folder", ["cifar10", "."])
def test_cifar10_in_every_form(form: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = small_cifar(monkeypatch)
    kind = form.split()[0]
    files = {
        f"cifar-10-batches-{kind}/{name}{'.bin' if kind == 'bin' else ''}": (
            batch.tobytes() if kind == "bin" else pickled(batch)
        )
        for name, batch in records.items()
    }
    if form.endswith("archive"):
        name = {"bin": "cifar-10-binary.tar.gz", "py": "cifar-10-python.tar.gz"}[kind]
        put(tmp_path / folder / name, archive({"../evil": b"x", **files}))
    else:
        for path, data in files.items():
            put(tmp_path / folder / path, data)
    train, test = load("cifar10", tmp_path)
    whole = np.concatenate([batch for name, batch in records.items() if name != "test_batch"])
    assert train.x.flatten(1).numpy().tobytes() == whole[:, 1:].tobytes()
    assert train.y.tolist() == whole[:, 0].tolist()
    assert (len(test), test.shape, test.classes[6]) == (BATCH, (3, 32, 32), "frog")
    assert not (tmp_path.parent / "evil").exists()


def test_a_partial_cifar10_is_used_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = small_cifar(monkeypatch)
    for name in ("data_batch_1", "data_batch_4", "test_batch"):
        put(tmp_path / "cifar10" / "cifar-10-batches-bin" / f"{name}.bin", records[name].tobytes())
    with pytest.warns(DataWarning, match="without data_batch_2, data_batch_3, data_batch_5, not found"):
        train, _ = load("cifar10", tmp_path)
    assert train.y.tolist() == [*records["data_batch_1"][:, 0], *records["data_batch_4"][:, 0]]
    (tmp_path / "cifar10" / "cifar-10-batches-bin" / "test_batch.bin").unlink()
    with pytest.raises(InputError, match=r"no .*test_batch in"):
        load("cifar10", tmp_path)


def test_no_training_batch_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = small_cifar(monkeypatch)
    put(tmp_path / "cifar10/cifar-10-batches-bin/test_batch.bin", records["test_batch"].tobytes())
    with pytest.raises(InputError, match="no data_batch_1, "):
        load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("file", "data", "message"),
    [
        ("cifar-10-batches-bin/data_batch_1.bin", b"x", "data_batch_1 has 1 bytes, not 12292"),
        ("cifar-10-batches-bin/data_batch_1.bin", bytes([10]) + bytes(12291), "label 10 in row 0 of data_batch_1"),
        ("cifar-10-batches-bin/data_batch_1.bin", bytes(12292), "other values than published in data_batch_1"),
        ("cifar-10-batches-py/data_batch_1", b"x", "broken pickle|invalid load key"),
        ("cifar-10-batches-py/data_batch_1", pickle.dumps({"data": 1}), "no array 'data' of uint8"),
        ("cifar-10-batches-py/data_batch_1", pickle.dumps([]), "no array 'data' of uint8"),
        ("cifar-10-batches-py/data_batch_1", pickle.dumps(os.system), "asks for posix.system, which is not part of"),
        ("cifar-10-binary.tar.gz", b"x", "archive: "),
        ("cifar-10-binary.tar.gz", archive({"a": b"b"}), "no member cifar-10-batches-bin/data_batch_1.bin"),
    ],
)
def test_a_damaged_cifar10_file_is_refused(
    file: str, data: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = small_cifar(monkeypatch)
    for name in ("data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"):
        put(tmp_path / "cifar10" / "cifar-10-batches-bin" / f"{name}.bin", records[name].tobytes())
    path = put(tmp_path / "cifar10" / file, data)
    with pytest.raises(InputError, match=message) as caught:
        load("cifar10", tmp_path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


class Old:
    """An array as Python 2 pickled it: its dtype's flags are numbers."""

    def __reduce__(self) -> tuple[Any, ...]:
        return np.dtype, ("u1", 0, 1)


def test_pickles_hold_arrays_and_nothing_else(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    assert unpickle_arrays(pickle.dumps({"a": array, "b": [1]}, 2))["a"].tolist() == array.tolist()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert unpickle_arrays(pickle.dumps(Old(), 2)) == np.uint8

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return eval, (f"open({str(tmp_path / 'owned')!r}, 'w')",)

    for value in (Evil(), np.load, torch.ones(1)):
        with pytest.raises(pickle.UnpicklingError, match="it asks for "):
            unpickle_arrays(pickle.dumps(value, 2))
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("name", "n"), [("mnist", 60000), ("fashion-mnist", 60000), ("svhn", 73257), ("cifar10", 10000)]
)
def test_the_real_files(name: str, n: int) -> None:
    if not os.environ.get("SIHG_DATA"):
        pytest.skip("SIHG_DATA is not set")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # CIFAR-10 may be there in part
        try:
            train, test = load(name)
        except InputError as error:
            if "looked in" not in str(error):
                raise
            pytest.skip(str(error))
    assert len(train) >= n
    assert len(test) == SOURCES[name].n[1]
    assert train.shape == SOURCES[name].shape
    assert train.y.unique().tolist() == list(range(10))
