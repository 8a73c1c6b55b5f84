"""Convex functions for tests, each with a plain description that SciPy can solve."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import lsq_linear, minimize
from torch import Tensor

from sihg.core.prox import (
    L1,
    Box,
    Convex,
    ElasticNet,
    L2Ball,
    LinfBall,
    NonNegative,
    Simplex,
    SquaredL2,
    Zero,
)

Array = NDArray[np.float64]
INF = math.inf
D = 4
C = np.array([0.5, -1.0, 0.0, 2.0])
F64 = torch.float64


def tensor(x: Array | list[float]) -> Tensor:
    return torch.tensor(x, dtype=F64)


@dataclass(frozen=True)
class Plain:
    """a ||u - s||_1 + (b/2) ||u - c||^2 + indicator of the bounds, of ||u - m|| <= r and of sum_j (u - s)_j = total."""

    a: float = 0.0
    s: Array | float = 0.0
    b: float = 0.0
    c: Array | float = 0.0
    lower: Array | float = -INF
    upper: Array | float = INF
    r: float | None = None
    m: Array | float = 0.0
    total: float | None = None

    def value(self, u: Array) -> float:
        outside = (
            np.any(u < self.lower - 1e-12)
            or np.any(u > self.upper + 1e-12)
            or (self.r is not None and np.linalg.norm(u - self.m) > self.r + 1e-12)
            or (self.total is not None and abs(np.sum(u - self.s) - self.total) > 1e-12)
        )
        finite = self.a * np.sum(np.abs(u - self.s)) + self.b / 2 * np.sum((u - self.c) ** 2)
        return INF if outside else float(finite)

    def prox(self, z: Array, eta: float) -> Array:
        """SLSQP on (u, e) with e >= |u - s|, which makes every one of these problems smooth."""
        eye, s = np.eye(D), np.broadcast_to(self.s, D)
        constraints = [
            {"type": "ineq", "fun": lambda x: x[D:] - x[:D] + s, "jac": lambda _: np.hstack([-eye, eye])},
            {"type": "ineq", "fun": lambda x: x[D:] + x[:D] - s, "jac": lambda _: np.hstack([eye, eye])},
        ]
        if self.r is not None:
            constraints.append({"type": "ineq", "fun": lambda x: self.r**2 - np.sum((x[:D] - self.m) ** 2)})
        if self.total is not None:
            constraints.append({"type": "eq", "fun": lambda x: np.sum(x[:D] - s) - self.total})

        def objective(x: Array) -> tuple[float, Array]:
            u, e = x[:D], x[D:]
            f = self.a * e.sum() + self.b / 2 * np.sum((u - self.c) ** 2) + np.sum((u - z) ** 2) / (2 * eta)
            return f, np.concatenate([self.b * (u - self.c) + (u - z) / eta, np.full(D, self.a)])

        lower, upper = np.broadcast_to(self.lower, D), np.broadcast_to(self.upper, D)
        start = np.clip(z, lower, upper)
        found = minimize(
            objective,
            np.concatenate([start, np.abs(start - s)]),
            jac=True,
            method="SLSQP",
            bounds=[*zip(lower, upper, strict=True), *[(0.0, None)] * D],
            constraints=constraints,
            options={"ftol": 1e-15, "maxiter": 500},
        )
        return np.asarray(found.x[:D], dtype=np.float64)

    def distance(self, u: Array, v: Array) -> float:
        """Bounded least squares over the generators of the subdifferential at u."""
        eye, s = np.eye(D), np.broadcast_to(self.s, D)
        fixed = self.b * (u - self.c) + self.a * np.sign(u - s)
        generators = [(np.zeros(D), -1.0, 1.0)]
        generators += [(eye[j], -self.a, self.a) for j in range(D) if self.a > 0 and u[j] == s[j]]
        generators += [(eye[j], 0, INF) for j in range(D) if abs(u[j] - np.broadcast_to(self.upper, D)[j]) < 1e-12]
        generators += [(eye[j], -INF, 0) for j in range(D) if abs(u[j] - np.broadcast_to(self.lower, D)[j]) < 1e-12]
        if self.r is not None and abs(np.linalg.norm(u - self.m) - self.r) < 1e-12:
            generators += [(u - self.m, 0, INF)] if self.r else [(e, -INF, INF) for e in eye]
        if self.total is not None:
            generators.append((np.ones(D), -INF, INF))
        columns, low, high = zip(*generators, strict=True)
        found = lsq_linear(np.stack(columns, 1), v - fixed, (low, high), method="bvls", tol=1e-14)
        return float(np.linalg.norm(found.fun))


BOX = (np.array([-INF, -1.0, 0.5, -0.2]), np.array([0.3, INF, 0.5, 0.7]))
CASES: dict[str, tuple[Convex, Plain]] = {
    "zero": (Zero(), Plain()),
    "l1": (L1(0.7), Plain(a=0.7)),
    "l1 weight 0": (L1(0.0), Plain()),
    "squared": (SquaredL2(0.6), Plain(b=0.6)),
    "squared centre": (SquaredL2(0.6, tensor(C)), Plain(b=0.6, c=C)),
    "squared number": (SquaredL2(2.0, -1.5), Plain(b=2.0, c=-1.5)),
    "elastic": (ElasticNet(0.7, 0.4), Plain(a=0.7, b=0.4)),
    "box": (Box(-0.5, 1.25), Plain(lower=-0.5, upper=1.25)),
    "box tensors": (Box(tensor(BOX[0]), tensor(BOX[1])), Plain(lower=BOX[0], upper=BOX[1])),
    "box mixed": (Box(tensor(C), 2.5), Plain(lower=C, upper=2.5)),
    "box half": (Box(-INF, tensor(C)), Plain(upper=C)),
    "nonnegative": (NonNegative(), Plain(lower=0.0)),
    "linf": (LinfBall(0.8), Plain(lower=-0.8, upper=0.8)),
    "linf centre": (LinfBall(0.8, tensor(C)), Plain(lower=C - 0.8, upper=C + 0.8)),
    "l2": (L2Ball(1.3), Plain(r=1.3)),
    "l2 centre": (L2Ball(1.3, tensor(C)), Plain(r=1.3, m=C)),
    "l2 point": (L2Ball(0.0, tensor(C)), Plain(lower=C, upper=C)),
    "simplex": (Simplex(), Plain(lower=0.0, total=1.0)),
    "simplex large": (Simplex(3.5), Plain(lower=0.0, total=3.5)),
    "l1 scaled": (L1(0.7).scaled(3.0), Plain(a=2.1)),
    "l1 translated": (L1(0.7).translated(tensor(C)), Plain(a=0.7, s=C)),
    "elastic both": (ElasticNet(0.7, 0.4).scaled(2.0).translated(tensor(C)), Plain(a=1.4, b=0.8, s=C, c=C)),
    "box translated": (Box(-0.1, 0.3).translated(tensor(C)), Plain(lower=C - 0.1, upper=C + 0.3)),
    "l2 both": (L2Ball(1.3).translated(tensor(C)).scaled(0.5), Plain(r=1.3, m=C)),
    "simplex translated": (Simplex().translated(tensor(C)), Plain(lower=C, s=C, total=1.0)),
}
table = pytest.mark.parametrize(("h", "plain"), CASES.values(), ids=CASES.keys())
functions = pytest.mark.parametrize("h", [h for h, _ in CASES.values()], ids=CASES.keys())

# Small grids make ties, kinks and faces likely; floats make everything else likely.
entries = st.one_of(st.sampled_from([-2.0, -1.0, 0.0, 0.3, 0.5, 1.0]), st.floats(-10, 10, allow_subnormal=False))
vectors = st.lists(entries, min_size=D, max_size=D).map(tensor)
grid = st.lists(st.integers(-80, 80).map(lambda k: k / 8), min_size=D, max_size=D).map(tensor)
steps = st.floats(0.05, 20.0)
quickly = settings(max_examples=30, deadline=None)
