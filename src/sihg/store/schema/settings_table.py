"""The settings of a run as one table of dotted names, and what differs between two of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from sihg.errors import InputError
from sihg.parse import Value

NOT_SET = "none"  # how a TOML file says that a setting has no value
MAX_DIFFERENCES_NAMED = 3
Settings = dict[str, Value]  # by dotted name, such as optimizer.lr


def flatten_settings(table: Mapping[str, object], prefix: str = "") -> Settings:
    """Convert nested tables to one table of dotted names; tuples become lists and None becomes "none".

    >>> flatten_settings({"eps": 0.1, "optimizer": {"name": "sgd", "lr": 0.05}})
    {'eps': 0.1, 'optimizer.name': 'sgd', 'optimizer.lr': 0.05}
    """
    flat: Settings = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten_settings(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = _as_value(value)
    return flat


def _as_value(value: object) -> Value:
    if isinstance(value, list | tuple):
        return [_as_value(item) for item in value]
    return value if isinstance(value, bool | int | float | str) else NOT_SET if value is None else str(value)


def nest_settings(flat: Mapping[str, Value]) -> dict[str, Value | dict[str, Value]]:
    """Convert dotted names back to tables of one level.

    >>> nest_settings({"eps": 0.1, "optimizer.lr": 0.05})
    {'eps': 0.1, 'optimizer': {'lr': 0.05}}
    """
    nested: dict[str, Value | dict[str, Value]] = {}
    for name, value in flat.items():
        section, dot, key = name.partition(".")
        if dot:
            table = nested.setdefault(section, {})
            assert isinstance(table, dict)
            table[key] = value
        else:
            nested[name] = value
    return nested


class Difference(msgspec.Struct, frozen=True):
    """A setting that is not the same in two places."""

    name: str
    theirs: Value
    ours: Value


def differing_settings(theirs: Mapping[str, Value], ours: Mapping[str, Value]) -> list[Difference]:
    """List the settings that differ, in the order of `theirs`, then `ours`; a missing one counts as "none"."""
    pairs = ((name, theirs.get(name, NOT_SET), ours.get(name, NOT_SET)) for name in {**theirs, **ours})
    return [Difference(name, before, here) for name, before, here in pairs if before != here]


def describe_differences(differences: Sequence[Difference]) -> str:
    """Name the first few differences in one sentence part: "lr = 0.1 (here 0.2), ... and 2 more"."""
    shown = ", ".join(f"{d.name} = {d.theirs} (here {d.ours})" for d in differences[:MAX_DIFFERENCES_NAMED])
    more = len(differences) - MAX_DIFFERENCES_NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def check_config(config: Mapping[str, Value], saved: Mapping[str, Value], checkpoint: Path) -> None:
    """Raise InputError if config.toml is not the one that a checkpoint was made with, which has saved its settings."""
    wrong = [found for found in differing_settings(saved, config) if found.name in saved]
    if wrong:
        raise InputError(
            "config-not-of-checkpoint",
            differences={found.name: (found.theirs, found.ours) for found in wrong},
            path=checkpoint,
            shown=describe_differences(wrong),
        )
