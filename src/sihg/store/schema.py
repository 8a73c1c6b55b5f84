"""A typed class for every file that a run, an evaluation, a grid or a solve leaves. Needs no torch.

Records are msgspec structs: types are checked on reading, and a mistake becomes one sentence that names the field.
Each file has one writer and one reader. `format` is the version of a file's layout; a file without it has format 1.
Since format 2 every file carries its own sum (`sihg.store.seal`), which every reader checks.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import msgspec

from sihg.errors import InputError
from sihg.parse import Value
from sihg.store.files import from_toml, read_regular, to_toml, write_bytes
from sihg.store.seal import NO_SUM, SEAL_KEY, require_seal, seal
from sihg.store.tables import Mark

FORMAT = 2  # of every record that this version writes
SEALED_FORMAT = 2  # since which files carry a sum
NOT_SET = "none"  # how a TOML file says that a setting has no value
MAX_DIFFERENCES_NAMED = 3
Json = Value | dict[str, Any] | None
Bounds = tuple[float, float]
Settings = dict[str, Value]  # by dotted name, such as optimizer.lr
R = TypeVar("R", bound=msgspec.Struct)


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what is written as one JSON file."""

    format: int = FORMAT


# ---- a run: config.toml, environment.json, metrics.csv, memory.csv, and the state in a checkpoint


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


# ---- an evaluation: evaluation/NAME.json


class Check(msgspec.Struct, frozen=True):
    """A check of an evaluation; docs/checks.md says when it fires and what to do."""

    name: str
    result: Literal["fine", "warning", "error", "not run"]
    message: str = ""

    @property
    def link(self) -> str:
        """Where the documents explain the check."""
        return f"docs/checks.md#{self.name.partition(':')[0].replace(' ', '-')}"


def count_results(checks: Sequence[Check]) -> str:
    """Return how many checks had which result: "13 fine, 2 warnings, 0 errors, 1 not run"."""
    counts = Counter(check.result for check in checks)
    kinds = [f"{counts[kind]} {kind}{'' if counts[kind] == 1 else 's'}" for kind in ("warning", "error")]
    return f"{counts['fine']} fine, {', '.join(kinds)}, {counts['not run']} not run"


def explain_not_run(checks: Sequence[Check]) -> list[str]:
    """Return which checks were not run and why, one line per reason: "steps, runs: eps is 0"."""
    reasons: dict[str, list[str]] = {}
    for check in checks:
        if check.result == "not run":
            reasons.setdefault(check.message, []).append(check.name)
    return [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]


class AttackRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one attack; `low` and `high` are the 95 % interval of the accuracy."""

    attack: str
    accuracy: float
    low: float
    high: float
    samples: int
    broken: int
    passes: float
    forwards: float
    seconds: float
    passes_per_sample: float
    forwards_per_sample: float
    proof: bool = False  # not an attack but a proof: the accuracy is a lower bound
    remark: str = ""
    attacked: int | None = None  # samples, where not all were
    stages: tuple["AttackRow", ...] = ()
    votes: int = 1  # draws that classified each point; with several, it is broken if at least half are wrong
    mean: float | None = None  # with several votes: the share of draws that are right
    worst: float | None = None  # with several votes: the share of samples for which all draws are right


class EvaluationHeader(Record, frozen=True, kw_only=True):
    """Which weights were attacked on which samples, and how."""

    weights: str
    sha256: str
    checkpoint: str
    data: str
    contents: str = ""  # SHA-256 of the samples
    split: str
    samples: int
    of: int
    seed: int
    norm: str
    bounds: Bounds | None
    device: str
    rule: str  # which iterates count
    target: str = ""  # of targeted attacks: which class breaks a sample, such as "class 3"
    precision: str = "float32"  # number format of the searches; verdicts are always float32
    bpda: dict[str, str] = {}  # by module: what gave its gradient
    notes: tuple[str, ...] = ()  # what was done to load the model, such as a prefix removed from names
    eot: int = 1  # draws over which gradients are averaged
    votes: int = 1  # draws that classified each point
    files: dict[str, str] = {}  # SHA-256 of the files beside the record
    edited: bool = False  # on purpose, and accepted by `sihg check`
    own_seal_with_seconds: str = ""  # by the user's key: a record that has it is not made again


def method_notes(header: EvaluationHeader) -> list[str]:
    """Return how gradients and verdicts were made, where that is not the usual way."""
    notes = [f"gradient of {module}: {stand_in}" for module, stand_in in header.bpda.items()]
    notes += [f"gradients are means over {header.eot} draws"] if header.eot > 1 else []
    return notes + ([f"broken if at least half of {header.votes} draws are wrong"] if header.votes > 1 else [])


class EvaluationRecord(EvaluationHeader, frozen=True, kw_only=True):
    """Accuracy under attacks at one radius."""

    eps: float
    attacks: tuple[AttackRow, ...]
    checks: tuple[Check, ...] = ()
    checks_seconds: float = 0.0
    environment: Environment = Environment()


class CurveRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Accuracy under one attack at each radius."""

    attack: str
    accuracy: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    passes: float
    forwards: float
    seconds: float
    proof: bool = False
    remark: str = ""
    votes: int = 1
    mean: tuple[float, ...] = ()  # with several votes, at each radius, as is worst
    worst: tuple[float, ...] = ()
    stages: tuple[AttackRow, ...] = ()  # of each radius


