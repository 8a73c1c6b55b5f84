"""Data sets by name: which source reads it, and its samples for training and for testing."""

import warnings
from collections.abc import Callable
from pathlib import Path

from sihg.errors import InputError, UnknownNameError
from sihg.parse import expand_home
from sihg.robust.data import DATA_FORMS, cifar10, digits, hugging_face, idx, image_folder, npz_file, svhn, webdataset
from sihg.robust.data.file_checks import read_checked
from sihg.robust.data.locations import Arrays, DataWarning, Source, data_folder, locate, missing_error, usable
from sihg.robust.data.samples import Samples, check_alike, check_classes, open_samples
from sihg.user_code import call_user_code, load_callable

SOURCES: dict[str, Source] = {
    source.name: source for source in (idx.MNIST, idx.FASHION_MNIST, svhn.SVHN, cifar10.CIFAR10)
}
OWN_FILES: dict[str, Callable[[Path], tuple[Samples, Samples]]] = {  # a user's own, by what stands before the colon
    "folder": image_folder.load,
    "npz": npz_file.load,
    "npy": npz_file.load_folder,
    "hf": hugging_face.load,
    "wds": webdataset.load,
}


def load(source: str, data_dir: str | Path | None = None) -> tuple[Samples, Samples]:
    """Load the samples of a data set. What does not fit in memory is read when it is needed.

    Args:
        source: digits, a published set such as mnist, folder:PATH, npz:PATH, npy:PATH, hf:PATH, wds:PATH, or a source
            of your own, `path.py:name` or `package.module:name`: a function without arguments that returns
            (train, test), each a pair (x, y) of tensors or arrays, a torch Dataset, or Samples.
        data_dir: Where published sets lie (default: $SIHG_DATA, else the user's cache folder).
    Returns:
        The samples for training and those for testing.
    Raises:
        InputError: If the data is missing, damaged, or not as described.
    Example:
        >>> train, test = load("digits")
        >>> len(train), len(test), train.shape
        (1400, 397, (1, 8, 8))
    """
    train, test = open_data(source, data_dir)
    return train.settled(), test.settled()


def open_data(source: str, data_dir: str | Path | None = None) -> tuple[Samples, Samples]:
    """Load a data set as `load` does, but leave rows that can be read later unread, even if they would fit.

    So a subset can be chosen first; its `settled` reads it, if it fits.
    """
    kind, _, path = source.partition(":")
    if source == "digits":
        return digits.load()
    if source in SOURCES:
        return _load_published(SOURCES[source], data_folder(data_dir))
    if kind in OWN_FILES and path:
        return OWN_FILES[kind](expand_home(path))
    if kind == "fit":
        raise InputError("data-in-memory")
    if path and kind not in OWN_FILES:
        return _load_users(source)
    raise UnknownNameError("data source", source, list(DATA_FORMS))


def _load_users(name: str) -> tuple[Samples, Samples]:
    pair = call_user_code("data source", name, load_callable("data source", name))
    if not (isinstance(pair, tuple | list) and len(pair) == 2):
        raise InputError("not-train-and-test", name=name, type=type(pair).__name__)
    train = open_samples(pair[0], name=name)
    test = open_samples(pair[1], classes=train.classes, name=name)
    check_alike(train, test)
    check_classes(train)
    return train, test


def _load_published(source: Source, folder: Path) -> tuple[Samples, Samples]:
    found, missing = locate(source, folder)
    if not usable(source, missing):
        raise missing_error(source, folder, missing)
    if missing:
        lost = ", ".join(part.name for part in missing)
        warnings.warn(f"{source.name} is used without {lost}, not found in {folder}", DataWarning, stacklevel=4)
    arrays: dict[str, Arrays] = {}
    for path, pieces in found.items():
        read = read_checked(source, path, pieces)
        arrays |= {part.name: content for (part, _), content in zip(pieces, read, strict=True)}
    return source.join(source, arrays)
