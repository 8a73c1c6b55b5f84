"""`folder:PATH`: a user's own images, one sub-folder per class."""

import io
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from sihg.errors import InputError
from sihg.robust.data.locations import DataWarning, max_memory
from sihg.robust.data.npz_file import TEST_SHARE
from sihg.robust.data.samples import Samples, as_pixels, as_samples, check_classes, stratified_split
from sihg.store.files import read_regular

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # the content decides, not the ending of the name
MAX_FILE_BYTES = 2**28  # of an image
MAX_NAMED = 3  # files that a warning names


def load(path: Path) -> tuple[Samples, Samples]:
    """Read the images of PATH/CLASS/, or of PATH/train/CLASS/ and PATH/test/CLASS/; classes are sorted by name.

    Without train and test, a fixed fifth of each class is held out for testing. All images must have the same size. If
    some are grey and some are not, all get three channels. Hidden files are skipped.
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
        warnings.warn(f"{path}: skipped {len(others)} files that are not images: {named}", DataWarning, stacklevel=4)
    if not found:
        raise InputError("no-images", path=path, names=", ".join(ENDINGS))
    return found


def _is_visible(entry: Path) -> bool:
    return not entry.name.startswith(".")


def _samples(files: Sequence[tuple[Path, int]], classes: Sequence[str], name: str) -> Samples:
    images: list[np.ndarray[tuple[int, ...], np.dtype[np.uint8]]] = []
    for path, _ in files:
        image = _image(path)
        if (needed := len(files) * image.nbytes) > max_memory():
            raise InputError("images-too-large", name=name, bytes=needed, limit=max_memory())
        if images and image.shape[1:] != images[0].shape[1:]:
            height, width = image.shape[1:]
            raise InputError(
                "image-size",
                path=str(path),
                height=height,
                width=width,
                files=files[0][0],
                wanted_height=images[0].shape[1],
                wanted_width=images[0].shape[2],
            )
        images.append(image)
    channels = max(len(image) for image in images)
    x = np.stack([np.broadcast_to(image, (channels, *image.shape[1:])) for image in images])
    return as_samples((x, np.array([label for _, label in files])), classes=classes, name=name)


def _image(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Read an image. Formats that Pillow gives to other programs to decode, such as EPS, are not among FORMATS."""
    try:
        data = read_regular(path, MAX_FILE_BYTES)
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                return as_pixels(image)
    except InputError as error:
        raise error.within(path) from None
    except Exception as error:  # Pillow raises whatever a broken file causes
        reason = "no image of a known format" if isinstance(error, UnidentifiedImageError) else _reason(error)
        raise InputError("image-unreadable", path=str(path), reason=reason) from error


def _reason(error: Exception) -> str:
    return (str(getattr(error, "strerror", None) or error) or type(error).__name__).split("\n")[0]