def vote_note(row: CurveRow) -> str:
    """Return the accuracies that the votes on a random model give besides that of the row; empty with one vote."""
    if row.votes == 1:
        return ""
    mean, worst = (", ".join(f"{100 * value:.2f}" for value in values) for values in (row.mean, row.worst))
    return f"{row.attack}: at these radii {mean} % of draws are right (mean), for {worst} % of samples all (worst)"


class CurveRecord(EvaluationHeader, frozen=True, kw_only=True):
    """Accuracy under attacks at several radii."""

    eps: tuple[float, ...]
    curves: tuple[CurveRow, ...]
    checks: tuple[Check, ...] = ()
    environment: Environment = Environment()


class MinimumRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The smallest eps found per sample, over all samples; None: larger than what was searched."""

    attack: str
    samples: int
    found: int  # samples with a misclassified point within max_eps
    mean: float | None
    lower_quartile: float | None
    median: float | None
    upper_quartile: float | None
    passes: float
    forwards: float
    seconds: float


class MinimumRecord(CurveRecord, frozen=True, kw_only=True):
    """The smallest eps at which samples fall, and the accuracy at the radii `eps` that follows from it."""

    max_eps: float
    minimum: tuple[MinimumRow, ...]


class GalleryHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Of which weights and which attack the samples in gallery.npz are."""

    sha256: str
    checkpoint: str
    data: str
    split: str
    eps: float
    norm: str
    bounds: Bounds | None
    rule: str
    classes: tuple[str, ...]
    attack: str
    accuracy: float


# ---- a grid: grid.toml, submitit/jobs.json


class GridConfig(Record, frozen=True, kw_only=True):
    """The settings of the runs in a folder, by method. The seeds are not kept: there may always be more."""

    attacks: tuple[str, ...]
    test_samples: int | Literal["all"]
    threads: int
    methods: dict[str, Settings]


class SubmittedJob(msgspec.Struct, frozen=True):
    """A job of a cluster that runs a cell."""

    job: str  # its number
    log_bytes: int  # size of the cell's output.log before it


class SubmittedJobs(Record, frozen=True, kw_only=True):
    """submitit/jobs.json: the newest job of each cell."""

    cluster: str
    jobs: dict[str, SubmittedJob]


# ---- a solve: config.json, METHOD/row.json, summary.json, field.json, METHOD/history.json


class SolveConfig(Record, frozen=True, kw_only=True):
    """The settings of a `sihg solve`."""

    problem: str
    options: dict[str, Value]
    methods: tuple[str, ...]
    iterations: int
    seed: int
    tolerance: float | None
    record_every: int
    steps: dict[str, float]


class SolveRow(Record, frozen=True, kw_only=True):
    """The final result of one method."""

    method: str
    iterations: int
    w_gradients: int
    delta_gradients: int
    seconds: float
    saddle_norm_squared: float | None
    distance: float | None
    sigma: float | None
    tau: float | None
    theta: float | None
    source: str  # of the step sizes
    bound: float | None  # of Theorem 1
    stopped: str
    warnings: tuple[str, ...] = ()
    config: str = ""  # identifies the settings that it was made with


class SolveSummary(Record, frozen=True, kw_only=True):
    """The final results of all methods."""

    problem: str
    about: str
    options: dict[str, Value]
    n: int
    dimension_w: int
    dimension_delta: int
    seed: int
    iterations: int
    command: str
    environment: Environment
    methods: tuple[SolveRow, ...]


