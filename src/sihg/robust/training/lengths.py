"""Lengths in the settings of a method, such as tau: those of a preset follow eps when the user changes it.

A preset has lengths for its own eps: tau = 0.125 belongs to eps = 0.25. Within another ball, the same share of eps is
what the preset means. A file of the user's own is taken as it is written.
"""

import math
from collections.abc import Mapping
from pathlib import Path

from sihg.errors import InputError
from sihg.robust.methods.registry import method_fields
from sihg.robust.training.config import Settings, Table, resolve_name


def change_preset(source: str, settings: Settings, given: Table) -> tuple[Settings, list[str]]:
    """Return a preset's settings with those given; lengths that are not given keep their share of eps.

    Args:
        source: What errors call the preset.
        settings: Its settings, for the method of the run.
        given: The user's settings by name.
    Returns:
        The settings, and a line for each length that has changed.
    Raises:
        InputError: A setting cannot be used, or the norm is another one and eps is not given.
    """
    changed = settings.with_values(given)
    lengths = _lengths_not_given(settings, changed, given, source)
    factor = changed.eps / settings.eps if settings.eps else 1.0
    if factor == 1 or not 0 < factor < math.inf or not lengths:  # an eps of 0, inf or NaN is refused by the method
        return changed, []
    new = {name: factor * length for name, length in lengths.items()}
    lines = [
        f"{name} {length:.6g} -> {new[name]:.6g}: it follows eps (preset: {name} = {length / settings.eps:.4g} eps)"
        for name, length in lengths.items()
    ]
    return changed.with_values({f"method.{name}": length for name, length in new.items()}), lines


def change_config(path: Path, settings: Settings, given: Table) -> tuple[Settings, list[str]]:
    """Return the settings of a user's file with those given, and a line for each length that stays as it is written.

    Raises InputError as `change_preset` does.
    """
    changed = settings.with_values(given)
    lengths = _lengths_not_given(settings, changed, given, str(path))
    is_same = (changed.eps, changed.norm) == (settings.eps, settings.norm)
    lines = [
        f"{name} stays {length:.6g}, as {path} has it, with eps {changed.eps:.6g} instead of {settings.eps:.6g}"
        for name, length in lengths.items()
    ]
    return changed, [] if is_same else lines


def _lengths_not_given(settings: Settings, changed: Settings, given: Table, source: str) -> Mapping[str, float]:
    """Return the lengths that the changed settings still have from their source."""
    names = {resolve_name(name, changed.method.name) for name in given}
    if changed.norm != settings.norm and "eps" not in names:
        raise InputError(
            "norm-without-radius", norm=changed.norm, source=source, eps=settings.eps, source_norm=settings.norm
        )
    section = given.get("method")
    names |= {f"method.{name}" for name in section} if isinstance(section, Mapping) else set()
    known = method_fields(changed.method.name)
    return {
        name: value
        for name, value in changed.method.options.items()
        if name in known and known[name].metadata.get("length") and f"method.{name}" not in names
        if isinstance(value, int | float)
    }
