"""The problems by name: `register` adds one, `get` builds it."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sihg.errors import InputError, UnknownNameError
from sihg.minimax._layout import Blocks, Weights
from sihg.minimax.constants import Constants
from sihg.minimax.problem import Problem


class Solution(NamedTuple):
    """A known stationary point.

    Args:
        w: The point, in the form of the problem's w0.
        delta: The same for delta0.
    Example:
        >>> get("weak-mvi").solution
        Solution(w=tensor([0.], dtype=torch.float64), delta=tensor([[0.]], dtype=torch.float64))
    """

    w: Weights
    delta: Blocks


@dataclass(frozen=True)
class Benchmark:
    """A problem with its name, its description and, if known, its solution or the best known value.

    Args:
        name, about: The name, and one line about it.
        problem: The problem.
        solution: A stationary point; None if none is known.
        best_value: The lowest known value of max over delta; None if it is not known.
    Example:
        >>> benchmark = get("quadratic")
        >>> benchmark.name, benchmark.problem.n, benchmark.best_value
        ('quadratic', 4, None)
    """

    name: str
    about: str
    problem: Problem
    solution: Solution | None
    best_value: float | None = None
    # What `get` built it with; None if it is not as the zoo builds it, so `dataclasses.replace` does not copy it.
    options: Mapping[str, object] | None = field(default=None, init=False, compare=False)

    @property
    def constants(self) -> Constants:
        """The known constants among L11, L12, L22, rho and mu."""
        return self.problem.constants


Builder = Callable[..., tuple[Problem, Solution | float | None]]  # the solution, or the best known value
_BUILDERS: dict[str, Builder] = {}


def register(build: Builder) -> Builder:
    """Add a problem under its function's name, with hyphens; its docstring begins with one line about it."""
    _BUILDERS[build.__name__.replace("_", "-")] = build
    return build


def names() -> list[str]:
    """Return the names of all problems.

    Returns:
        The names that `get` takes.
    Example:
        >>> "weak-mvi" in names()
        True
    """
    return list(_BUILDERS)


def about(name: str) -> str:
    """Return one line about a problem.

    Args:
        name: One of `names()`.
    Returns:
        The first line of the docstring of its builder.
    Example:
        >>> about("weak-mvi-blocks") != ""
        True
    """
    return (_builder(name).__doc__ or "").split("\n")[0]


def options(name: str) -> dict[str, object]:
    """Return the options of a problem and their defaults.

    Args:
        name: One of `names()`.
    Returns:
        The default of each option.
    Example:
        >>> options("ridge")["n"]
        4
    """
    return {key: p.default for key, p in inspect.signature(_builder(name)).parameters.items()}


def get(name: str, **chosen: object) -> Benchmark:
    """Build a problem of the zoo, in float64; equal options give equal problems.

    Args:
        name: One of `names()`.
        **chosen: Options of the problem; `options(name)` lists them.
    Returns:
        The problem and its solution, or the best known value, if there is one.
    Raises:
        UnknownNameError: If there is no such problem.
        InputError: If the problem has no such option.
    Example:
        >>> benchmark = get("ridge", n=2, samples=20)
        >>> benchmark.problem
        Problem(n=2, w=(10,), delta=(2, 10), float64)
    """
    unknown = set(chosen) - set(options(name))
    if unknown:
        raise InputError(
            "unknown-problem-option", name=min(unknown), problem=name, names=", ".join(options(name)) or "no options"
        )
    problem, answer = _builder(name)(**chosen)
    if isinstance(answer, float):
        made = Benchmark(name, about(name), problem, None, best_value=answer)
    else:
        made = Benchmark(name, about(name), problem, answer)
    object.__setattr__(made, "options", dict(chosen))
    return made


def _builder(name: str) -> Builder:
    if name not in _BUILDERS:
        raise UnknownNameError("problem", name, names())
    return _BUILDERS[name]
