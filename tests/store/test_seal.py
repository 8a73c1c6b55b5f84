"""A file that carries its own sum notices every changed byte; with a key, only the key's owner can write it."""

import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from sihg.errors import InputError
from sihg.store.arrays import read_arrays, write_arrays
from sihg.store.schema import Environment, read_json, read_record, read_toml, write_json, write_record, write_toml
from sihg.store.seal import MARK, NO_SUM, check_seal, seal
from tests.refused import refused

SEALED = {"json": b'{"a": 1, "seal": "' + NO_SUM.encode() + b'"}\n', "toml": b"a = 1\n# " + NO_SUM.encode() + b"\n"}


def flipped(data: bytes) -> Iterator[bytes]:
    """Yield the data with each of its bits flipped."""
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        yield bytes(changed)


@pytest.mark.parametrize("kind", SEALED)
@pytest.mark.parametrize("key", [None, b"k" * 32])
def test_every_flipped_bit_is_noticed(kind: str, key: bytes | None) -> None:
    whole = seal(SEALED[kind], key)
    assert check_seal(whole, key) == "good"
    assert len(whole) == len(SEALED[kind])
    found = [check_seal(changed, key) for changed in flipped(whole)]
    assert set(found) == {"wrong", "missing"}
    assert found.count("missing") <= 8 * len(NO_SUM)  # only damage to the seal itself can hide it


@pytest.mark.parametrize("kind", SEALED)
def test_every_cut_and_every_addition_is_noticed(kind: str) -> None:
    whole = seal(SEALED[kind])
    assert "good" not in {check_seal(whole[:size]) for size in range(len(whole))}
    assert {check_seal(whole + b"\n"), check_seal(b" " + whole), check_seal(whole + whole)} == {"wrong"}


def test_a_seal_needs_its_key() -> None:
    mine, plain = seal(SEALED["json"], b"k" * 32), seal(SEALED["json"])
    assert check_seal(mine, b"k" * 32) == "good"
    assert [check_seal(mine), check_seal(mine, b"K" * 32), check_seal(plain, b"k" * 32)] == ["wrong"] * 3


def test_the_last_seal_counts() -> None:
    """A record may hold the text of another seal, such as in a name."""
    inner = seal(SEALED["toml"])
    whole = seal(inner + SEALED["json"])
    assert check_seal(whole) == "good"
    assert check_seal(whole.replace(b"a = 1", b"a = 2")) == "wrong"
    assert whole.count(MARK) == 2


def json_file(path: Path) -> None:
    write_json(path, {"eps": 0.1})


def toml_file(path: Path) -> None:
    write_toml(path, {"eps": 0.1}, {"eps": "radius"})


def npz_file(path: Path) -> None:
    write_arrays(path, {"a": [1.5]})


def plain_npz_file(path: Path) -> None:
    write_arrays(path, {"a": [1.5]}, compressed=False)


READERS: dict[str, Callable[[Path], object]] = {
    "json_file": lambda path: read_json(path, "restore it"),
    "toml_file": read_toml,
    "npz_file": read_arrays,
    "plain_npz_file": read_arrays,
}


@pytest.mark.parametrize("write", [json_file, toml_file, npz_file, plain_npz_file])
def test_readers_refuse_every_flipped_bit_and_every_cut(tmp_path: Path, write: Callable[[Path], None]) -> None:
    path, read = tmp_path / "a", READERS[write.__name__]
    write(path)
    whole = path.read_bytes()
    read(path)
    for changed in (*flipped(whole), *(whole[:size] for size in range(len(whole)))):
        path.write_bytes(changed)
        with pytest.raises(InputError):
            read(path)
    path.write_bytes(whole)
    read(path)


def test_a_record_comes_back_without_its_seal(tmp_path: Path) -> None:
    path = write_record(tmp_path / "a.json", Environment(python="3", threads=2))
    assert check_seal(path.read_bytes()) == "good"
    assert read_record(path, Environment) == Environment(python="3", threads=2)
    assert read_json(path, "restore it") == {"format": 2, "python": "3", "threads": 2}


# ---- .npz files


def test_other_programs_read_sealed_arrays(tmp_path: Path) -> None:
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.array(["x", "yz"]), "c": np.array(True)}
    for compressed in (True, False):
        path = write_arrays(tmp_path / "a.npz", arrays, compressed=compressed)
        with np.load(path) as found:
            assert {name: found[name].tolist() for name in found.files} == {k: v.tolist() for k, v in arrays.items()}
        ours = read_arrays(path)
        assert {name: (t.dtype, t.tolist()) for name, t in ours.items()} == {
            name: (t.dtype, t.tolist()) for name, t in arrays.items()
        }
    assert list(read_arrays(path, ["b", "none"])) == ["b"]


def test_arrays_without_a_seal_are_read_only_on_request(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, a=[1.0])
    with refused("seal-missing", path=path):
        read_arrays(path)
    assert read_arrays(path, sealed=False)["a"].tolist() == [1.0]
    write_arrays(path, {"a": [1.0]})
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with refused("seal-wrong", path=path):  # a seal that is there is checked in any case
        read_arrays(path, sealed=False)


def test_arrays_of_another_key_are_refused(tmp_path: Path) -> None:
    path = write_arrays(tmp_path / "a.npz", {"a": [1.0]}, key=b"k" * 32)
    assert read_arrays(path, key=b"k" * 32)["a"].tolist() == [1.0]
    for key in (None, b"K" * 32):
        with refused("seal-wrong", path=path):
            read_arrays(path, key=key)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, a=np.array([{"x": 1}], dtype=object))
    with refused("arrays-unreadable", path=path):
        read_arrays(path, sealed=False)


def test_arrays_larger_than_allowed_are_refused_before_they_are_read(tmp_path: Path) -> None:
    path = write_arrays(tmp_path / "a.npz", {"a": np.zeros(100_000)})
    assert path.stat().st_size < 2000
    with refused("arrays-too-large", path=path, limit=10_000):
        read_arrays(path, limit=10_000)
    with refused("file-too-large", path=path, limit=100):
        read_arrays(path, limit=100)


def test_an_array_that_announces_more_than_it_has_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, a=np.zeros(3))
    with zipfile.ZipFile(path) as archive:
        member = archive.read("a.npy")
    for shape in (b"(3000000000,), }", b"(3000000000,),  ", b"(-3,), }        "):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.npy", member.replace(b"(3,), }" + b" " * 9, shape))
        with refused("arrays-unreadable", path=path):
            read_arrays(path, sealed=False)


def test_other_files_than_npz_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with refused("arrays-unreadable", path=path):
        read_arrays(path)
    path.write_bytes(b"PK")
    with refused("arrays-unreadable", path=path):
        read_arrays(path, sealed=False)
    path.unlink()
    path.mkdir()
    with refused("not-a-regular-file", path=path):
        read_arrays(path)
