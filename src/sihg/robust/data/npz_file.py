"""`npz:PATH`: a user's own arrays in a numpy file."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import MAGIC_PREFIX
from numpy.typing import NDArray

from sihg.errors import InputError
from sihg.robust.data.locations import max_memory
from sihg.robust.data.samples import Samples, as_samples, check_alike, check_classes, stratified_split
from sihg.store.arrays import read_arrays

TEST_SHARE = 0.2  # of the samples, held out where no test samples are given


def load(path: Path) -> tuple[Samples, Samples]:
    """Read the arrays x, y, x_test and y_test; without the last two, a fixed fifth of each class is held out.

    Images may be (n, height, width), (n, height, width, channels) or (n, channels, height, width) with 1 or 3 channels,
    and become the last of these. Other shapes stay. x_train and y_train are other names for x and y. float64 becomes
    float32, as models are. Labels count from 0 without gaps.
    """
    arrays = _read_arrays(path)
    name = f"npz:{path}"
    train = _samples(arrays, "x", "y", name, path)
    if "x_test" not in arrays and "y_test" not in arrays:
        train, test = stratified_split(train, max(1, round(TEST_SHARE * len(train))))
        check_classes(train)
        return train, test
    test = _samples(arrays, "x_test", "y_test", name, path, train.classes)
    check_alike(train, test)
    return train, test


def _read_arrays(path: Path) -> dict[str, NDArray[np.generic]]:
    try:
        with np.errstate(all="raise"):  # a dimension of 2**63 overflows in numpy
            arrays = read_arrays(path, sealed=False, limit=max_memory())
    except FloatingPointError as error:
        raise InputError("npz-unreadable", path=path, error=error) from error
    except InputError as error:
        if error.code != "arrays-unreadable":
            raise
        if isinstance(error.__cause__, FileNotFoundError):
            raise InputError("no-npz-file", path=path) from None
        if _is_single_array(path):
            raise InputError("npz-single-array", path=path) from error
        raise InputError("npz-unreadable", path=path, error=error.values["why"]) from error
    return {name.replace("_train", ""): array for name, array in arrays.items()}


def _is_single_array(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC_PREFIX)) == MAGIC_PREFIX
    except OSError:
        return False


def _samples(
    arrays: dict[str, NDArray[np.generic]],
    x: str,
    y: str,
    name: str,
    path: Path,
    classes: tuple[str, ...] | None = None,
) -> Samples:
    """Convert two arrays to samples; `classes` are those of the training samples, None for the training samples."""
    for key in (x, y):
        if key not in arrays:
            raise InputError("npz-arrays", array=key, path=path, names=", ".join(arrays) or "nothing")
    labels = arrays[y]
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 1 and labels.dtype.kind in "biuf":
        classes = classes or tuple(str(label) for label in range(len(np.unique(labels))))
        _check_labels(labels, len(classes), y, path)
    return as_samples((_channels_first(_as_single(arrays[x])), labels), classes=classes, name=name)


def _check_labels(labels: NDArray[Any], classes: int, y: str, path: Path) -> None:
    """Raise InputError for a label >= the number of different training labels, which a gap in them causes.

    Values that cannot be labels are left to the checks of samples.
    """
    beyond = np.flatnonzero(labels >= classes)
    if len(beyond):
        row = int(beyond[0])
        raise InputError(
            "npz-label-range", array=y, row=row, classes=classes, path=path, labels=labels[row], last=classes - 1
        )


def _as_single(x: NDArray[np.generic]) -> NDArray[np.generic]:
    """Convert floats to float32; values that are too large become inf, which the checks of samples refuse."""
    with np.errstate(over="ignore"):
        return x.astype(np.float32) if x.dtype.kind == "f" and x.dtype.itemsize > 4 else x


def _channels_first(x: NDArray[np.generic]) -> NDArray[np.generic]:
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        return x.transpose(0, 3, 1, 2)
    return x
