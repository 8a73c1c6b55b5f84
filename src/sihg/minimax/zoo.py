"""Benchmark problems with known answers: `zoo.names()`, `zoo.get(name, **options)`."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from sihg.core.draw import generator
from sihg.core.prox import Box, Convex, LinfBall, Simplex, SquaredL2
from sihg.errors import InputError, UnknownNameError
from sihg.minimax._coupling import Gradients
from sihg.minimax._images import difference
from sihg.minimax._images import phantom as phantom
from sihg.minimax._layout import Blocks, Weights
from sihg.minimax.constants import Constants
from sihg.minimax.problem import Problem


class Solution(NamedTuple):
    """A known stationary point."""

    w: Weights
    delta: Blocks


@dataclass(frozen=True)
class Benchmark:
    """A problem with its name, its description and, if known, its solution."""

    name: str
    about: str
    problem: Problem
    solution: Solution | None

    @property
    def constants(self) -> Constants:
        """The known constants among L11, L12, L22, rho and mu."""
        return self.problem.constants


Builder = Callable[..., tuple[Problem, Solution | None]]
_BUILDERS: dict[str, Builder] = {}


def names() -> list[str]:
    """Return the names of all problems."""
    return list(_BUILDERS)


def about(name: str) -> str:
    """Return one line about a problem."""
    return (_builder(name).__doc__ or "").split("\n")[0]


def options(name: str) -> dict[str, object]:
    """Return the options of a problem and their defaults."""
    return {key: p.default for key, p in inspect.signature(_builder(name)).parameters.items()}


def get(name: str, **chosen: object) -> Benchmark:
    """Build a problem of the zoo, in float64; equal options give equal problems.

    Args:
        name: One of `names()`.
        **chosen: Options of the problem; `options(name)` lists them.
    Returns:
        The problem and its solution.
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
    problem, solution = _builder(name)(**chosen)
    return Benchmark(name, about(name), problem, solution)


def _builder(name: str) -> Builder:
    if name not in _BUILDERS:
        raise UnknownNameError("problem", name, names())
    return _BUILDERS[name]


def _problem(build: Builder) -> Builder:
    _BUILDERS[build.__name__.replace("_", "-")] = build
    return build


@_problem
def matrix_game(payoff: Tensor | None = None) -> tuple[Problem, Solution | None]:
    """Matrix game on two simplices; rock-paper-scissors unless a payoff matrix is given."""
    rps = payoff is None
    A = _tensor([[0, -1, 1], [1, 0, -1], [-1, 1, 0]]) if payoff is None else payoff.double()
    rows, columns = A.shape
    w0, delta0 = torch.zeros(columns, dtype=A.dtype), torch.zeros(1, rows, dtype=A.dtype)
    w0[0] = delta0[0, 0] = 1
    L12 = float(torch.linalg.matrix_norm(A, 2))
    problem = Problem.bilinear(A[None], w0, delta0, Simplex(), Simplex(), Constants(L11=0, L12=L12, L22=0, rho=0))
    third = torch.full((3,), 1 / 3, dtype=A.dtype)
    return problem, Solution(third, third[None]) if rps else None


@_problem
def tv_denoising(
    size: int = 0, weight: float = 0.3, noise: float = 0.1, seed: int = 0, image: Tensor | None = None
) -> tuple[Problem, Solution | None]:
    """Total-variation denoising (ROF) in two blocks, one per direction; by default two pixels with a known solution."""
    solution = None
    if image is None:
        image = phantom(size, noise=noise, seed=seed) if size else _tensor([[0.0, 1.0]])
        if not size:
            shift = min(weight, 0.5)  # each pixel moves towards the other, at most to the middle
            slope = _tensor([[shift, 0.0]])
            solution = Solution(image + _tensor([[shift, -shift]]), torch.stack([slope, torch.zeros_like(slope)]))
    image = image.double()
    zeros = torch.zeros(2, *image.shape, dtype=image.dtype)
    problem = Problem.bilinear(
        [difference(1), difference(0)],
        torch.zeros_like(image),
        zeros,
        SquaredL2(1.0, image),
        LinfBall(weight),
        Constants(L11=0, L12=sqrt(8), L12_block=2.0, L22=0, rho=0),
    )
    return problem, solution


