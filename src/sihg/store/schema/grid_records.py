"""A grid: grid.toml and submitit/jobs.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from sihg.store.schema.record import Record, convert_record, read_toml, toml_bytes
from sihg.store.schema.settings_table import Settings, flatten_settings, nest_settings


class GridConfig(Record, frozen=True, kw_only=True):
    """The settings of the runs in a folder, by method. The seeds are not kept: there may always be more."""

    attacks: tuple[str, ...]
    test_samples: int | Literal["all"]
    threads: int
    methods: dict[str, Settings]
    command: str = ""  # the newest `sihg reproduce` that began or continued the runs; empty if Python did


class SubmittedJob(msgspec.Struct, frozen=True):
    """A job of a cluster that runs a cell."""

    job: str  # its number
    log_bytes: int  # size of the cell's output.log before it


class SubmittedJobs(Record, frozen=True, kw_only=True):
    """submitit/jobs.json: the newest job of each cell."""

    cluster: str
    jobs: dict[str, SubmittedJob]


def read_grid_config(path: Path) -> GridConfig:
    """Read grid.toml."""
    table = read_toml(path)
    methods = table.get("methods", {})
    if isinstance(methods, Mapping):
        table["methods"] = {name: flatten_settings(settings) for name, settings in methods.items()}
    return convert_record(table, GridConfig, path, "restore the file")


def grid_config_bytes(config: GridConfig) -> bytes:
    """Return the content of grid.toml."""
    about = "The settings of the runs here. `sihg reproduce` may add methods and seeds, and changes nothing else."
    table = msgspec.to_builtins(config)
    table["methods"] = {name: nest_settings(settings) for name, settings in config.methods.items()}
    return toml_bytes(table, {"format": about})
