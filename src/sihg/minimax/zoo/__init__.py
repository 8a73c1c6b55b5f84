"""Benchmark problems, most with known answers: `zoo.names()`, `zoo.get(name, **options)`. One file per family.

Importing a family registers its problems; `get` alone builds one.

Example:
    >>> from sihg.minimax import zoo
    >>> zoo.get("weak-mvi").problem
    Problem(n=1, w=(1,), delta=(1, 1), float64)
"""
# ruff: noqa: F401  (families are imported for their registrations)

from sihg.minimax.zoo import (
    bilinear_games,
    distributional,
    gan,
    learning,
    limit_cycles,
    planar,
    strongly_monotone,
    weak_mvi,
)
from sihg.minimax.zoo._images import phantom
from sihg.minimax.zoo.registry import Benchmark, Solution, about, get, names, options

__all__ = ["Benchmark", "Solution", "about", "get", "names", "options", "phantom"]
