"""Semi-implicit hybrid gradient methods for minimax optimisation and adversarially robust training.

Public names are loaded when first used, so that `import sihg` and the command line start at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sihg.core.hybrid import HybridGradient as HybridGradient
    from sihg.minimax import Problem as Problem
    from sihg.minimax import solve as solve
    from sihg.minimax import zoo as zoo

__version__ = "0.1.0"

_HOMES = {
    "HybridGradient": "sihg.core.hybrid",
    "Problem": "sihg.minimax",
    "solve": "sihg.minimax",
    "zoo": "sihg.minimax",
}
__all__ = ["HybridGradient", "Problem", "__version__", "solve", "zoo"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sihg' has no attribute {name!r}: it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