@_problem
def ridge(
    samples: int = 200, features: int = 10, n: int = 4, weight: float = 0.1, seed: int = 0
) -> tuple[Problem, Solution]:
    """Ridge regression as a saddle problem, samples split into n blocks; strongly monotone."""
    _check_multiple(samples, n)
    draw = generator(seed, "ridge")
    A = torch.randn(samples, features, generator=draw, dtype=torch.float64)
    b = A @ torch.randn(features, generator=draw, dtype=torch.float64)
    b = b + 0.5 * torch.randn(samples, generator=draw, dtype=torch.float64)
    gram = A.T @ A / samples
    w = torch.linalg.solve(gram + weight * torch.eye(features, dtype=A.dtype), A.T @ b / samples)
    blocks, targets = A.view(n, -1, features), b.view(n, -1)
    block_norms = torch.linalg.eigvalsh(blocks.transpose(1, 2) @ blocks)[:, -1].sqrt()
    constants = Constants(
        L11=0,
        L12=float(torch.linalg.eigvalsh(gram)[-1] * samples) ** 0.5 / samples,
        L12_block=float(block_norms.max()) / samples,
        L22=0,
        mu=2 * min(weight, 1 / samples),
    )
    # (1/N) {d^2/2 + b d}, the conjugate of (1/N) (a'w - b)^2 / 2, up to a constant
    g = [SquaredL2(1 / samples, -target) for target in targets]
    problem = Problem.bilinear(blocks / samples, f=SquaredL2(weight), g=g, constants=constants)
    return problem, Solution(w, blocks @ w - targets)


