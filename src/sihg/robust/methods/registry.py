"""Training methods by name: their settings, and where their classes are. A class is imported when it is built."""

import sys
from dataclasses import Field, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from sihg.errors import InputError, UnknownNameError
from sihg.parse import expand_home
from sihg.robust.methods import settings as declared
from sihg.robust.methods.settings import MethodSettings, match_fields
from sihg.user_code import load_callable


class Entry(NamedTuple):
    """A method: its settings, and the module and the name of its class."""

    settings: type[MethodSettings]
    module: str
    class_name: str


METHODS = {
    "natural": Entry(declared.NaturalSettings, "natural_training", "Natural"),
    "fgsm": Entry(declared.FGSMSettings, "fgsm_at", "FGSMAT"),
    "fast": Entry(declared.FastSettings, "fast_at", "FastAT"),
    "n-fgsm": Entry(declared.NFGSMSettings, "n_fgsm", "NFGSM"),
    "free": Entry(declared.FreeSettings, "free_at", "FreeAT"),
    "pgd": Entry(declared.PGDSettings, "pgd_at", "PGDAT"),
    "dat": Entry(declared.DATSettings, "dat", "DAT"),
    "yopo": Entry(declared.YOPOSettings, "yopo", "YOPO"),
    "trades": Entry(declared.TRADESSettings, "trades", "TRADES"),
    "mart": Entry(declared.MARTSettings, "mart", "MART"),
    "ibp": Entry(declared.IBPSettings, "ibp", "IBP"),
    "atta": Entry(declared.ATTASettings, "atta", "ATTA"),
    "fgsm-pgi": Entry(declared.FGSMPGISettings, "fgsm_pgi", "FGSMPGI"),
    "msi-hg": Entry(declared.MSIHGSettings, "msi_hg", "MSIHG"),
}


_USER_CLASSES: dict[str, object] = {}  # by name; each file is run once


def settings_class(name: str) -> type[Any]:
    """Return the dataclass with the settings of a method; the class itself for `path.py:Name` or `module:Name`."""
    if ":" in name:
        return _user_class(name)
    if name not in METHODS:
        raise UnknownNameError("method", name, list(METHODS))
    return METHODS[name].settings


def method_class(name: str) -> type[Any]:
    """Return the class of a method, which loads torch."""
    if name in METHODS:
        entry = METHODS[name]
        return getattr(import_module(f"sihg.robust.methods.{entry.module}"), entry.class_name)  # type: ignore[no-any-return]
    return settings_class(name)


def method_fields(name: str) -> "dict[str, Field[Any]]":
    """Return the fields of a method that are settings.

    Args:
        name: The name of the method, as in `build_method`.
    Returns:
        Each field by its name; its metadata has the help text and the limits.
    Example:
        >>> method_fields("fast")["alpha"].default
        1.25
    """
    own = (item for item in fields(settings_class(name)) if item.init and not item.metadata.get("running"))
    return {item.name: item for item in own}


def name_of(method: object) -> str:
    """Return the name by which settings refer to a method object: one of `METHODS`, or `path.py:Name`.

    A user's class is remembered, so that its file does not run again in this process.
    """
    kind = type(method)
    for name, entry in METHODS.items():
        if (kind.__module__, kind.__qualname__) == (f"{__package__}.{entry.module}", entry.class_name):
            return name
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    name = f"{kind.__module__ if file is None else Path(file).resolve()}:{kind.__qualname__}"
    _USER_CLASSES[name] = kind
    return name


def build_method(name: str, **settings: Any) -> Any:
    """Build a training method from its settings.

    Args:
        name: One of `METHODS`, or `path.py:Name` or `package.module:Name`: a dataclass with a `step`.
        **settings: Its fields, such as eps and steps.
    Returns:
        The method.
    Raises:
        InputError: If a setting is unknown, missing or outside its limits.
    Example:
        >>> build_method("pgd", eps="8/255", steps=7).steps
        7
    """
    kind = method_class(name)
    return kind(**match_fields(kind, f"method {name!r}", settings))


def _user_class(name: str) -> type[Any]:
    """Load a user's class once, wherever the current folder is later."""
    module, _, attribute = name.rpartition(":")
    path = str(expand_home(module).resolve()) if module.endswith(".py") else module
    key = f"{path}:{attribute}"
    if key not in _USER_CLASSES:
        _USER_CLASSES[key] = load_callable("method", key)
    found = _USER_CLASSES[key]
    step = getattr(found, "step", None)
    has_step = callable(step) and getattr(step, "__qualname__", "") != "Method.step"  # which only says what it does
    if not (isinstance(found, type) and is_dataclass(found) and has_step):
        raise InputError("method-class", name=name, found=found)
    return found
