"""Training methods, one file each: a dataclass of hyperparameters (in `settings`) with one `step`.

The classes are loaded when first used: settings, names and help need no torch.

Example:
    >>> from sihg.robust.methods import METHODS
    >>> METHODS["msi-hg"].class_name
    'MSIHG'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sihg.robust.methods.registry import METHODS, build_method, method_fields

if TYPE_CHECKING:
    from sihg.robust.methods.atta import ATTA as ATTA
    from sihg.robust.methods.base import AdversarialMethod as AdversarialMethod
    from sihg.robust.methods.base import Log as Log
    from sihg.robust.methods.base import Method as Method
    from sihg.robust.methods.base import Optimizer as Optimizer
    from sihg.robust.methods.dat import DAT as DAT
    from sihg.robust.methods.fast_at import FastAT as FastAT
    from sihg.robust.methods.fgsm_at import FGSMAT as FGSMAT
    from sihg.robust.methods.fgsm_pgi import FGSMPGI as FGSMPGI
    from sihg.robust.methods.free_at import FreeAT as FreeAT
    from sihg.robust.methods.ibp import IBP as IBP
    from sihg.robust.methods.mart import MART as MART
    from sihg.robust.methods.msi_hg import MSIHG as MSIHG
    from sihg.robust.methods.n_fgsm import NFGSM as NFGSM
    from sihg.robust.methods.natural_training import Natural as Natural
    from sihg.robust.methods.pgd_at import PGDAT as PGDAT
    from sihg.robust.methods.trades import TRADES as TRADES
    from sihg.robust.methods.yopo import YOPO as YOPO

_HOMES = {entry.class_name: entry.module for entry in METHODS.values()}
_HOMES |= dict.fromkeys(("AdversarialMethod", "Log", "Method", "Optimizer"), "base")
__all__ = ["METHODS", "build_method", "method_fields", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sihg.robust.methods' has no attribute {name!r}")
    return getattr(import_module(f"sihg.robust.methods.{_HOMES[name]}"), name)
