"""Worst-case weights of samples or groups: distributionally robust regression, fair classification."""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from sihg.core.draw import generator
from sihg.core.prox import Box, Simplex, SquaredL2
from sihg.minimax._coupling import Gradients
from sihg.minimax.constants import Constants
from sihg.minimax.problem import Problem
from sihg.minimax.zoo._newton import solve_equation
from sihg.minimax.zoo._tensors import check_multiple, check_option
from sihg.minimax.zoo.registry import Solution, register


@register
def robust_regression(
    samples: int = 80, features: int = 5, n: int = 4, penalty: float = 0.2, weight: float = 0.05, seed: int = 0
) -> tuple[Problem, Solution]:
    """Distributionally robust regression: each of n sites has an adversary that reweights its m = samples/n samples.

    phi_i(w, p_i) = (1/n) {sum_j p_ij l(a_ij'w - b_ij) - (penalty/2m) |m p_i - 1|^2}, p_i in the simplex, with the
    smooth Huber loss l(r) = sqrt(1 + r^2) - 1, |l'| < 1, 0 < l'' <= 1, and the chi-squared divergence from equal
    weights; f = (weight/2) |w|^2. With n = 1 one adversary reweights all samples. A tenth of the targets are outliers.

    Hence L11 = max_j |a_ij|^2 summed over i, over n; L12 = |A| / n, of one block max_i |A_i| / n; L22 = penalty m / n;
    F is strongly monotone with mu = 2 min(weight, L22). The solution is Newton's for the smooth convex max over p.
    """
    _check_data(samples, features, n, penalty, weight)
    m = samples // n
    draw = generator(seed, "robust-regression")
    A = torch.randn(n, m, features, generator=draw, dtype=torch.float64)
    b = A @ torch.randn(features, generator=draw, dtype=torch.float64)
    b = b + 0.3 * torch.randn(n, m, generator=draw, dtype=torch.float64)
    b = b + 5 * (torch.rand(n, m, generator=draw, dtype=torch.float64) < 0.1)
    curvature = penalty * m

    def loss(w: Tensor, index: Tensor) -> Tensor:
        return torch.sqrt(1 + (A[index] @ w - b[index]) ** 2) - 1

    def loss_slope(w: Tensor, index: Tensor) -> Tensor:
        r = A[index] @ w - b[index]
        return r / torch.sqrt(1 + r**2)

    def phi(w: Tensor, p: Tensor, index: Tensor) -> Tensor:
        return ((p * loss(w, index)).sum(1) - curvature / 2 * ((p - 1 / m) ** 2).sum(1)) / n

    def grad_w(w: Tensor, p: Tensor, index: Tensor) -> Tensor:
        return torch.einsum("im,imf->f", p * loss_slope(w, index), A[index]) / n

    def grad_p(w: Tensor, p: Tensor, index: Tensor) -> Tensor:
        return (loss(w, index) - curvature * (p - 1 / m)) / n

    def closed_form(w: Tensor, centre: Tensor, tau: float, index: Tensor) -> Tensor:
        pull = tau / n
        return simplex.prox((centre + pull * (loss(w, index) + penalty)) / (1 + pull * curvature), 1.0, batch=1)

    def worst_weights(w: Tensor) -> Tensor:
        return simplex.prox(1 / m + loss(w, every) / curvature, 1.0, batch=1)

    simplex, every = Simplex(), torch.arange(n)
    w = solve_equation(
        lambda w: weight * w + grad_w(w, worst_weights(w), every), torch.zeros_like(A[0, 0]), "robust-regression"
    )
    L22 = curvature / n
    constants = Constants(
        L11=float((A**2).sum(2).amax(1).sum()) / n,
        L12=float(torch.linalg.matrix_norm(A.view(samples, features), 2)) / n,
        L12_block=float(torch.linalg.matrix_norm(A, 2).max()) / n,
        L22=L22,
        mu=2 * min(weight, L22),
    )
    problem = Problem(
        phi,
        torch.zeros_like(w),
        torch.full_like(b, 1 / m),
        SquaredL2(weight),
        simplex,
        constants,
        closed_form=closed_form,
        by_hand=Gradients(grad_w, grad_p),
    )
    return problem, Solution(w, worst_weights(w))


