"""Ridge and robust logistic regression with a million samples: data, objective, solution and step sizes.

Both are min_w f(w) + sum_i max_{d_i} <A_i w, d_i> - g_i(d_i) with A_i of raw data, so that blocks can stay in a file.

- Ridge: P(w) = 1/N sum_j (x_j'w - b_j)^2 / 2 + lambda/2 |w|^2.
- Robust logistic: P(w) = 1/N sum_j max_{|p|_inf <= eps} log(1 + exp(-y_j (x_j + p)'w)) + lambda/2 |w|^2, where the
  maximum is log(1 + exp(-y_j x_j'w + eps |w|_1)). With w = u_+ - u_- and u >= 0, |w|_1 becomes the sum of u and |w|^2
  becomes |u|^2: the minimum is the same, since the objective grows if both u_+ and u_- do. Row j of the data is
  (-y_j x_j, 1), and A_i = M_i B, where the small matrix B maps u to (u_+ - u_-, eps sum u) / N.

Features are correlated: their covariance has eigenvalues that spread over a factor of CONDITION.
"""

from dataclasses import dataclass
from functools import cache
from math import exp, log, log10, sqrt

import torch
from scipy.linalg import solve_triangular
from scipy.optimize import nnls
from torch import Tensor
from torch.nn.functional import softplus

from sihg.core.draw import generator
from sihg.core.entropy import BinaryEntropy
from sihg.core.prox import Convex, NonNegative, Parameter, SquaredL2
from sihg.minimax import LinearMap, Problem

SEED, FEATURES, CONDITION, WEIGHT, EPS = 0, 50, 100.0, 0.01, 0.05
INSIDE = 0.99  # of SPDHG's bound L sqrt(sigma tau n) < 1
NEWTON_STEPS, MAX_GRADIENT = 30, 1e-10


@dataclass(frozen=True)
class Case:
    """A regression problem with n blocks of data.

    Args:
        name: "ridge" or "robust logistic".
        data: M_i, shape (n, rows, columns), float32.
        targets: b, shape (n, rows); zeros if there are none.
        small: B, if A_i = M_i B.
    """

    name: str
    data: Tensor
    targets: Tensor
    small: Tensor | None

    @property
    def samples(self) -> int:
        """N, the number of samples."""
        return self.targets.numel()

    @property
    def columns(self) -> int:
        """The number of unknowns: of w, or of u."""
        return (self.data if self.small is None else self.small).shape[-1]

    @property
    def convexity(self) -> tuple[float, float]:
        """The moduli of strong convexity of f and of g_i."""
        return WEIGHT, float(self.samples) if self.small is None else 4 / self.samples

    def objective(self, w: Tensor) -> float:
        """Return P(w): products in float32, sums in float64."""
        z = (self.data.flatten(0, 1) @ (w if self.small is None else self.small @ w)).double()
        penalty = WEIGHT / 2 * float(w.double().square().sum())
        if self.small is None:
            return float((z - self.targets.flatten()).square().mean()) / 2 + penalty
        return float(softplus(z * self.samples).mean()) + penalty

    def problem(self) -> Problem:
        """Return the saddle problem for our solvers; its blocks are views of `data`."""
        g: list[Convex]
        if self.small is None:
            g = [SquaredL2(self.samples, -b / self.samples) for b in self.targets]  # (N/2) d^2 + b d, up to a constant
            return Problem.bilinear(self.data, f=SquaredL2(WEIGHT), g=g)
        zeros = torch.zeros(self.columns), torch.zeros_like(self.targets)
        maps = [product(matrix, self.small) for matrix in self.data]
        return Problem.bilinear(maps, *zeros, f=NonNegativeSquared(WEIGHT), g=BinaryEntropy(1 / self.samples))

    def step_sizes(self) -> tuple[float, float, float]:
        """Return sigma, tau and theta with the best linear rate that SPDHG's theorem proves at its largest product."""
        n, (convex_f, convex_g) = len(self.data), self.convexity
        small = None if self.small is None else self.small.double()
        L = max(float(spectral_norm(matrix.double(), small)) for matrix in self.data)
        product = INSIDE**2 / (n * L**2)
        low, high = -60.0, 60.0  # of log tau: both rates are equal at the best
        for _ in range(100):
            tau = exp((low + high) / 2)
            sigma = product / tau
            rate_w = 2 * convex_f * sigma / (1 + 2 * convex_f * sigma)
            rate_delta = 2 * convex_g * tau / (1 + 2 * convex_g * tau) / n
            low, high = (log(tau), high) if rate_w > rate_delta else (low, log(tau))
        return sigma, tau, 1 - min(rate_w, rate_delta)

    def solution(self) -> Tensor:
        """Return the w (or u) of the smallest P, by the normal equations or by Newton's method, in float64."""
        return ridge_solution(self) if self.small is None else robust_solution(self)


