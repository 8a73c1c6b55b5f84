"""A run: config.toml, environment.json, failure.json, metrics.csv, memory.csv, and the state in a checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Self

import msgspec

from sihg.store.schema.record import Json, Record, convert_record, read_toml
from sihg.store.schema.settings_table import NOT_SET, Settings, flatten_settings
from sihg.store.tables import Mark


class RunConfig(Record, frozen=True, kw_only=True):
    """The settings of a run, by dotted name; "none" stands for a setting without a value."""

    settings: Settings

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.settings.get("method.name", ""))

    def number(self, name: str) -> float | None:
        """Return a numeric setting; None if it is not set or not a number."""
        value = self.settings.get(name)
        return float(value) if isinstance(value, int | float) else None

    def text(self, name: str) -> str:
        """Return a setting as text; empty if it is not set."""
        value = self.settings.get(name, NOT_SET)
        return "" if value == NOT_SET else str(value)


class Environment(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What a result was made with. Records of other programs may leave any of it out."""

    python: str = ""
    sihg: str = ""
    torch: str = ""
    numpy: str = ""
    processor: str = ""
    cores: str = ""
    threads: int | None = None
    dtype: str | None = None
    data_folder: str | None = None  # believed only in a folder that this user's own command made
    launch: str = ""  # of torchrun, whose restarts continue the run


class Failure(Record, frozen=True, kw_only=True):
    """failure.json: an error that restarts by torchrun would meet again, so that they stop at once."""

    launch: str
    code: str
    message: str


class MetricsRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of metrics.csv: the metrics of one epoch. Accuracies are shares from 0 to 1."""

    epoch: int
    step: int
    loss: float | None
    accuracy: float | None  # on what the method trained on
    natural: float | None = None  # of the held-out set
    robust: float | None = None
    lr: float | None = None
    passes: float | None = None  # forward-backward passes per sample so far
    moved: float | None = None  # mean move of the stored perturbations, in units of eps
    saturated: float | None = None  # share of their entries on the boundary
    seconds: float | None = None
    evaluation_seconds: float | None = None
    extra: dict[str, float | None] = {}  # columns that a method adds

    def cells(self) -> dict[str, float | None]:
        """Return the row as columns of the table."""
        return {name: getattr(self, name) for name in METRICS_COLUMNS} | self.extra

    @classmethod
    def from_cells(cls, cells: Mapping[str, str | float | None]) -> Self:
        """Convert the cells of a table, in which an empty text is a missing value."""
        own = {name: cells[name] for name in cls.__struct_fields__ if cells.get(name) not in (None, "")}
        extra = {name: value for name, value in cells.items() if name not in cls.__struct_fields__}
        own["extra"] = {name: None if value in (None, "") else value for name, value in extra.items()}  # type: ignore[assignment]
        return msgspec.convert({"loss": None, "accuracy": None, **own}, cls, strict=False)


def merit(row: MetricsRow) -> tuple[float, float]:
    """Return what the best epoch is chosen by, the first of equals: robust accuracy, then natural."""
    return row.robust or 0.0, row.natural or 0.0


METRICS_COLUMNS = tuple(name for name in MetricsRow.__struct_fields__ if name != "extra")
HISTOGRAM_BINS = 10  # of |delta| / eps, in memory.csv
MEMORY_COLUMNS = (
    *("epoch", "moved", "saturated"),
    *(f"to_{k / HISTOGRAM_BINS:g}" for k in range(1, HISTOGRAM_BINS + 1)),
)


class Tally(msgspec.Struct, kw_only=True):
    """Sums over the epoch so far, of one lane."""

    samples: int = 0
    passes: float = 0.0  # forward-backward passes, times samples
    loss: float = 0.0
    hits: float = 0.0
    moved: float | None = None
    saturated: float | None = None
    judged: int = 0  # samples of lanes with enough rows to call their predictions constant
    constant: float = 0.0  # of these: samples predicted as the most frequent class of their batch
    extra: dict[str, float] = {}  # sums of the columns that a method adds


class MonitorState(msgspec.Struct, kw_only=True):
    """What the warnings while training depend on."""

    best: float = 0.0  # robust accuracy so far
    said: list[str] = []  # kinds of warnings given


class Progress(msgspec.Struct, kw_only=True):
    """Where a run is: what a checkpoint keeps besides tensors."""

    epoch: int = 0
    number: int = 0  # batches of this epoch that are done
    passes: float = 0.0  # forward-backward passes of the epochs before, times samples
    seconds: float = 0.0
    evaluation_seconds: float = 0.0
    tallies: list[Tally] = msgspec.field(default_factory=lambda: [Tally()])  # one for each lane
    monitor: MonitorState = msgspec.field(default_factory=MonitorState, name="watch")
    best: MetricsRow | None = None  # of the best held-out robust accuracy


class DataIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What it takes to rebuild the model without the data, and to recognise the data."""

    shape: tuple[int, ...]
    classes: tuple[str, ...]
    samples: int = 0
    sha256: str = ""


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """The state in a checkpoint `last-NUMBER`."""

    progress: Progress
    optimizer: Json
    tables: dict[str, Mark]  # how far the tables were when the checkpoint was made
    data: DataIdentity
    settings: Settings
    threads: int
    weights: str  # SHA-256 of the weights that an evaluation attacks, as in its record


class BestState(msgspec.Struct, frozen=True, kw_only=True):
    """The state in a checkpoint `best-NUMBER`."""

    row: MetricsRow
    data: DataIdentity
    settings: Settings
    weights: str


def read_run_config(path: Path) -> RunConfig:
    """Read config.toml."""
    table = read_toml(path)
    layout = table.pop("format", 1)
    return convert_record({"settings": flatten_settings(table), "format": layout}, RunConfig, path, "restore the file")
