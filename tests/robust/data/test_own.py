"""folder:PATH, npz:PATH and path.py:name, the user's own data."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sihg.robust.data import DataWarning, as_samples, load
from tests.refused import refused


def write_images(folder: Path, n: int = 5, size: tuple[int, int] = (4, 3), mode: str = "RGB") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(n):
        Image.new(mode, size, i if mode == "L" else (i, 0, 9)).save(folder / f"{i}.png")


def test_folder_without_a_split(tmp_path: Path) -> None:
    write_images(tmp_path / "dog")
    write_images(tmp_path / "cat", 10)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "cat" / ".DS_Store").write_text("x")
    train, test = load(f"folder:{tmp_path}")
    assert (train.classes, train.shape, train.x.dtype) == (("cat", "dog"), (3, 3, 4), torch.uint8)
    assert (train.y.bincount().tolist(), test.y.bincount().tolist()) == ([8, 4], [2, 1])
    assert train.x[0, :, 0, 0].tolist()[1:] == [0, 9]
    assert load(f"folder:{tmp_path}")[1].x.equal(test.x)


def test_folder_with_train_and_test(tmp_path: Path) -> None:
    write_images(tmp_path / "train" / "a", 3)
    write_images(tmp_path / "train" / "b", 2, mode="L")
    write_images(tmp_path / "test" / "b", 1)
    train, test = load(f"folder:{tmp_path}")
    assert (train.y.tolist(), test.y.tolist(), test.classes) == ([0, 0, 0, 1, 1], [1], ("a", "b"))
    assert train.x[4].unique().tolist() == [1]  # grey among colour: its value in all three channels
    write_images(tmp_path / "test" / "c", 1)
    with refused("class-without-samples", label="c"):
        load(f"folder:{tmp_path}")


def test_folder_of_grey_images_has_one_channel(tmp_path: Path) -> None:
    write_images(tmp_path / "a", mode="L")
    assert load(f"folder:{tmp_path}")[0].shape == (1, 3, 4)


def test_other_files_are_named_in_a_warning(tmp_path: Path) -> None:
    write_images(tmp_path / "a")
    (tmp_path / "a" / "notes.txt").write_text("x")
    with pytest.warns(DataWarning, match=r"skipped 1 files that are not images: .*notes.txt"):
        assert len(load(f"folder:{tmp_path}")[0]) == 4


def test_what_is_wrong_in_a_folder_is_named(tmp_path: Path) -> None:
    def check(code: str, **values: object) -> None:
        with refused(code, **values) as caught:
            load(f"folder:{tmp_path / 'set'}")
        assert "\n" not in str(caught.value)

    file = tmp_path / "set" / "a" / "2.png"
    check("no-image-folder", path=str(tmp_path / "set"))
    (tmp_path / "set").mkdir()
    check("no-class-folders")
    file.parent.mkdir()
    check("no-images")
    write_images(file.parent)
    Image.new("RGB", (5, 5)).save(file)
    check("image-size", path=str(file))
    whole = (file.parent / "1.png").read_bytes()
    for broken in (b"", b"nonsense", whole[:50]):
        file.write_bytes(broken)
        check("image-unreadable", path=str(file))
    Image.new("I;16", (4, 3)).save(file)
    check("image-bits")


@pytest.mark.parametrize(
    ("given", "kept"),
    [((10, 6, 5, 3), (3, 6, 5)), ((10, 3, 6, 5), (3, 6, 5)), ((10, 6, 5), (1, 6, 5)), ((10, 7), (7,)), ((10,), ())],
)
def test_npz_shapes(given: tuple[int, ...], kept: tuple[int, ...], tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, given, np.uint8)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(10) % 2)
    train, test = load(f"npz:{tmp_path / 'a.npz'}")
    assert (train.shape, train.x.dtype) == (kept, torch.uint8)
    assert (train.y.bincount().tolist(), test.y.bincount().tolist()) == ([4, 4], [1, 1])
    if given == (10, 6, 5, 3):
        rows = {image.transpose(2, 0, 1).tobytes() for image in x}
        assert {image.numpy().tobytes() for image in torch.cat([train.x, test.x])} == rows


def test_npz_with_a_test_set(tmp_path: Path) -> None:
    x = np.ones((4, 2), np.float32)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=np.array([[0], [1], [2], [1]]), x_test=x[:1], y_test=[1])
    train, test = load(f"npz:{tmp_path / 'a.npz'}")
    assert (train.y.tolist(), test.y.tolist()) == ([0, 1, 2, 1], [1])
    assert train.classes == test.classes == ("0", "1", "2")
    assert train.x.dtype == torch.float32


@pytest.mark.parametrize("kind", ["<f8", ">f8", "<f4", "<f2"])
def test_npz_floats_are_those_of_models(kind: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((20, 3)).astype(kind)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(20) % 2, x_test=x[:3], y_test=[0, 1, 0])
    train, test = load(f"npz:{tmp_path / 'a.npz'}")
    assert train.x.dtype == test.x.dtype == torch.float32
    assert train.x.numpy().tolist() == x.astype(np.float32).tolist()
    assert as_samples((x.astype("=f8"), np.arange(20) % 2)).x.dtype == torch.float64  # a library user's choice


def test_classes_without_training_samples_are_refused(tmp_path: Path) -> None:
    path, x, y = tmp_path / "a.npz", np.ones((30, 2)), np.arange(30) % 10

    def check(code: str, values: dict[str, object], **arrays: object) -> None:
        np.savez(path, **{"x": x, "y": y, **arrays})  # type: ignore[arg-type]
        with refused(code, **values) as caught:
            load(f"npz:{path}")
        assert "\n" not in str(caught.value)

    odd = y.copy()
    odd[17] = 255
    check("npz-label-range", {"array": "y", "row": 17, "classes": 11}, y=odd)
    check("npz-label-range", {"array": "y", "row": 17}, y=odd.astype(float))
    check("npz-label-range", {"array": "y", "row": 1, "classes": 2}, y=y % 2 + 1)
    check("npz-label-range", {"array": "y_test", "row": 2, "classes": 10}, x_test=x[:3], y_test=[0, 9, 10])
    huge = y.astype(np.int64)
    huge[0] = 10**15  # whose classes nobody could list
    check("npz-label-range", {"array": "y", "row": 0}, y=huge)
    check("training-class-missing", {}, x=x[:3], y=np.arange(3))


def test_an_empty_class_folder_is_refused(tmp_path: Path) -> None:
    write_images(tmp_path / "a")
    (tmp_path / "b").mkdir()
    with refused("training-class-missing", label="b"):
        load(f"folder:{tmp_path}")
    write_images(tmp_path / "split" / "train" / "a")
    (tmp_path / "split" / "train" / "b").mkdir()
    write_images(tmp_path / "split" / "test" / "b")
    with refused("training-class-missing", label="b"):
        load(f"folder:{tmp_path / 'split'}")


def test_what_is_wrong_in_an_npz_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"

    def check(code: str, **arrays: object) -> str:
        if arrays:
            np.savez(path, **arrays)  # type: ignore[arg-type]
        with refused(code) as caught:
            load(f"npz:{path}")
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    x = np.ones((3, 2))
    check("no-npz-file")
    assert "no array y but x" in check("npz-arrays", x=x)
    assert "no array y_test" in check("npz-arrays", x=x, y=[0, 1, 0], x_test=x)
    check("train-test-differ", x=x, y=[0, 1, 0], x_test=x[:, :1], y_test=[0, 1, 0])
    check("train-test-differ", x=x, y=[0, 1, 0], x_test=x.astype(np.uint8), y_test=[0, 1, 0])
    assert "x of row 0 is inf" in check("sample-not-finite", x=1e300 * x, y=[0, 1, 0])
    check("sample-shapes", x=x, y=[0, 1])
    assert "label of row 1 is -1" in check("sample-label-range", x=x, y=[0, -1, 0])
    assert "x announces 2 values of type object" in check("npz-unreadable", x=np.array([{}, 1], dtype=object), y=[0, 1])
    path.write_bytes(path.read_bytes()[:100])
    check("npz-unreadable")
    path.write_bytes(b"nonsense")
    check("npz-unreadable")
    with path.open("wb") as file:
        np.save(file, x)
    check("npz-single-array")


SOURCE = """
import torch
from torch.utils.data import TensorDataset

