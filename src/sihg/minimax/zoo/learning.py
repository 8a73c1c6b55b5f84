"""Problems of robust learning on drawn data."""

import torch
from torch import Tensor

from sihg.core.draw import generator
from sihg.core.prox import LinfBall, SquaredL2
from sihg.errors import InputError
from sihg.minimax._coupling import Gradients
from sihg.minimax.problem import Problem
from sihg.minimax.zoo._tensors import check_multiple, check_option
from sihg.minimax.zoo.registry import Solution, register


@register
def robust_logistic(
    samples: int = 40, features: int = 4, n: int = 8, eps: float = 0.1, weight: float = 0.05, seed: int = 0
) -> tuple[Problem, Solution]:
    """Logistic regression against Linf perturbations, whose inner maximiser is known in closed form."""
    check_multiple(samples, n)
    draw = generator(seed, "robust-logistic")
    y = torch.sign(torch.randn(samples, generator=draw, dtype=torch.float64))
    x = torch.randn(samples, features, generator=draw, dtype=torch.float64) + 0.5 * y[:, None]
    x_blocks, y_blocks = x.view(n, -1, features), y.view(n, -1)

    def phi(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:
        margins = y_blocks[index] * ((x_blocks[index] + delta) @ w)
        return -torch.nn.functional.logsigmoid(margins).sum(1) / samples

    def slope(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:
        """Return the derivative of phi in x'w of each sample."""
        y = y_blocks[index]
        return -y * torch.sigmoid(-y * ((x_blocks[index] + delta) @ w)) / samples

    def grad_w(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:
        return torch.einsum("im,imf->f", slope(w, delta, index), x_blocks[index] + delta)

    def grad_delta(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:
        return slope(w, delta, index)[..., None] * w

    by_hand = Gradients(grad_w, grad_delta)
    w = _robust_logistic_weights(x, y, eps, weight)
    delta = (-eps * y[:, None] * torch.sign(w)).view_as(x_blocks)
    starts = torch.zeros_like(w) + 0.1, torch.zeros_like(x_blocks)
    problem = Problem(phi, *starts, SquaredL2(weight), LinfBall(eps), by_hand=by_hand)
    return problem, Solution(w, delta)


BEST_NETWORK_VALUE = 0.4720589136718801  # of robust_network's default options


@register
def robust_network(
    samples: int = 16, hidden: int = 4, n: int = 8, eps: float = 0.1, weight: float = 0.02, seed: int = 0
) -> tuple[Problem, float | None]:
    """Adversarial training of a small tanh network on two classes in the plane, n blocks of samples in Linf balls.

    phi_i(w, delta_i) = sum_j log(1 + exp(-y_j net(x_j + delta_j))) / samples over the samples j of block i, where
    net(x) = a'tanh(U x + b) + c and w = (U, b, a, c); f = (weight/2) |w|^2. No solution is known in closed form, and
    there are several stationary points. The best known value of the default options is the lowest that descent ascent
    with sigma = tau = 1 reached in 3,000 iterations from this start and the eleven starts w = (1 + s mod 3) times
    torch.randn of seed s = 1 ... 11: that of s = 10. From this start it reaches 0.47239114.
    """
    check_option("hidden", hidden, whole=True, least=1)
    check_option("eps", eps, above=0)
    check_option("weight", weight, above=0)
    check_multiple(samples, n)
    draw, m = generator(seed, "robust-network"), samples // n
    x = torch.randn(n, m, 2, generator=draw, dtype=torch.float64)
    y = torch.sign(x[..., 0] * x[..., 1])  # no linear classifier separates them

    def parts(w: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        U, b, a, c = w.split((2 * hidden, hidden, hidden, 1))
        return U.view(hidden, 2), b, a, c

    def phi(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:
        U, b, a, c = parts(w)
        margins = y[index] * (torch.tanh((x[index] + delta) @ U.T + b) @ a + c)
        return torch.nn.functional.softplus(-margins).sum(1) / samples

    def backward(w: Tensor, delta: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the hidden layer and the slopes of phi in the network's output and in the arguments of tanh."""
        U, b, a, c = parts(w)
        h = torch.tanh((x[index] + delta) @ U.T + b)
        slope = -y[index] * torch.sigmoid(-y[index] * (h @ a + c)) / samples
        return h, slope, slope[..., None] * a * (1 - h * h)

    def grad_w(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:
        h, slope, inner = backward(w, delta, index)
        by_U = torch.einsum("imh,imf->hf", inner, x[index] + delta)
        by_a = torch.einsum("im,imh->h", slope, h)
        return torch.cat((by_U.reshape(-1), inner.sum((0, 1)), by_a, slope.sum().view(1)))

    def grad_delta(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:
        return backward(w, delta, index)[2] @ parts(w)[0]

    w0 = torch.randn(4 * hidden + 1, generator=draw, dtype=x.dtype)
    by_hand = Gradients(grad_w, grad_delta)
    problem = Problem(phi, w0, torch.zeros_like(x), SquaredL2(weight), LinfBall(eps), by_hand=by_hand)
    default = (samples, hidden, n, eps, weight, seed) == (16, 4, 8, 0.1, 0.02, 0)
    return problem, BEST_NETWORK_VALUE if default else None


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
