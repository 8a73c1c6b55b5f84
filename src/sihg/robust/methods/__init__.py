"""One file a method of training; each is a dataclass of its hyperparameters with one `step`."""

from dataclasses import fields
from typing import Any

from sihg.errors import InputError, UnknownNameError
from sihg.robust.methods.base import Log, Method, Optimizer
from sihg.robust.methods.dat import DAT
from sihg.robust.methods.fast_at import FastAT
from sihg.robust.methods.fgsm_at import FGSMAT
from sihg.robust.methods.free_at import FreeAT
from sihg.robust.methods.ibp import IBP
from sihg.robust.methods.msi_hg import MSIHG
from sihg.robust.methods.natural_training import Natural
from sihg.robust.methods.pgd_at import PGDAT
from sihg.robust.methods.trades import TRADES
from sihg.robust.methods.yopo import YOPO

METHODS: dict[str, type[Any]] = {
    "natural": Natural,
    "fgsm": FGSMAT,
    "fast": FastAT,
    "free": FreeAT,
    "pgd": PGDAT,
    "dat": DAT,
    "yopo": YOPO,
    "trades": TRADES,
    "ibp": IBP,
    "msi-hg": MSIHG,
}

__all__ = [
    "DAT",
    "FGSMAT",
    "IBP",
    "METHODS",
    "MSIHG",
    "PGDAT",
    "TRADES",
    "YOPO",
    "FastAT",
    "FreeAT",
    "Log",
    "Method",
    "Natural",
    "Optimizer",
    "build_method",
    "hyperparameters",
]


def hyperparameters(name: str) -> dict[str, tuple[Any, str]]:
    """Name, default and help of every hyperparameter of a method; running objects such as the memory are none."""
    if name not in METHODS:
        raise UnknownNameError("method", name, list(METHODS))
    own = [f for f in fields(METHODS[name]) if f.init and not f.metadata.get("running")]
    return {f.name: (f.default, f.metadata["help"]) for f in own}


def build_method(name: str, **settings: Any) -> Any:
    """The method of that name; a setting that it does not have is named."""
    known = hyperparameters(name)
    for setting in sorted(settings.keys() - {f.name for f in fields(METHODS[name]) if f.init}):
        raise InputError(f"method {name!r} has no setting {setting!r}: it has {', '.join(known) or 'none'}")
    if "eps" in known and "eps" not in settings:
        raise InputError(f"method {name!r} needs eps, the radius of the ball: such as 8/255")
    return METHODS[name](**settings)
