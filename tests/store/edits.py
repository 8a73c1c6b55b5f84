"""Change the settings of a run as somebody does who also makes a right seal."""

from pathlib import Path
from typing import Any

from sihg.store.files import from_toml
from sihg.store.schema import flatten_settings, nest_settings, write_toml


def edit_config(run: Path, values: dict[str, Any]) -> None:
    """Write config.toml with some values, by dotted name, changed or added."""
    table = from_toml(run / "config.toml")
    del table["format"]
    write_toml(run / "config.toml", nest_settings(flatten_settings(table) | values))