class SolveField(Record, frozen=True, kw_only=True):
    """The descent-ascent direction on a grid, for problems with one number in w and one in delta."""

    w: tuple[float, ...]
    delta: tuple[float, ...]
    dw: tuple[tuple[float | None, ...], ...]
    ddelta: tuple[tuple[float | None, ...], ...]
    solution: tuple[float, float] | None
    box: tuple[float, float, float, float] | None


# ---- reading and writing


def read_record(path: Path, kind: type[R], remedy: str = "restore the file, or remove it") -> R:
    """Read a JSON file as a record of this kind.

    Args:
        path: The file.
        kind: The class of the record.
        remedy: What the user can do, the end of the error message.
    Raises:
        InputError: The file is missing, changed, not JSON, of a newer format, or has a field of another type.
    """
    return convert_record(read_json(path, remedy), kind, path, remedy)


def read_evaluation(path: Path, remedy: str = "evaluate again") -> EvaluationRecord | CurveRecord:
    """Read evaluation/NAME.json: a table, a curve, or smallest distances with their curve."""
    content = read_json(path, remedy)
    if "minimum" in content:
        return convert_record(content, MinimumRecord, path, remedy)
    if "curves" in content:
        return convert_record(content, CurveRecord, path, remedy)
    return convert_record(content, EvaluationRecord, path, remedy)


def convert_record(content: object, kind: type[R], source: object, remedy: str) -> R:
    """Convert plain values to a record; `source` is named in the error."""
    found = content.get("format", 1) if isinstance(content, Mapping) else 1
    if not (isinstance(found, int) and 1 <= found <= FORMAT):
        raise InputError("record-format", format=found, source=source, reads=FORMAT)
    try:
        layout = {"format": found} if isinstance(content, Mapping) and issubclass(kind, Record) else {}
        return msgspec.convert({**layout, **content} if layout else content, kind, strict=False)  # type: ignore[dict-item]
    except msgspec.ValidationError as error:
        raise InputError("record-invalid", kind=kind.__name__, source=source, error=error, remedy=remedy) from error


def write_record(path: Path, record: msgspec.Struct) -> Path:
    """Write a record as sealed JSON, whole or not at all."""
    return write_json(path, msgspec.to_builtins(record))


def record_text(record: msgspec.Struct) -> str:
    """Return a record as indented JSON."""
    return json.dumps(msgspec.to_builtins(record), indent=1, allow_nan=False) + "\n"


def write_json(path: Path, content: Mapping[str, object]) -> Path:
    """Write a JSON object with its format and its seal, whole or not at all."""
    return write_bytes(path, json_bytes(content))


def json_bytes(content: Mapping[str, object]) -> bytes:
    """Return what `write_json` writes."""
    text = json.dumps({"format": FORMAT, **content, SEAL_KEY: NO_SUM}, indent=1, allow_nan=False) + "\n"
    return seal(text.encode())


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Read a JSON object and check its seal."""
    try:
        data = read_regular(path)
        content = json.loads(data)
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}, not an object")
    except InputError:
        raise
    except PermissionError as error:  # no damage, and may pass: the file must not be given up for it
        raise InputError("cannot-look", path=path, reason=error.strerror or error) from error
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError("record-unreadable", path=path, why=why, remedy=remedy) from error
    require_seal(path, data, sealed=content.get("format", 1) != 1)
    content.pop(SEAL_KEY, None)
    return content


def write_toml(path: Path, table: Mapping[str, object], comments: Mapping[str, str] | None = None) -> Path:
    """Write settings as TOML with their format and their seal, whole or not at all."""
    return write_bytes(path, toml_bytes(table, comments))


def toml_bytes(table: Mapping[str, object], comments: Mapping[str, str] | None = None) -> bytes:
    """Return what `write_toml` writes."""
    return seal(f"{to_toml({'format': FORMAT, **table}, comments)}\n# {NO_SUM}\n".encode())


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file of a folder of results and check its seal; the format stays in the table."""
    table = from_toml(path)
    # Without a seal only a file of format 1 is read; no version wrote an empty file.
    require_seal(path, read_regular(path), sealed=table.get("format", 1 if table else None) != 1)
    return table


def read_run_config(path: Path) -> RunConfig:
    """Read config.toml."""
    table = read_toml(path)
    layout = table.pop("format", 1)
    return convert_record({"settings": flatten_settings(table), "format": layout}, RunConfig, path, "restore the file")


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


# ---- settings by dotted name


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
