"""A solve: config.json, METHOD/row.json, summary.json and field.json."""

from sihg.parse import Value
from sihg.store.schema.record import Record
from sihg.store.schema.run_records import Environment


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
    step_rule: str = "theorem"  # or "adaptive", for the step sizes that `steps` does not give
    gradients: int | None = None  # budget of block gradients per method
    record_gradients: int | None = None  # a row whenever the count passes a multiple of it; None: by record_every


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
    gradients: int | None = None  # budget of block gradients per method


class SolveField(Record, frozen=True, kw_only=True):
    """The descent-ascent direction on a grid, for problems with one number in w and one in delta."""

    w: tuple[float, ...]
    delta: tuple[float, ...]
    dw: tuple[tuple[float | None, ...], ...]
    ddelta: tuple[tuple[float | None, ...], ...]
    solution: tuple[float, float] | None
    box: tuple[float, float, float, float] | None
