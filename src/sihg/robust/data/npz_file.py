"""`npz:PATH` and `npy:PATH`: a user's own arrays in one numpy file, or in a folder with a file for each."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import MAGIC_PREFIX
from numpy.typing import NDArray

from sihg.errors import InputError
from sihg.robust.data.array_files import PARSE_ERRORS, ArrayPlace, ArrayRows, RandomFile, find_array, too_large
from sihg.robust.data.available_memory import max_memory
from sihg.robust.data.pixels import as_single, as_tensor, channels_first, reason_of
from sihg.robust.data.samples import Samples, as_samples, check_alike, check_classes, lazy_samples, stratified_split
from sihg.store.arrays import read_arrays

TEST_SHARE = 0.2  # of the samples, held out where no test samples are given
NAMES = ("x", "y", "x_train", "y_train", "x_test", "y_test")
LOCAL_HEADER = 30  # bytes before the name of a member of a zip archive
Array = NDArray[np.generic] | ArrayPlace


def load(path: Path) -> tuple[Samples, Samples]:
    """Read the arrays x, y, x_test and y_test; without the last two, a fixed fifth of each class is held out.

    Images may be (n, height, width), (n, height, width, channels) or (n, channels, height, width) with 1 or 3 channels,
    and become the last of these. Other shapes stay. x_train and y_train are other names for x and y. float64 becomes
    float32, as models are. Labels count from 0 without gaps. Of a file that does not fit in memory, rows of x are read
    when they are needed, unless they are compressed.
    """
    return _as_sets(_read_arrays(path), f"npz:{path}", path)


def load_folder(path: Path) -> tuple[Samples, Samples]:
    """Find the same arrays in x.npy, y.npy, x_test.npy and y_test.npy of a folder; rows of x are not read yet."""
    if not path.is_dir():
        raise InputError("no-npy-folder", path=str(path))
    found = {name: path / f"{name}.npy" for name in NAMES if (path / f"{name}.npy").is_file()}
    arrays = {name.replace("_train", ""): find_array(RandomFile(file)) for name, file in found.items()}
    return _as_sets(arrays, f"npy:{path}", path)


def _as_sets(arrays: Mapping[str, Array], name: str, path: Path) -> tuple[Samples, Samples]:
    train = _samples(arrays, "x", "y", name, path)
    if "x_test" not in arrays and "y_test" not in arrays:
        train, test = stratified_split(train, max(1, round(TEST_SHARE * len(train))))
        check_classes(train)
        return train, test
    test = _samples(arrays, "x_test", "y_test", name, path, train.classes)
    check_alike(train, test)
    return train, test


def _read_arrays(path: Path) -> dict[str, Array]:
    try:
        with np.errstate(all="raise"):  # a dimension of 2**63 overflows in numpy
            arrays = read_arrays(path, sealed=False, limit=max_memory())
    except FloatingPointError as error:
        raise InputError("npz-unreadable", path=path, error=error) from error
    except InputError as error:
        if error.code in ("file-too-large", "arrays-too-large"):
            return _find_arrays(path)
        if error.code != "arrays-unreadable":
            raise
        if isinstance(error.__cause__, FileNotFoundError):
            raise InputError("no-npz-file", path=path) from None
        if _is_single_array(path):
            raise InputError("npz-single-array", path=path) from error
        raise InputError("npz-unreadable", path=path, error=error.values["why"]) from error
    return {name.replace("_train", ""): array for name, array in arrays.items()}


def _find_arrays(path: Path) -> dict[str, Array]:
    """Find the arrays in an .npz file that does not fit in memory."""
    file = RandomFile(path)
    try:
        with file.handle() as handle, zipfile.ZipFile(handle) as archive:
            members = archive.infolist()
    except (*PARSE_ERRORS, zipfile.BadZipFile) as error:
        raise InputError("npz-unreadable", path=path, error=reason_of(error)) from error
    if any(info.compress_type != zipfile.ZIP_STORED for info in members):
        raise too_large(path, sum(info.file_size for info in members))
    found: dict[str, Array] = {}
    for info in members:
        header = file.read_at(info.header_offset, LOCAL_HEADER)
        begin = info.header_offset + LOCAL_HEADER + sum(np.frombuffer(header, "<u2", 2, 26).tolist())
        found[info.filename.removesuffix(".npy").replace("_train", "")] = find_array(file, begin, info.file_size)
    return found


def _is_single_array(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC_PREFIX)) == MAGIC_PREFIX
    except OSError:
        return False


def _samples(
    arrays: Mapping[str, Array],
    x: str,
    y: str,
    name: str,
    path: Path,
    classes: tuple[str, ...] | None = None,
) -> Samples:
    """Convert two arrays to samples; `classes` are those of the training samples, None for the training samples."""
    for key in (x, y):
        if key not in arrays and path.is_dir():
            files = ", ".join(sorted(file.name for file in path.glob("*.npy")))
            raise InputError("npy-files", file=f"{key}.npy", path=path, files=files or "no other .npy file")
        if key not in arrays:
            raise InputError("npz-arrays", array=key, path=path, names=", ".join(arrays) or "nothing")
    given, labels = arrays[x], arrays[y]
    labels = labels.read() if isinstance(labels, ArrayPlace) else labels
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 1 and labels.dtype.kind in "biuf":
        classes = classes or tuple(str(label) for label in range(len(np.unique(labels))))
        _check_labels(labels, len(classes), y, path)
    if isinstance(given, ArrayPlace):
        return lazy_samples(ArrayRows(given), as_tensor(labels, y), classes=classes, name=name)
    return as_samples((channels_first(as_single(given)), labels), classes=classes, name=name)


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
