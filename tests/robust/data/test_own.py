"""folder:PATH and npz:PATH, the user's own data."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sihg.errors import InputError
from sihg.robust.data import DataWarning, as_samples, load


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
    with pytest.raises(InputError, match=r"c is a class that .*train does not have"):
        load(f"folder:{tmp_path}")


def test_folder_of_grey_images_has_one_channel(tmp_path: Path) -> None:
    write_images(tmp_path / "a", mode="L")
    assert load(f"folder:{tmp_path}")[0].shape == (1, 3, 4)


def test_other_files_are_named_in_a_warning(tmp_path: Path) -> None:
    write_images(tmp_path / "a")
    (tmp_path / "a" / "notes.txt").write_text("x")
    with pytest.warns(DataWarning, match=r"skipped 1 that are no images: .*notes.txt"):
        assert len(load(f"folder:{tmp_path}")[0]) == 4


def test_what_is_wrong_in_a_folder_is_named(tmp_path: Path) -> None:
    def message() -> str:
        with pytest.raises(InputError) as caught:
            load(f"folder:{tmp_path / 'set'}")
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "there is no folder" in message()
    (tmp_path / "set").mkdir()
    assert "has no sub-folders" in message()
    (tmp_path / "set" / "a").mkdir()
    assert "has no images" in message()
    write_images(tmp_path / "set" / "a")
    Image.new("RGB", (5, 5)).save(tmp_path / "set" / "a" / "2.png")
    assert f"{tmp_path / 'set' / 'a' / '2.png'} has 5x5 pixels, " in message()
    whole = (tmp_path / "set" / "a" / "1.png").read_bytes()
    for broken in (b"", b"nonsense", whole[:50]):
        (tmp_path / "set" / "a" / "2.png").write_bytes(broken)
        assert f"{tmp_path / 'set' / 'a' / '2.png'} cannot be read as an image" in message()
    Image.new("I;16", (4, 3)).save(tmp_path / "set" / "a" / "2.png")
    assert "2.png: an image of mode I;16" in message()


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

    def message(**arrays: object) -> str:
        np.savez(path, **{"x": x, "y": y, **arrays})  # type: ignore[arg-type]
        with pytest.raises(InputError) as caught:
            load(f"npz:{path}")
        assert "\n" not in str(caught.value)
        return str(caught.value)

    odd = y.copy()
    odd[17] = 255
    expected = "row 17 of y has the label 255, but y has 11 different labels, so they must be 0 to 10: correct it, or"
    assert expected in message(y=odd)
    assert "row 17 of y has the label 255.0" in message(y=odd.astype(float))
    assert "row 1 of y has the label 2, but y has 2 different labels" in message(y=y % 2 + 1)
    tested = message(x_test=x[:3], y_test=[0, 9, 10])
    assert "row 2 of y_test has the label 10, but y has 10 different labels" in tested
    huge = y.astype(np.int64)
    huge[0] = 10**15  # whose classes nobody could list
    assert "row 0 of y has the label 1000000000000000" in message(y=huge)
    few = message(x=x[:3], y=np.arange(3))
    assert "has no sample for training: add some, or leave the class out" in few


def test_an_empty_class_folder_is_refused(tmp_path: Path) -> None:
    write_images(tmp_path / "a")
    (tmp_path / "b").mkdir()
    with pytest.raises(InputError, match=r"class 'b' has no sample for training: add some, or leave the class out"):
        load(f"folder:{tmp_path}")
    write_images(tmp_path / "split" / "train" / "a")
    (tmp_path / "split" / "train" / "b").mkdir()
    write_images(tmp_path / "split" / "test" / "b")
    with pytest.raises(InputError, match=r"class 'b' has no sample for training"):
        load(f"folder:{tmp_path / 'split'}")


def test_what_is_wrong_in_an_npz_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"

    def message(**arrays: object) -> str:
        if arrays:
            np.savez(path, **arrays)  # type: ignore[arg-type]
        with pytest.raises(InputError) as caught:
            load(f"npz:{path}")
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    x = np.ones((3, 2))
    assert "there is no file" in message()
    assert "has no array y, only x" in message(x=x)
    assert "has no array y_test" in message(x=x, y=[0, 1, 0], x_test=x)
    assert "samples of shape (2,), x_test of (1,)" in message(x=x, y=[0, 1, 0], x_test=x[:, :1], y_test=[0, 1, 0])
    assert "x is torch.float32, x_test is torch.uint8" in message(
        x=x, y=[0, 1, 0], x_test=x.astype(np.uint8), y_test=[0, 1, 0]
    )
    assert "x of row 0 is inf: values must be finite" in message(x=1e300 * x, y=[0, 1, 0])
    assert "x has shape (3, 2) and y (2,)" in message(x=x, y=[0, 1])
    assert "label of row 1 is -1" in message(x=x, y=[0, -1, 0])
    assert "Object arrays cannot be loaded" in message(x=np.array([{}, 1], dtype=object), y=[0, 1])
    path.write_bytes(path.read_bytes()[:100])
    assert "cannot be read as .npz" in message()
    path.write_bytes(b"nonsense")
    assert "cannot be read as .npz" in message()
    with path.open("wb") as file:
        np.save(file, x)
    assert "holds one array, not x and y" in message()
