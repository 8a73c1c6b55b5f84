"""`hf:PATH`: a Hugging Face data set on the disk, as `save_to_disk` writes it; nothing is downloaded or unpickled."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sihg.errors import InputError
from sihg.robust.data.decoded_rows import Decoded, DecodedRows, as_row
from sihg.robust.data.npz_file import TEST_SHARE
from sihg.robust.data.pixels import decode_image, reason_of
from sihg.robust.data.samples import Samples, check_alike, check_classes, lazy_samples, stratified_split
from sihg.store.files import read_regular

IMAGE_NAMES = ("image", "img", "x", "pixel_values")  # columns, the first that is there
LABEL_NAMES = ("label", "labels", "y", "fine_label")
TRAIN, TESTS = "train", ("test", "validation")
STATE = "state.json"
NUMBER_TYPES = ("uint8", "float16", "float32", "float64")


def load(path: Path) -> tuple[Samples, Samples]:
    """Open a data set with the splits train and test (or validation), or one set, of which a fifth is held out.

    The samples are in the column image (img, x, pixel_values), the labels in label (labels, y, fine_label).
    """
    splits = _splits(path)
    name = f"hf:{path}"
    if len(splits) == 1:
        whole = _samples(next(iter(splits.values())), name)
        train, test = stratified_split(whole, max(1, round(TEST_SHARE * len(whole))))
    else:
        train = _samples(splits[TRAIN], name)
        test = _samples(next(splits[name] for name in TESTS if name in splits), name, train.classes)
        check_alike(train, test)
    check_classes(train)
    return train, test


def _splits(path: Path) -> dict[str, Path]:
    """Return the folders of the splits by name."""
    if (path / STATE).is_file():
        return {"": path}
    found = {name: path / name for name in (TRAIN, *TESTS) if (path / name / STATE).is_file()}
    if TRAIN in found and len(found) > 1:
        return found
    if len(found) == 1:
        return found
    raise InputError("no-hf-folder", path=str(path))


def _samples(path: Path, name: str, classes: tuple[str, ...] | None = None) -> Samples:
    dataset = _open(path)
    image, label = (_column(dataset, names, path) for names in (IMAGE_NAMES, LABEL_NAMES))
    feature = dataset.features[label]
    own = tuple(feature.names) if getattr(feature, "names", None) else None
    try:
        labels = np.asarray(dataset.with_format("numpy")[label][:])
        y = torch.from_numpy(np.array(labels, labels.dtype.newbyteorder("=")))
    except Exception as error:  # Arrow raises whatever a broken file causes
        raise InputError("hf-unreadable", path=str(path), error=reason_of(error)) from error
    return lazy_samples(ColumnRows(dataset, image, path), y, classes=classes or own, name=name)


def _open(path: Path) -> Any:
    files = _files(path)
    try:
        from datasets import load_from_disk
    except ImportError as error:
        raise InputError("hf-not-installed") from error
    try:
        for file in files:
            _check_arrow(file)
        return load_from_disk(str(path), keep_in_memory=False)
    except Exception as error:
        raise InputError("hf-unreadable", path=str(path), error=reason_of(error)) from error


def _check_arrow(file: Path) -> None:
    """Raise an exception if the lengths and places in an Arrow file are wrong: reading it could end the process.

    Values are not read, except those of texts.
    """
    import pyarrow as pa

    with pa.memory_map(str(file)) as mapped, pa.ipc.open_stream(mapped) as stream:
        for batch in stream:
            batch.validate(full=True)


def _files(path: Path) -> list[Path]:
    """Return the files that the folder names, which must lie in it."""
    try:
        names = [entry["filename"] for entry in json.loads(read_regular(path / STATE))["_data_files"]]
        lost = [name for name in names if Path(name).name != name or not (path / name).is_file()]
    except InputError:
        raise
    except Exception as error:  # whatever a broken file causes
        raise InputError("hf-unreadable", path=str(path / STATE), error=reason_of(error)) from error
    if lost or not names:
        raise InputError("hf-unreadable", path=str(path), error=f"no file {lost[0]!r}" if lost else "no data file")
    return [path / name for name in names]


def _column(dataset: Any, names: Sequence[str], path: Path) -> str:
    for name in names:
        if name in dataset.column_names:
            return name
    raise InputError("hf-column", path=str(path), wanted=names[0], columns=", ".join(dataset.column_names))


class ColumnRows(DecodedRows):
    """A column of images or of arrays. Images are decoded here, and only if their bytes are in the data set.

    Args:
        dataset: The data set, whose Arrow files are mapped.
        column: The name of the column.
        path: Its folder, for messages.
    """

    def __init__(self, dataset: Any, column: str, path: Path) -> None:
        from datasets import Image

        self.column, self.path = column, path
        self.is_image = isinstance(dataset.features[column], Image)
        dataset = dataset.select_columns([column])
        if self.is_image:
            dataset = dataset.cast_column(column, Image(decode=False))
        else:
            kind = np.dtype(_number_type(dataset.features[column]))
            dataset = dataset.with_format("numpy", dtype=kind)  # else uint8 becomes int64
        self.dataset = dataset
        if not len(dataset):
            raise InputError("samples-empty", name=f"hf:{path}")
        self.learn_shape()

    def __len__(self) -> int:
        return len(self.dataset)

    def decode(self, rows: Sequence[int]) -> list[Decoded]:
        """Read and decode these rows."""
        try:
            values = self.dataset[list(rows)][self.column]
        except Exception as error:  # Arrow raises whatever a broken file causes
            raise InputError("hf-unreadable", path=str(self.path), error=reason_of(error)) from error
        convert = self._image if self.is_image else self._array
        return [convert(value, row) for value, row in zip(values, rows, strict=True)]

    def _image(self, value: Any, row: int) -> Decoded:
        if not isinstance(value, dict) or value.get("bytes") is None:  # a path is not followed: it may lead anywhere
            raise InputError("hf-image-bytes", path=str(self.path), row=row)
        return decode_image(value["bytes"], f"{self.path}, row {row}")

    def _array(self, value: Any, row: int) -> Decoded:
        try:
            return as_row(np.asarray(value))
        except ValueError as error:
            raise InputError("hf-unreadable", path=f"{self.path}, row {row}", error=reason_of(error)) from error


def _number_type(feature: Any) -> str:
    """Return the type of the numbers in a column of arrays, which may be lists inside each other."""
    while not hasattr(feature, "dtype") and (hasattr(feature, "feature") or isinstance(feature, list)):
        feature = feature[0] if isinstance(feature, list) else feature.feature
    kind = getattr(feature, "dtype", "")
    return kind if kind in NUMBER_TYPES else "float32"
