"""The threat model: the ball around a sample, cut by the bounds of the data, and sets of perturbations in it.

There is a set for each norm. All of them project, step along a gradient, draw noise, and shrink to a neighbourhood.

Example:
    >>> import torch
    >>> from sihg.robust.threat import Ball, Bounds, Feasible
    >>> bounds: Bounds = (0.0, 1.0)
    >>> allowed: Feasible = Ball(0.25, "linf", bounds).around(torch.tensor([[0.0, 0.5]]))
    >>> allowed.project_(torch.tensor([[-1.0, 1.0]]))
    tensor([[0.0000, 0.2500]])
"""

from sihg.robust.threat._l1 import L1Set, scale_to_l1_ball, spend_in_order
from sihg.robust.threat._rows import vector_norms
from sihg.robust.threat.ball import Ball, Bounds, Feasible
from sihg.robust.threat.ball_noise import extreme_noise, surface_noise, uniform_noise
from sihg.robust.threat.sets import L2Set, LinfSet, scale_to_ball

__all__ = [
    "Ball",
    "Bounds",
    "Feasible",
    "L1Set",
    "L2Set",
    "LinfSet",
    "extreme_noise",
    "scale_to_ball",
    "scale_to_l1_ball",
    "spend_in_order",
    "surface_noise",
    "uniform_noise",
    "vector_norms",
]
