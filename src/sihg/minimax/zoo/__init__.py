"""Benchmark problems, most with known answers: `zoo.names()`, `zoo.get(name, **options)`. One file per family.

Importing a family registers its problems; `get` alone builds one.
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
