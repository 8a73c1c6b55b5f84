"""`folder:PATH`: a user's own images, one sub-folder per class."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sihg.errors import InputError
from sihg.robust.data.available_memory import max_memory
from sihg.robust.data.lazy_rows import RowSource
from sihg.robust.data.locations import DataWarning
from sihg.robust.data.npz_file import TEST_SHARE
from sihg.robust.data.pixels import FORMATS, GREY, MAX_FILE_BYTES, Pixels, decode_image, reason_of, with_channels
from sihg.robust.data.samples import Samples, as_samples, check_classes, lazy_samples, stratified_split
from sihg.store.files import read_regular

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
MAX_NAMED = 3  # files that a warning names


def load(path: Path) -> tuple[Samples, Samples]:
    """Read the images of PATH/CLASS/, or of PATH/train/CLASS/ and PATH/test/CLASS/; classes are sorted by name.

    Without train and test, a fixed fifth of each class is held out for testing. All images must have the same size. If
    some are grey and some are not, all get three channels. Hidden files are skipped. Images that do not fit in memory
    are decoded when they are needed.
    """
    if not path.is_dir():
        raise InputError("no-image-folder", path=str(path))
    name = f"folder:{path}"
    if not ((path / "train").is_dir() and (path / "test").is_dir()):
        classes = _folders(path)
        whole = _samples(_files(path, classes), classes, name)
        train, test = stratified_split(whole, max(1, round(TEST_SHARE * len(whole))))
        check_classes(train)
        return train, test
    classes = _folders(path / "train")
    if new := [other for other in _folders(path / "test") if other not in classes]:
        raise InputError("class-without-samples", label=new[0], new=path / "test" / new[0], path=path / "train")
    files = _files(path / "train", classes)
    whole = _samples(files + _files(path / "test", classes), classes, name)  # read together, so that they are alike
    train, test = whole.take(slice(len(files))), whole.take(slice(len(files), None))
    check_classes(train)
    return train, test


def _folders(path: Path) -> list[str]:
    found = sorted(entry.name for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not found:
        raise InputError("no-class-folders", path=path)
    return found


def _files(path: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    """List the image files of all classes and their labels; warn of other files."""
    found, others = [], [entry for entry in sorted(path.iterdir()) if _is_visible(entry) and entry.is_file()]
    for label, name in enumerate(classes):
        entries = sorted((path / name).iterdir()) if (path / name).is_dir() else []
        for entry in filter(_is_visible, entries):
            if entry.is_file() and entry.suffix.lower() in ENDINGS:
                found.append((entry, label))
            else:
                others.append(entry)
    if others:
        named = ", ".join(str(other) for other in others[:MAX_NAMED]) + (" ..." if len(others) > MAX_NAMED else "")
        warnings.warn(f"{path}: skipped {len(others)} files that are not images: {named}", DataWarning, stacklevel=5)
    if not found:
        raise InputError("no-images", path=path, names=", ".join(ENDINGS))
    return found


def _is_visible(entry: Path) -> bool:
    return not entry.name.startswith(".")


def _samples(files: Sequence[tuple[Path, int]], classes: Sequence[str], name: str) -> Samples:
    labels = np.array([label for _, label in files])
    images: list[Pixels] = []
    for path, _ in files:
        image = _image(path)
        if len(files) * image.nbytes > max_memory():
            rows = ImageRows([file for file, _ in files])
            return lazy_samples(rows, torch.from_numpy(labels), classes=classes, name=name)
        if images:
            _check_size(path, image.shape, files[0][0], images[0].shape)
        images.append(image)
    channels = max(len(image) for image in images)
    x = np.stack([with_channels(image, channels) for image in images])
    return as_samples((x, labels), classes=classes, name=name)


class ImageRows(RowSource):
    """Image files, decoded when they are needed. Their headers are read at once, for their sizes and channels.

    Args:
        files: The files, which must have the same size.
    """

    dtype = torch.uint8

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = files
        shapes = [_shape(path) for path in files]
        for path, shape in zip(files, shapes, strict=True):
            _check_size(path, shape, files[0], shapes[0])
        self.shape = max(shapes)

    def __len__(self) -> int:
        return len(self.files)

    def read(self, rows: Sequence[int], seed: int, epoch: int) -> Tensor:  # noqa: ARG002
        """Decode these files."""
        out = np.empty((len(rows), *self.shape), np.uint8)
        for place, row in enumerate(rows):
            image = _image(self.files[row])
            _check_size(self.files[row], image.shape, self.files[0], self.shape)
            out[place] = with_channels(image, self.shape[0])
        return torch.from_numpy(out)


def _shape(path: Path) -> tuple[int, ...]:
    """Return (channels, height, width) of an image from the header of its file."""
    try:
        with path.open("rb") as file, Image.open(file, formats=FORMATS) as image:
            return 1 if image.mode in GREY else 3, image.height, image.width
    except Exception as error:  # Pillow raises whatever a broken file causes
        raise InputError("image-unreadable", path=str(path), reason=reason_of(error)) from error


def _check_size(path: Path, shape: tuple[int, ...], first: Path, wanted: tuple[int, ...]) -> None:
    if shape[1:] != wanted[1:]:
        found = {"height": shape[1], "width": shape[2], "wanted_height": wanted[1], "wanted_width": wanted[2]}
        raise InputError("image-size", path=str(path), files=first, **found)


def _image(path: Path) -> Pixels:
    try:
        data = read_regular(path, MAX_FILE_BYTES)
    except InputError as error:
        raise error.within(path) from None
    except OSError as error:
        raise InputError("image-unreadable", path=str(path), reason=reason_of(error)) from error
    return decode_image(data, path)
