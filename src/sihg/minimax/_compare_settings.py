"""The settings of a comparison: their defaults, how a resume extends them, and the command line that repeats them."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import msgspec

from sihg.errors import InputError, UnknownNameError
from sihg.minimax._load_benchmark import IN_PYTHON
from sihg.minimax._start import RULES, step_numbers
from sihg.parse import Value
from sihg.store.schema import SolveConfig

ITERATIONS = 2000  # of each method, unless other limits are given
ROWS = 500  # that a history has, about


class CompareSettings(TypedDict, total=False):
    """The settings of `compare`, which describes them."""

    options: Mapping[str, Value]
    iterations: int | None
    gradients: int | None
    seed: int
    tolerance: float | None
    record_every: int | None
    steps: str | Mapping[str, float]
    folder: str | Path | None
    overwrite: bool


def check_names(given: Mapping[str, object], kind: type) -> None:
    """Raise UnknownNameError unless all settings are fields of a TypedDict."""
    for name in given:
        if name not in kind.__annotations__:
            raise UnknownNameError("setting", name, list(kind.__annotations__))


def is_whole(value: object, least: int) -> bool:
    """Whether a setting is an integer and not below `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def check_gradients(gradients: int | None) -> None:
    """Raise InputError unless a budget of block gradients is an integer >= 1, or None."""
    if gradients is not None and not is_whole(gradients, 1):
        raise InputError("gradients-range", gradients=gradients)


def make_config(
    problem: str, options: dict[str, Value], methods: tuple[str, ...], given: CompareSettings
) -> SolveConfig:
    """Return the settings of a comparison, with defaults for those that are not given."""
    gradients, every, steps = given.get("gradients"), given.get("record_every"), given.get("steps", RULES[0])
    check_gradients(gradients)
    if every is not None and not is_whole(every, 1):
        raise InputError("compare-record-every", record_every=every)
    # An iteration costs at least one block gradient, so this many iterations are never too few.
    iterations = given.get("iterations") if given.get("iterations") is not None else gradients
    iterations = ITERATIONS if iterations is None else iterations
    return SolveConfig(
        problem=problem,
        options=options,
        methods=methods,
        iterations=iterations,
        seed=given.get("seed", 0),
        tolerance=given.get("tolerance"),
        record_every=max(1, min(iterations // ROWS, 100)) if every is None else every,
        steps=step_numbers(steps),
        step_rule=steps if isinstance(steps, str) else RULES[0],
        gradients=gradients,
        record_gradients=max(1, gradients // ROWS) if gradients is not None and every is None else None,
    )


def extend_config(config: SolveConfig, iterations: int | None, gradients: int | None) -> SolveConfig:
    """Return the settings with other limits: if one is given, an old one that is not given falls away."""
    check_gradients(gradients)
    if gradients is not None:
        if config.gradients is None and config.record_gradients is None:
            raise InputError("resume-without-gradients", gradients=gradients)
        return msgspec.structs.replace(
            config, gradients=gradients, iterations=gradients if iterations is None else iterations
        )
    return config if iterations is None else msgspec.structs.replace(config, gradients=None, iterations=iterations)


def command_line(config: SolveConfig) -> str:
    """Return the command line that repeats the comparison; it says so if the problem has to be given in Python."""
    in_python = config.problem.endswith(IN_PYTHON)
    words = ["sihg", "solve", "PROBLEM" if in_python else config.problem, "--method", ",".join(config.methods)]
    words += ["--gradients", str(config.gradients)] if config.gradients is not None else []
    words += ["--iterations", str(config.iterations)] if config.iterations != config.gradients else []
    words += ["--seed", str(config.seed)]
    words += ["--record-every", str(config.record_every)] if config.record_gradients is None else []
    words += [word for key, value in config.options.items() for word in ("--set", f"{key}={value}")]
    words += [word for key, value in config.steps.items() for word in (f"--{key}", repr(value))]
    words += ["--steps", config.step_rule] if config.step_rule != RULES[0] else []
    words += ["--tolerance", repr(config.tolerance)] if config.tolerance is not None else []
    line = shlex.join(words)
    return f"{line}  # PROBLEM: {config.problem}, repeat it with sihg.minimax.compare" if in_python else line
