"""The mathematics that minimax optimisation and robust training share.

Proximal maps of convex functions, the hybrid gradient for any torch optimiser, the implicit step, and random draws.
"""

from sihg.core.draw import generator
from sihg.core.hybrid import HybridGradient, hybrid
from sihg.core.implicit import implicit_step
from sihg.core.prox import L1, Box, Convex, ElasticNet, L2Ball, LinfBall, NonNegative, Simplex, SquaredL2, Zero

__all__ = [
    "L1",
    "Box",
    "Convex",
    "ElasticNet",
    "HybridGradient",
    "L2Ball",
    "LinfBall",
    "NonNegative",
    "Simplex",
    "SquaredL2",
    "Zero",
    "generator",
    "hybrid",
    "implicit_step",
]
