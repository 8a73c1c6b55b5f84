"""Solve minimax problems: describe one as a `Problem`, run a method by `solve`, look at its `History`.

`compare` runs several methods side by side, `profile` does so on many problems, `zoo` has problems with known answers,
and `steps` has the theorems' rules.

Example:
    >>> from sihg.minimax import METHODS, solve, zoo
    >>> "ssi-hg" in METHODS
    True
    >>> solve(zoo.get("weak-mvi").problem, "ssi-hg", iterations=10).stopped
    '10 iterations done'
"""

from sihg.core.entropy import BinaryEntropy
from sihg.core.prox import L1, Box, Convex, ElasticNet, L2Ball, LinfBall, NonNegative, Simplex, SquaredL2, Zero
from sihg.minimax import measure, zoo
from sihg.minimax import step_sizes as steps
from sihg.minimax._coupling import Gradients
from sihg.minimax.bilinear import LinearMap
from sihg.minimax.callbacks import Progress
from sihg.minimax.comparison import compare
from sihg.minimax.constants import Constants
from sihg.minimax.history import History
from sihg.minimax.performance_profile import profile
from sihg.minimax.problem import Problem
from sihg.minimax.solve import Result, solve
from sihg.minimax.solve_state import SolveState
from sihg.minimax.solvers import METHODS
from sihg.minimax.starts import random_start
from sihg.minimax.theories import admissible_rho

__all__ = [
    "L1",
    "METHODS",
    "BinaryEntropy",
    "Box",
    "Constants",
    "Convex",
    "ElasticNet",
    "Gradients",
    "History",
    "L2Ball",
    "LinearMap",
    "LinfBall",
    "NonNegative",
    "Problem",
    "Progress",
    "Result",
    "Simplex",
    "SolveState",
    "SquaredL2",
    "Zero",
    "admissible_rho",
    "compare",
    "measure",
    "profile",
    "random_start",
    "solve",
    "steps",
    "zoo",
]