def make(n, features=2):
    return torch.arange(n * features).reshape(n, features).float(), torch.arange(n) % 3

def pairs():
    return make(9), make(3)

def datasets():
    return TensorDataset(*make(9)), TensorDataset(*make(3))

def alone():
    return torch.zeros(3)

def unlike():
    return make(9), make(3, features=4)

def gap():
    x, y = make(9)
    return (x, 2 * y), (x, y)
"""


@pytest.mark.parametrize("function", ["pairs", "datasets"])
def test_a_source_of_a_users_own_is_one_function(function: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    name = f"{tmp_path / 'mine.py'}:{function}"
    train, test = load(name)
    assert (train.x[-1].tolist(), train.y.tolist()) == ([16.0, 17.0], [0, 1, 2] * 3)
    assert (len(test), test.classes, test.name) == (3, ("0", "1", "2"), name)


@pytest.mark.parametrize(
    ("function", "code"),
    [
        ("alone", "not-train-and-test"),
        ("unlike", "train-test-differ"),
        ("gap", "training-class-missing"),
        ("make", "user-code-failed"),
        ("nothing", "user-code-import"),
    ],
)
def test_a_source_of_a_users_own_is_checked(function: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    with refused(code):
        load(f"{tmp_path / 'mine.py'}:{function}")