@dataclass(frozen=True, eq=False)
class NonNegativeSquared(SquaredL2):
    """The function (weight / 2) |u|^2 on u >= 0, whose prox is that of the square, clamped."""

    def prox(self, z: Tensor, eta: float, batch: int = 0) -> Tensor:
        """Return max{z, 0} / (1 + eta weight)."""
        return super().prox(z, eta, batch).clamp_(min=0)

    def _terms(self, u: Tensor, batch: int, slack: Parameter) -> Tensor:
        return super()._terms(u, batch, slack) + NonNegative()._terms(u, batch, slack)

    def _residual(self, u: Tensor, v: Tensor, batch: int, slack: Parameter) -> Tensor:
        return NonNegative()._residual(u, v - self.weight * u, batch, slack)


def product(matrix: Tensor, small: Tensor) -> LinearMap:
    """Return the map M B."""
    back, small_back = matrix.t(), small.t()
    return LinearMap(lambda u: matrix.mv(small.mv(u)), lambda d: small_back.mv(back.mv(d)))


def spectral_norm(matrix: Tensor, small: Tensor | None) -> float:
    """Return the norm of M or of M B."""
    gram = matrix.t() @ matrix
    gram = gram if small is None else small.t() @ gram @ small
    return sqrt(float(torch.linalg.eigvalsh(gram)[-1]))


@cache
def make_case(name: str, blocks: int, rows: int) -> Case:
    """Draw the data of a problem; equal arguments give equal data in every process."""
    draw, N = generator(SEED, "large"), blocks * rows
    spectrum = torch.logspace(0, -log10(CONDITION), FEATURES)
    rotation = torch.linalg.qr(torch.randn(FEATURES, FEATURES, generator=draw)).Q
    mixing = rotation * (spectrum / spectrum.mean()).sqrt() @ rotation.t()
    truth = torch.randn(FEATURES, generator=draw) / FEATURES**0.5
    x = torch.randn(N, FEATURES, generator=draw) @ mixing
    if name == "ridge":
        b = x @ truth + torch.randn(N, generator=draw)
        return Case(name, x.view(blocks, rows, -1), b.view(blocks, rows), None)
    y = (torch.rand(N, generator=draw) < torch.sigmoid(4 * x @ truth)).float() * 2 - 1
    data = torch.cat([x.mul_(-y[:, None]), torch.ones(N, 1)], 1)
    identity = torch.eye(FEATURES)
    small = torch.cat([torch.cat([identity, -identity], 1), torch.full((1, 2 * FEATURES), EPS)]) / N
    return Case(name, data.view(blocks, rows, -1), torch.zeros(blocks, rows), small)


def ridge_solution(case: Case) -> Tensor:
    """Solve (X'X / N + lambda I) w = X'b / N."""
    gram = torch.zeros(FEATURES, FEATURES, dtype=torch.float64)
    right = torch.zeros(FEATURES, dtype=torch.float64)
    for matrix, b in zip(case.data, case.targets, strict=True):
        x = matrix.double()
        gram += x.t() @ x
        right += x.t() @ b.double()
    weighted = gram / case.samples + WEIGHT * torch.eye(FEATURES, dtype=torch.float64)
    w: Tensor = torch.linalg.solve(weighted, right / case.samples)
    return w


def robust_solution(case: Case) -> Tensor:
    """Minimise P(u) over u >= 0: each step of Newton's method solves its quadratic model with u >= 0 exactly."""
    assert case.small is not None
    small, N = case.small.double() * case.samples, case.samples
    u = torch.zeros(case.columns, dtype=torch.float64)
    for _ in range(NEWTON_STEPS):
        gradient, hessian = WEIGHT * u, WEIGHT * torch.eye(len(u), dtype=torch.float64)
        for matrix in case.data:
            rows = matrix.double()
            p = torch.sigmoid(rows @ (small @ u))
            gradient += small.t() @ (rows.t() @ p) / N
            hessian += small.t() @ (rows.t() @ (rows * (p * (1 - p))[:, None])) @ small / N
        if float((u - (u - gradient).clamp(min=0)).norm()) <= MAX_GRADIENT:
            return u
        root = torch.linalg.cholesky(hessian).numpy()  # the model is |root' v - root^-1 (hessian u - gradient)|^2 / 2
        u = torch.from_numpy(nnls(root.T, solve_triangular(root, (hessian @ u - gradient).numpy(), lower=True))[0])
    raise ArithmeticError(f"Newton's method did not converge in {NEWTON_STEPS} steps")
