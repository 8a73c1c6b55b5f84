"""`npz:PATH`: your own arrays in a numpy file."""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sihg.errors import InputError
from sihg.robust.data.samples import Samples, as_samples, check_classes, stratified_split

TEST_SHARE = 0.2  # held out where no test samples are given


def load(path: Path) -> tuple[Samples, Samples]:
    """Arrays x, y and, if there, x_test, y_test; without those a fixed fifth of each class is held out for testing.

    Images may be (n, height, width), (n, height, width, channels) or (n, channels, height, width) with 1 or 3 channels,
    and become the last of these. Other shapes stay. x_train and y_train are taken for x and y. float64 becomes float32,
    which models have. Labels count from 0 without gaps.
    """
    arrays = _arrays(path)
    name = f"npz:{path}"
    train = _samples(arrays, "x", "y", name, path)
    if "x_test" not in arrays and "y_test" not in arrays:
        train, test = stratified_split(train, max(1, round(TEST_SHARE * len(train))))
        check_classes(train)
        return train, test
    test = _samples(arrays, "x_test", "y_test", name, path, train.classes)
    if train.shape != test.shape:
        raise InputError(f"{path}: x has samples of shape {train.shape}, x_test of {test.shape}: make them alike")
    if train.x.dtype != test.x.dtype:
        raise InputError(f"{path}: x is {train.x.dtype}, x_test is {test.x.dtype}: make them alike")
    return train, test


def _arrays(path: Path) -> dict[str, NDArray[np.generic]]:
    try:
        with path.open("rb") as handle:
            file = np.load(handle, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise InputError(f"{path} holds one array, not x and y: save it with numpy.savez(path, x=x, y=y)")
            with file:
                arrays = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise InputError(f"there is no file {path}: give the path of an .npz file") from None
    except InputError:
        raise
    except (OSError, ValueError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path} cannot be read as .npz ({error}): save it again with numpy.savez") from error
    return {name.replace("_train", ""): array for name, array in arrays.items()}


def _samples(
    arrays: dict[str, NDArray[np.generic]],
    x: str,
    y: str,
    name: str,
    path: Path,
    classes: tuple[str, ...] | None = None,
) -> Samples:
    """Samples of the classes given, those for training; None: these are they."""
    for key in (x, y):
        if key not in arrays:
            raise InputError(f"{path} has no array {key}, only {', '.join(arrays) or 'none'}: add it")
    labels = arrays[y]
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 1 and labels.dtype.kind in "biuf":
        classes = classes or tuple(str(label) for label in range(len(np.unique(labels))))
        _check_labels(labels, len(classes), y, path)
    return as_samples((_planes(_single(arrays[x])), labels), classes=classes, name=name)


def _check_labels(labels: NDArray[Any], classes: int, y: str, path: Path) -> None:
    """Refuse labels beyond the classes that have training samples; a gap among k different ones puts one beyond k - 1.

    What is no label at all is left to the samples' own checks.
    """
    beyond = np.flatnonzero(labels >= classes)
    if len(beyond):
        row = int(beyond[0])
        raise InputError(
            f"{path}: row {row} of {y} has the label {labels[row]}, but y has {classes} different labels, so they must "
            f"be 0 to {classes - 1}: correct it, or number the classes from 0 without gaps and give y some of each"
        )


def _single(x: NDArray[np.generic]) -> NDArray[np.generic]:
    """Floats as models take them; what is too large for that becomes inf, which is refused by its row."""
    with np.errstate(over="ignore"):
        return x.astype(np.float32) if x.dtype.kind == "f" and x.dtype.itemsize > 4 else x


def _planes(x: NDArray[np.generic]) -> NDArray[np.generic]:
    """Images with their channels first."""
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        return x.transpose(0, 3, 1, 2)
    return x
