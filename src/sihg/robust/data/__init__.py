"""Data sets for robust training: one file a source, all giving `Samples`."""

import warnings
from pathlib import Path

from sihg.errors import InputError, UnknownNameError
from sihg.robust.data import cifar10, digits, idx, svhn
from sihg.robust.data import image_folder as folder
from sihg.robust.data import npz_file as npz
from sihg.robust.data.file_checks import read_checked
from sihg.robust.data.locations import Arrays, DataWarning, Source, data_folder, locate, missing_error, usable
from sihg.robust.data.samples import Samples, as_samples, stratified_split

__all__ = ["SOURCES", "DataWarning", "Samples", "as_samples", "load", "names", "stratified_split"]

SOURCES: dict[str, Source] = {
    source.name: source for source in (idx.MNIST, idx.FASHION_MNIST, svhn.SVHN, cifar10.CIFAR10)
}


def names() -> list[str]:
    """What `load` takes."""
    return ["digits", *SOURCES, "folder:PATH", "npz:PATH"]


def load(source: str, data_dir: str | Path | None = None) -> tuple[Samples, Samples]:
    """The samples for training and those for testing of a source; `names` lists the sources."""
    kind, _, path = source.partition(":")
    if source == "digits":
        return digits.load()
    if source in SOURCES:
        return _load(SOURCES[source], data_folder(data_dir))
    if kind == "folder" and path:
        return folder.load(Path(path).expanduser())
    if kind == "npz" and path:
        return npz.load(Path(path).expanduser())
    if kind == "fit":
        raise InputError(
            "the run was trained by sihg.fit on data that was given to it: go on with "
            "sihg.fit(..., out=..., resume=True), or take the model with sihg.load(run, model=...)"
        )
    raise UnknownNameError("data source", source, names())


def _load(source: Source, folder: Path) -> tuple[Samples, Samples]:
    found, missing = locate(source, folder)
    if not usable(source, missing):
        raise missing_error(source, folder, missing)
    if missing:
        lost = ", ".join(part.name for part in missing)
        warnings.warn(f"{source.name} is used without {lost}, not found in {folder}", DataWarning, stacklevel=3)
    arrays: dict[str, Arrays] = {}
    for path, pieces in found.items():
        read = read_checked(source, path, pieces, folder)
        arrays |= {part.name: some for (part, _), some in zip(pieces, read, strict=True)}
    return source.join(source, arrays)