@register
def fair_classification(
    groups: int = 4, samples: int = 80, features: int = 3, penalty: float = 0.03, weight: float = 0.05, seed: int = 0
) -> tuple[Problem, Solution]:
    """Agnostic learning (Mohri et al. 2019): the worst mixture of K groups' logistic losses, one simplex block.

    phi(w, p) = sum_k p_k l_k(w) - (penalty/2K) |K p - 1|^2, p in the simplex, f = (weight/2) |w|^2, l_k the mean loss
    of group k. Hence L11 = max_k |A_k|^2 / 4m, where the m rows of A_k are the group's samples; L12 = sqrt(sum_k c_k^2)
    with c_k = mean_j |a_kj| >= |grad l_k|; L22 = penalty K; F is strongly monotone with mu = 2 min(weight, L22).
    """
    data = GroupLosses.draw(groups, samples, features, penalty, weight, seed)

    def phi(w: Tensor, p: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
        return p @ data.losses(w) - data.curvature / 2 * ((p - 1 / groups) ** 2).sum(1)

    def grad_w(w: Tensor, p: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
        return p[0] @ data.slopes(w)

    def grad_p(w: Tensor, p: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
        return data.losses(w)[None] - data.curvature * (p - 1 / groups)

    def closed_form(w: Tensor, centre: Tensor, tau: float, index: Tensor) -> Tensor:  # noqa: ARG001
        return Simplex().prox((centre + tau * (data.losses(w) + penalty)) / (1 + tau * data.curvature), 1.0, batch=1)

    w, p = data.solution("fair-classification")
    L11 = float(torch.linalg.matrix_norm(data.x, 2).max()) ** 2 / (4 * data.x.shape[1])
    L12, L22 = float(data.largest_slopes().norm()), data.curvature
    constants = Constants(L11=L11, L12=L12, L22=L22, mu=2 * min(weight, L22))
    problem = Problem(
        phi,
        torch.zeros_like(w),
        torch.full((1, groups), 1 / groups, dtype=w.dtype),
        SquaredL2(weight),
        Simplex(),
        constants,
        closed_form=closed_form,
        by_hand=Gradients(grad_w, grad_p),
    )
    return problem, Solution(w, p[None])


@register
def fair_groups(
    n: int = 6, samples: int = 90, features: int = 3, penalty: float = 0.03, weight: float = 0.05, seed: int = 0
) -> tuple[Problem, Solution]:
    """fair-classification with a bound t on the losses of n groups, whose multipliers p_k in [0, 1] are n blocks.

    min over (v, t) of t + (weight/2) |v|^2 subject to l_k(v) <= t, by its Lagrangian: phi_k((v, t), p_k) =
    p_k (l_k(v) - t) - (penalty n/2)(p_k - 1/n)^2 + {t + (weight/2) |v|^2} / n. Both forms have the same v and p.

    Convex-concave, so rho = 0. L11 = weight + sum_k |A_k|^2 / 4m; L12 = sqrt(sum_k (c_k^2 + 1)), of one block
    sqrt(max_k c_k^2 + 1); L22 = penalty n, with A_k and c_k as for fair-classification.
    """
    data = GroupLosses.draw(n, samples, features, penalty, weight, seed)

    def phi(w: Tensor, p: Tensor, index: Tensor) -> Tensor:
        v, t, p = w[:-1], w[-1], p[:, 0]
        base = (t + weight / 2 * (v @ v)) / n
        return p * (data.losses(v, index) - t) - data.curvature / 2 * (p - 1 / n) ** 2 + base

    def grad_w(w: Tensor, p: Tensor, index: Tensor) -> Tensor:
        v, p, share = w[:-1], p[:, 0], len(index) / n
        return torch.cat((p @ data.slopes(v, index) + share * weight * v, share - p.sum().view(1)))

    def grad_p(w: Tensor, p: Tensor, index: Tensor) -> Tensor:
        return (data.losses(w[:-1], index) - w[-1])[:, None] - data.curvature * (p - 1 / n)

    def closed_form(w: Tensor, centre: Tensor, tau: float, index: Tensor) -> Tensor:
        excess = (data.losses(w[:-1], index) - w[-1])[:, None]
        return ((centre + tau * (excess + penalty)) / (1 + tau * data.curvature)).clamp(0, 1)

    v, p = data.solution("fair-groups")
    worst = int(p.argmax())
    t = data.losses(v)[worst] - data.curvature * (p[worst] - 1 / n)
    slopes, norms = data.largest_slopes(), torch.linalg.matrix_norm(data.x, 2)
    constants = Constants(
        L11=weight + float((norms**2).sum()) / (4 * data.x.shape[1]),
        L12=float((slopes**2 + 1).sum()) ** 0.5,
        L12_block=float((slopes**2 + 1).max()) ** 0.5,
        L22=data.curvature,
        rho=0,
    )
    problem = Problem(
        phi,
        torch.zeros(features + 1, dtype=v.dtype),
        torch.full((n, 1), 1 / n, dtype=v.dtype),
        None,
        Box(0, 1),
        constants,
        closed_form=closed_form,
        by_hand=Gradients(grad_w, grad_p),
    )
    return problem, Solution(torch.cat((v, t.view(1))), p[:, None])


class GroupLosses:
    """The mean logistic losses of K groups whose best classifiers differ; rows of x are y_j a_j."""

    def __init__(self, x: Tensor, penalty: float, weight: float) -> None:
        self.x, self.weight = x, weight
        self.curvature = penalty * len(x)

    @staticmethod
    def draw(groups: int, samples: int, features: int, penalty: float, weight: float, seed: int) -> "GroupLosses":
        """Draw the samples; every group has its own direction near a common one."""
        _check_data(samples, features, groups, penalty, weight)
        draw = generator(seed, "fair-classification")
        a = torch.randn(groups, samples // groups, features, generator=draw, dtype=torch.float64)
        common = torch.randn(features, generator=draw, dtype=torch.float64)
        own = common + torch.randn(groups, features, 1, generator=draw, dtype=torch.float64).squeeze(2)
        noise = 0.5 * torch.randn(a.shape[:2], generator=draw, dtype=torch.float64)
        y = torch.sign((a @ own[:, :, None]).squeeze(2) + noise)
        return GroupLosses(y[:, :, None] * a, penalty, weight)

    def losses(self, w: Tensor, index: Tensor | slice = slice(None)) -> Tensor:
        """Return l_k(w) for each k in index."""
        losses: Tensor = softplus(-(self.x[index] @ w)).mean(1)
        return losses

    def slopes(self, w: Tensor, index: Tensor | slice = slice(None)) -> Tensor:
        """Return grad l_k(w) for each k in index, as rows."""
        x = self.x[index]
        slopes: Tensor = -(torch.sigmoid(-(x @ w))[:, :, None] * x).mean(1)
        return slopes

    def largest_slopes(self) -> Tensor:
        """Return mean_j |a_kj|, which bounds |grad l_k| everywhere."""
        norms: Tensor = torch.linalg.vector_norm(self.x, dim=2)
        return norms.mean(1)

    def solution(self, problem: str) -> tuple[Tensor, Tensor]:
        """Return w and p at the minimum of (weight/2) |w|^2 + max_p sum_k p_k l_k(w) - (penalty/2K) |K p - 1|^2."""

        def mixture(w: Tensor) -> Tensor:
            return Simplex().prox(1 / len(self.x) + self.losses(w) / self.curvature, 1.0)

        start = torch.zeros_like(self.x[0, 0])
        w = solve_equation(lambda w: self.weight * w + mixture(w) @ self.slopes(w), start, problem)
        return w, mixture(w)


def _check_data(samples: int, features: int, n: int, penalty: float, weight: float) -> None:
    check_option("features", features, whole=True, least=1)
    check_option("penalty", penalty, above=0)
    check_option("weight", weight, above=0)
    check_multiple(samples, n)
