"""Data sets: sources (one file each) give `Samples`; an epoch's order of them gives batches.

Names are loaded when first used: names of data sets and help need no torch.

Example:
    >>> from sihg.robust.data import DATA_FORMS, OWN_DATA, PUBLISHED, SOURCES
    >>> DATA_FORMS[0], PUBLISHED[0], OWN_DATA[0], "mnist" in SOURCES
    ('digits', 'mnist', 'folder', True)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sihg.user_code import FORMS

if TYPE_CHECKING:
    from sihg.robust.data.locations import DataWarning as DataWarning
    from sihg.robust.data.samples import Samples as Samples
    from sihg.robust.data.samples import as_samples as as_samples
    from sihg.robust.data.samples import stratified_split as stratified_split
    from sihg.robust.data.samples import stratified_subset as stratified_subset
    from sihg.robust.data.sources import SOURCES as SOURCES
    from sihg.robust.data.sources import load as load

PUBLISHED = ("mnist", "fashion-mnist", "svhn", "cifar10")  # data sets in files that can be downloaded
OWN_DATA = ("folder", "npz", "npy", "hf", "wds")  # before the colon and the path of a user's own files
DATA_FORMS = ("digits", *PUBLISHED, *(f"{kind}:PATH" for kind in OWN_DATA), *FORMS)  # what `load` takes
_HOMES = {"DataWarning": "locations", "SOURCES": "sources", "load": "sources"}
_HOMES |= dict.fromkeys(("Samples", "as_samples", "stratified_split", "stratified_subset"), "samples")
__all__ = ["DATA_FORMS", "OWN_DATA", "PUBLISHED", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sihg.robust.data' has no attribute {name!r}")
    return getattr(import_module(f"sihg.robust.data.{_HOMES[name]}"), name)
