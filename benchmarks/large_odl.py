"""ODL's operators for the problems of `large_problems.py`: its own for ridge, and by hand for both."""

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.large_problems import WEIGHT, Case
from sihg.core.entropy import newton_steps

odl: Any = import_module("odl")  # untyped
odl_prox: Any = import_module("odl.solvers.nonsmooth.proximal_operators")

Array = NDArray[np.float32]
Prox = Callable[[float], Any]
Setup = tuple[Sequence[Any], Prox, Sequence[Prox]]


def own_operators(case: Case) -> Setup:
    """Return ODL's own operators for ridge: A_i, and factories of the proximal operators of f and of each g_i."""
    N = case.samples
    operators = [odl.MatrixOperator(matrix.numpy()) for matrix in case.data]
    prox_f = odl_prox.proximal_l2_squared(operators[0].domain, WEIGHT / 2)
    prox_g = []
    for operator, b in zip(operators, case.targets, strict=True):
        centre = operator.range.element(b.numpy())
        # the conjugate of |z - b|^2 / (2 N)
        prox_g.append(odl_prox.proximal_convex_conj_l2_squared(operator.range, 1 / (2 * N), centre))
    return operators, prox_f, prox_g


def operators_by_hand(case: Case) -> Setup:
    """Return the same operators by hand, for both problems."""
    domain, block = odl.rn(case.columns, dtype="float32"), odl.rn(case.targets.shape[1], dtype="float32")
    first = [] if case.small is None else [case.small.numpy()]
    operators = [Product(domain, block, [*first, matrix.numpy()]) for matrix in case.data]

    def prox_f(sigma: float) -> Any:
        return InPlace(domain, partial(shrink, factor=np.float32(1 / (1 + sigma * WEIGHT)), positive=bool(first)))

    if first:
        return operators, prox_f, [partial(entropy_prox, block, 1 / case.samples)] * len(operators)
    return operators, prox_f, [partial(squared_prox, block, b.numpy(), case.samples) for b in case.targets]


class Product(odl.Operator):  # type: ignore[misc]
    """The product of one or two matrices, in the order in which they act; the adjoint is built only once."""

    def __init__(self, domain: Any, block: Any, factors: Sequence[Array], adjoint: "Product | None" = None) -> None:
        super().__init__(domain, block, linear=True)
        self.factors = factors
        self.other = adjoint or Product(block, domain, [factor.T for factor in reversed(factors)], self)

    def _call(self, x: Any, out: Any) -> None:
        first, *second = self.factors
        if second:
            np.dot(second[0], np.dot(first, x.data), out=out.data)
        else:
            np.dot(first, x.data, out=out.data)

    @property
    def adjoint(self) -> "Product":
        """Return the adjoint, which is built only once."""
        return self.other


class InPlace(odl.Operator):  # type: ignore[misc]
    """A proximal operator by a function of (z, out) on arrays."""

    def __init__(self, space: Any, function: Callable[[Array, Array], None]) -> None:
        super().__init__(space, space)
        self.function = function

    def _call(self, x: Any, out: Any) -> None:
        self.function(x.data, out.data)


def shrink(z: Array, out: Array, factor: np.float32, positive: bool) -> None:
    """The prox of (lambda/2) |w|^2, on w >= 0 if `positive`."""
    np.multiply(z, factor, out=out)
    if positive:
        np.maximum(out, 0, out=out)


def squared_prox(space: Any, b: Array, N: int, tau: float) -> InPlace:
    """The prox of (N/2) d^2 + b d: (z - tau b) / (1 + tau N)."""
    shift, factor = np.float32(tau) * b, np.float32(1 / (1 + tau * N))

    def prox(z: Array, out: Array) -> None:
        np.subtract(z, shift, out=out)
        out *= factor

    return InPlace(space, prox)


def entropy_prox(space: Any, weight: float, tau: float) -> InPlace:
    """The prox of `BinaryEntropy(weight)`, by the same steps of Newton's method."""
    c = tau * weight
    steps, first, half, c32 = newton_steps(c, torch.float32), np.float32(1 / (c + 0.25)), np.float32(0.5), np.float32(c)
    one = np.float32(1)

    def sigmoid(t: Array, out: Array) -> None:
        np.negative(t, out=out)
        np.exp(out, out=out)
        out += one
        np.reciprocal(out, out=out)

    def prox(z: Array, out: Array) -> None:
        t = (z - half) * first
        u, slope, top = np.empty_like(t), np.empty_like(t), np.empty_like(t)
        for _ in range(steps):
            sigmoid(t, u)
            np.multiply(u, u, out=slope)
            np.subtract(u, slope, out=slope)
            t *= slope
            np.subtract(z, u, out=top)
            t += top
            slope += c32
            t /= slope
        sigmoid(t, out)

    return InPlace(space, prox)
