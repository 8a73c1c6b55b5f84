"""Networks by name, and the layers to write your own. Each of ours is body(stem(x)) on images in [0, 1].

Classes are loaded when first used: names and help need no torch.

Example:
    >>> from sihg.robust.models import MODEL_FORMS, MODELS
    >>> "small-cnn" in MODELS, "small-cnn" in MODEL_FORMS
    (True, True)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sihg.robust.models.registry import MODEL_FORMS, MODELS, build, split_stem

if TYPE_CHECKING:
    from sihg.robust.models.committee import Committee as Committee
    from sihg.robust.models.normalise import Normalise as Normalise
    from sihg.robust.models.opening import ModelNote as ModelNote
    from sihg.robust.models.opening import load_model as load_model
    from sihg.robust.models.threshold import Threshold as Threshold

_HOMES = {
    "Committee": "committee",
    "ModelNote": "opening",
    "Normalise": "normalise",
    "Threshold": "threshold",
    "load_model": "opening",
}
__all__ = ["MODELS", "MODEL_FORMS", "build", "split_stem", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sihg.robust.models' has no attribute {name!r}")
    return getattr(import_module(f"sihg.robust.models.{_HOMES[name]}"), name)