@_problem
def quadratic(
    n: int = 4, dimension: int = 3, least: float = 0.2, largest: float = 1.0, coupling: float = 1.0, seed: int = 0
) -> tuple[Problem, Solution]:
    """Strongly convex-strongly concave quadratic with n blocks; strongly monotone."""
    draw, m = generator(seed, "quadratic"), n * dimension

    def curvature(size: int) -> Tensor:
        Q = _orthogonal(size, draw)
        return Q @ torch.diag(torch.linspace(least, largest, size, dtype=Q.dtype)) @ Q.T

    P, Q = curvature(m), torch.stack([curvature(dimension) for _ in range(n)])
    A = coupling * _orthogonal(m, draw).view(n, dimension, m)
    identity = torch.eye(dimension, dtype=P.dtype)
    w_star = torch.randn(m, generator=draw, dtype=P.dtype)
    delta_star = torch.randn(n, dimension, generator=draw, dtype=P.dtype)

    def phi(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:
        u, d = w - w_star, delta - delta_star[index]
        return u @ (P @ u) / (2 * n) + ((A[index] @ u - _each(Q[index], d) / 2) * d).sum(1)

    def grad_w(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:
        d = (delta - delta_star[index]).reshape(-1)
        return len(index) / n * (P @ (w - w_star)) + d @ A[index].view(-1, m)

    def grad_delta(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:
        return A[index] @ (w - w_star) - _each(Q[index], delta - delta_star[index])

    def closed_form(w: Tensor, centre: Tensor, tau: float, index: Tensor) -> Tensor:
        right = centre - delta_star[index] + tau * (A[index] @ (w - w_star))
        step: Tensor = torch.linalg.solve(identity + tau * Q[index], right)
        return delta_star[index] + step

    constants = Constants(L11=largest, L12=coupling, L22=largest, mu=2 * least)
    zeros = torch.zeros(m, dtype=P.dtype), torch.zeros(n, dimension, dtype=P.dtype)
    by_hand = Gradients(grad_w, grad_delta)
    problem = Problem(phi, *zeros, constants=constants, closed_form=closed_form, by_hand=by_hand)
    return problem, Solution(w_star, delta_star)


@_problem
def weak_mvi(a: float = 1.0, b: float = -0.02) -> tuple[Problem, Solution]:
    """a w d + (b/2)(w^2 - d^2) with b < 0: neither convex nor concave, weak MVI with rho = 2|b|/(a^2 + b^2)."""

    def phi(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
        return (a * w * delta + b / 2 * (w**2 - delta**2)).squeeze(1)

    def closed_form(w: Tensor, centre: Tensor, tau: float, index: Tensor) -> Tensor:  # noqa: ARG001
        return (centre + tau * a * w) / (1 + tau * b)

    constants = Constants(L11=abs(b), L12=a, L22=abs(b), rho=2 * abs(b) / (a**2 + b**2))
    problem = Problem(phi, _tensor([1.0]), _tensor([[0.5]]), constants=constants, closed_form=closed_form)
    return problem, Solution(_tensor([0.0]), _tensor([[0.0]]))


@_problem
def weak_mvi_blocks(
    n: int = 4, dimension: int = 2, a: float = 1.0, b: float = -0.005, seed: int = 0
) -> tuple[Problem, Solution]:
    """The n-block version of weak-mvi, with [A_1 ... A_n] square orthogonal."""
    return _weak_family(n, dimension, a, 0.0, b, 0.0, seed)


@_problem
def weak_mvi_nonlinear(
    n: int = 4, dimension: int = 2, e: float | None = None, b: float | None = None, radius: float = 2.5, seed: int = 0
) -> tuple[Problem, Solution]:
    """sum_i h(<w, A_i d_i>) + (b/2)(|w|^2 - |d|^2), h(t) = t + e sin t: the nonconvex-nonconcave headline test."""
    e = (0.05 if n <= 4 else 0.02) if e is None else e
    b = (-0.008 if n <= 4 else -0.005) if b is None else b
    return _weak_family(n, dimension, 1.0, e, b, radius, seed)


def _weak_family(
    n: int, dimension: int, a: float, e: float, b: float, radius: float, seed: int
) -> tuple[Problem, Solution]:
    """Build a problem whose constants hold for |w|, |delta| <= radius (everywhere if e = 0)."""
    draw, m = generator(seed, "weak-mvi"), n * dimension
    A = a * _orthogonal(m, draw).view(n, dimension, m)

    def phi(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:
        t = ((A[index] @ w) * delta).sum(1)
        return t + e * torch.sin(t) + b / 2 * (w @ w / n - (delta * delta).sum(1))

    def slope(t: Tensor) -> Tensor:
        return (1 + e * torch.cos(t))[:, None]

    def grad_w(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:
        rows = A[index]
        scaled = slope(((rows @ w) * delta).sum(1)) * delta
        return scaled.reshape(-1) @ rows.view(-1, m) + b * len(index) / n * w

    def grad_delta(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:
        Aw = A[index] @ w
        return slope((Aw * delta).sum(1)) * Aw - b * delta

    curvature = e * radius**2 + abs(b)
    least = (1 - e) * a
    constants = Constants(
        L11=curvature, L12=a * (1 + e) + e * radius**2, L22=curvature, rho=2 * abs(b) / (least**2 + b**2)
    )
    w0 = torch.randn(m, generator=draw, dtype=A.dtype)
    zeros = torch.zeros(n, dimension, dtype=A.dtype)
    problem = Problem(phi, w0 / w0.norm(), zeros, constants=constants, by_hand=Gradients(grad_w, grad_delta))
    return problem, Solution(torch.zeros_like(w0), zeros)


@_problem
def dirac_gan() -> tuple[Problem, Solution]:
    """Dirac-GAN: -log(1 + exp(-w d)), a generator and a discriminator of one number each."""

    def phi(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
        return torch.nn.functional.logsigmoid(w * delta).squeeze(1)

    return Problem(phi, _tensor([1.0]), _tensor([[1.0]])), Solution(_tensor([0.0]), _tensor([[0.0]]))


@_problem
def ratio_game(s: float = 0.5, epsilon: float = 0.495) -> tuple[Problem, Solution]:
    """Ratio game x'Ry / x'Sy on two simplices (as w and d in [0, 1]), where no MVI solution exists."""

    def phi(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
        top = w * (epsilon * (1 - delta) - delta) - (1 - w) * epsilon * delta
        return (top / (w * s + (1 - w))).squeeze(1)

    problem = Problem(phi, _tensor([0.9]), _tensor([[0.5]]), Box(0, 1), Box(0, 1), _ratio_constants(s, epsilon))
    return problem, Solution(_tensor([0.0]), _tensor([[0.0]]))


@_problem
def global_forsaken() -> tuple[Problem, Solution]:
    """GlobalForsaken (Pethick et al. 2022): w d + psi(w) - psi(d) in a box, with a limit cycle around the answer."""
    problem = _polynomial(lambda z: 2 * z**6 / 21 - z**4 / 3 + z**2 / 3, 0.0, 4 / 3, (-1.0, 1.0), rho=0.2395, L=2.586)
    return problem, Solution(_tensor([0.0]), _tensor([[0.0]]))


@_problem
def forsaken() -> tuple[Problem, Solution]:
    """Forsaken (Hsieh et al. 2021): w (d - 0.45) + psi(w) - psi(d) in a box, with a limit cycle."""
    problem = _polynomial(lambda z: z**2 / 4 - z**4 / 2 + z**6 / 6, 0.45, 3 / 2, (0.0, 0.2))
    z = _tensor([0.08, 0.4])
    for _ in range(20):  # Newton on the two equations of stationarity
        slope, curve = z / 2 - 2 * z**3 + z**5, 0.5 - 6 * z**2 + 5 * z**4
        residual = torch.stack([z[1] - 0.45 + slope[0], z[0] - slope[1]])
        one = torch.ones((), dtype=z.dtype)
        z = z - torch.linalg.solve(torch.stack([torch.stack([curve[0], one]), torch.stack([one, -curve[1]])]), residual)
    return problem, Solution(z[:1], z[1:, None])


@_problem
def robust_logistic(
    samples: int = 40, features: int = 4, n: int = 8, eps: float = 0.1, weight: float = 0.05, seed: int = 0
) -> tuple[Problem, Solution]:
    """Logistic regression against Linf perturbations, whose inner maximiser is known in closed form."""
    _check_multiple(samples, n)
    draw = generator(seed, "robust-logistic")
    y = torch.sign(torch.randn(samples, generator=draw, dtype=torch.float64))
    x = torch.randn(samples, features, generator=draw, dtype=torch.float64) + 0.5 * y[:, None]
    x_blocks, y_blocks = x.view(n, -1, features), y.view(n, -1)

    def phi(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:
        margins = y_blocks[index] * ((x_blocks[index] + delta) @ w)
        return -torch.nn.functional.logsigmoid(margins).sum(1) / samples

    w = _robust_logistic_weights(x, y, eps, weight)
    delta = (-eps * y[:, None] * torch.sign(w)).view_as(x_blocks)
    problem = Problem(phi, torch.zeros_like(w) + 0.1, torch.zeros_like(x_blocks), SquaredL2(weight), LinfBall(eps))
    return problem, Solution(w, delta)


def _polynomial(
    psi: Callable[[Tensor], Tensor],
    shift: float,
    side: float,
    start: tuple[float, float],
    *,
    rho: float | None = None,
    L: float | None = None,
) -> Problem:
    """Build w (d - shift) + psi(w) - psi(d) with both in [-side, side]."""

    def phi(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
        return (w * (delta - shift) + psi(w) - psi(delta)).squeeze(1)

    box: Convex = Box(-side, side)
    constants = Constants(L11=L, L12=1.0, L22=L, rho=rho) if L else Constants()
    return Problem(phi, _tensor([start[0]]), _tensor([[start[1]]]), box, box, constants)


def _ratio_constants(s: float, epsilon: float) -> Constants:
    """phi = (w (epsilon - d) - epsilon d) / D with D = 1 - (1 - s) w >= s, linear in d; rho on a grid."""
    w, d = torch.meshgrid(*2 * (torch.linspace(0, 1, 401, dtype=torch.float64),), indexing="ij")
    D, slope = 1 - (1 - s) * w, 1 + epsilon * (1 - s)
    F_w, F_delta = (epsilon - slope * d) / D**2, (epsilon + w) / D
    rho = float((-2 * (F_w * w + F_delta * d) / (F_w**2 + F_delta**2)).max())
    L11 = 2 * (1 - s) * max(epsilon, slope - epsilon) / s**3
    return Constants(L11=L11, L12=slope / s**2, L22=0, rho=max(rho, 0.0))


def _robust_logistic_weights(x: Tensor, y: Tensor, eps: float, weight: float) -> Tensor:
    """argmin_w mean log(1 + exp(-y x'w + eps |w|_1)) + weight/2 |w|^2, by Newton within the orthant of its signs."""

    def newton(w: Tensor, signs: Tensor) -> Tensor:
        for _ in range(50):
            z = -y[:, None] * x + eps * signs
            p = torch.sigmoid(z @ w)
            gradient = z.T @ p / len(x) + weight * w
            hessian = z.T @ (z * (p * (1 - p))[:, None]) / len(x) + weight * torch.eye(len(w), dtype=w.dtype)
            w = w - torch.linalg.solve(hessian, gradient)
        return w

    w = newton(torch.zeros(x.shape[1], dtype=x.dtype), torch.zeros(x.shape[1], dtype=x.dtype))
    for _ in range(10):
        w, before = newton(w, torch.sign(w)), torch.sign(w)
        if torch.equal(torch.sign(w), before):
            return w
    raise InputError("reference-solution-zero", eps=eps)


def _check_multiple(samples: int, n: int) -> None:
    if samples % n:
        raise InputError("samples-not-multiple", samples=samples, n=n)


def _each(matrices: Tensor, vectors: Tensor) -> Tensor:
    """Return matrix i times vector i as row i."""
    return (matrices @ vectors[:, :, None]).squeeze(2)


def _orthogonal(size: int, draw: torch.Generator) -> Tensor:
    Q: Tensor = torch.linalg.qr(torch.randn(size, size, generator=draw, dtype=torch.float64))[0]
    return Q.contiguous()


def _tensor(values: Sequence[object]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
