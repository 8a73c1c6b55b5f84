"""The saddle operator F = (grad_w phi, -grad_delta phi) on pairs z = (w, delta), in the metric of the step sizes."""

from dataclasses import dataclass
from math import sqrt

from torch import Tensor

from sihg.minimax._oracle import Oracle


@dataclass(frozen=True)
class Vector:
    """A vector z = (w, delta), or a direction for both."""

    w: Tensor
    delta: Tensor

    def __add__(self, other: "Vector") -> "Vector":
        return Vector(self.w + other.w, self.delta + other.delta)

    def __sub__(self, other: "Vector") -> "Vector":
        return Vector(self.w - other.w, self.delta - other.delta)

    def __rmul__(self, a: float) -> "Vector":
        return Vector(a * self.w, a * self.delta)


@dataclass(frozen=True)
class Operator:
    """F and the resolvent of A = (df, dg) with Gamma = diag(sigma, tau); sigma = tau is the papers' scalar step.

    A solution satisfies 0 in T(z) = F(z) + A(z).
    """

    oracle: Oracle
    sigma: float
    tau: float

    def F(self, z: Vector) -> Vector:  # noqa: N802
        """Return F(z); counts n block gradients in w and in delta."""
        g_w, g_delta = self.oracle.gradients(z.w, z.delta)
        return Vector(g_w, -g_delta)

    def Gamma(self, v: Vector) -> Vector:  # noqa: N802
        """Return Gamma v."""
        return Vector(self.sigma * v.w, self.tau * v.delta)

    def resolvent(self, z: Vector) -> Vector:
        """Return (id + Gamma A)^{-1} z: the proximal steps of f and g."""
        return Vector(self.oracle.prox_f(z.w, self.sigma), self.oracle.prox_g(z.delta, self.tau))

    def dot(self, x: Vector, y: Vector) -> float:
        """Return <x, Gamma^{-1} y>."""
        return float(x.w @ y.w) / self.sigma + float(x.delta @ y.delta) / self.tau

    def norm(self, x: Vector) -> float:
        """Return the norm that belongs to `dot`."""
        return sqrt(self.dot(x, x))
