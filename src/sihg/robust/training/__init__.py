"""Training: settings, the checks before a run, the loop, its state, its events and its results.

Names are loaded when first used: settings and events need no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sihg.robust.training.events import Trained as Trained
    from sihg.robust.training.events import TrainingHistory as TrainingHistory
    from sihg.robust.training.fit import resume_run as resume_run
    from sihg.robust.training.preflight import prepare as prepare
    from sihg.robust.training.trainer import Trainer as Trainer
    from sihg.robust.training.weights import load as load

_HOMES = {"prepare": "preflight", "resume_run": "fit", "Trainer": "trainer", "load": "weights"}
_HOMES |= dict.fromkeys(("Trained", "TrainingHistory"), "events")
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sihg.robust.training' has no attribute {name!r}")
    return getattr(import_module(f"sihg.robust.training.{_HOMES[name]}"), name)
