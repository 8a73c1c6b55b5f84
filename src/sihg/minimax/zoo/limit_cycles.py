"""Games of two numbers in a box with limit cycles: the standard set of Zheng et al. (2023), and GlobalForsaken.

Zheng, Zhu, So, Blanchet & Li, "Universal Gradient Descent Ascent Method for Nonconvex-Nonconcave Minimax
Optimization", NeurIPS 2023, collect Forsaken, the bilinearly coupled game, the sixth-order polynomial and PolarGame.
Constants hold in the box.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from sihg.core.prox import Box
from sihg.minimax._coupling import Gradients
from sihg.minimax.constants import Constants
from sihg.minimax.problem import Problem
from sihg.minimax.zoo._tensors import check_option, tensor
from sihg.minimax.zoo.registry import Solution, register

Field = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # (w, delta) -> (grad_w, grad_delta), as columns


@register
def global_forsaken() -> tuple[Problem, Solution]:
    """GlobalForsaken (Pethick et al. 2022): w d + psi(w) - psi(d) in a box, with a limit cycle around the answer."""
    constants = Constants(L11=2.586, L12=1.0, L22=2.586, rho=0.2395)
    return _polynomial([1 / 3, -1 / 3, 2 / 21], 0.0, 4 / 3, (-1.0, 1.0), constants), _zero()


@register
def forsaken() -> tuple[Problem, Solution]:
    """Forsaken (Hsieh et al. 2021): w (d - 0.45) + psi(w) - psi(d) in a box, with a limit cycle.

    On the box |w|, |d| <= 3/2, L11 = L22 = 12.3125 and L12 = 1. They are not among the problem's constants: near the
    iterates the curvature is far smaller, and implicit steps that L22 would forbid converge.
    """
    problem = _polynomial([1 / 4, -1 / 2, 1 / 6], 0.45, 3 / 2, (0.0, 0.2), Constants())
    z = tensor([0.08, 0.4])
    for _ in range(20):  # Newton on the two equations of stationarity
        slope, curve = z / 2 - 2 * z**3 + z**5, 0.5 - 6 * z**2 + 5 * z**4
        residual = torch.stack([z[1] - 0.45 + slope[0], z[0] - slope[1]])
        one = torch.ones((), dtype=z.dtype)
        z = z - torch.linalg.solve(torch.stack([torch.stack([curve[0], one]), torch.stack([one, -curve[1]])]), residual)
    return problem, Solution(z[:1], z[1:, None])


@register
def bilinearly_coupled(coupling: float = 10.0) -> tuple[Problem, Solution]:
    """h(w) + coupling w d - h(d), h(z) = (z^2 - 1)(z^2 - 9), in |w|, |d| <= 4 (Grimmer et al. 2023): a limit cycle.

    h'(z) = 4 z^3 - 20 z, and |h''(z)| = |12 z^2 - 20| is largest at the sides, 172. At coupling = 10 the only
    stationary point is 0, where h'' = -20 drives descent ascent away; rho is the largest ratio on a grid, rounded up.
    10 is the coupling in the public code of Zheng et al.
    """

    check_option("coupling", coupling)

    def phi(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
        def h(z: Tensor) -> Tensor:
            return (z * z - 1) * (z * z - 9)

        return (h(w) + coupling * w * delta - h(delta)).squeeze(1)

    def gradients(w: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        return 4 * w**3 - 20 * w + coupling * delta, coupling * w - 4 * delta**3 + 20 * delta

    constants = Constants(L11=172, L12=abs(coupling), L22=172, rho=0.2415 if coupling == 10 else None)
    return _in_box(phi, gradients, 4.0, (2.0, -4.0), constants), _zero()


@register
def sixth_order() -> tuple[Problem, Solution]:
    """(4 w^2 - (d - 3 w + w^3/20)^2 - d^4/10) exp(-(w^2 + d^2)/100) in |w|, |d| <= 2 (Wang et al. 2020).

    The solution 0 is a local minimax point: phi_dd = -2 and phi_ww - phi_wd^2 / phi_dd = 8. It repels descent ascent
    with equal steps, and four more points of the box are stationary, all at d = +-2, so no finite rho exists. The
    constants are the largest second derivatives on a grid, rounded up.
    """

    def phi(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
        q = 4 * w**2 - (delta - 3 * w + w**3 / 20) ** 2 - delta**4 / 10
        return (q * torch.exp(-(w**2 + delta**2) / 100)).squeeze(1)

    def gradients(w: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        u, decay = delta - 3 * w + w**3 / 20, torch.exp(-(w**2 + delta**2) / 100)
        q = (4 * w**2 - u**2 - delta**4 / 10) / 50
        q_w, q_delta = 8 * w + 6 * u - 0.3 * u * w**2, -2 * u - 0.4 * delta**3
        return (q_w - w * q) * decay, (q_delta - delta * q) * decay

    constants = Constants(L11=10.0, L12=6.0, L22=6.6)
    return _in_box(phi, gradients, 2.0, (0.5, 0.5), constants), _zero()


@register
def polar_game(a: float = 16.0, side: float = 1.0) -> tuple[Problem, Solution]:
    """PolarGame (Pethick et al. 2022): a pair of fields, not one phi, with cycles of radius 3/4 and 1 around 0.

    F(w, d) = (w P(s) - d, d P(s) + w) with s = w^2 + d^2 and P(s) = a (s - 1)(s - 9/16). Pethick et al. take a = 1/3
    and side 1.1, Zheng et al. a = 16 and side 1. F is not the saddle gradient of any function. The coupling is zero
    everywhere and only its gradients are F, which is all that the methods use.

    <F, z> = s P and |F|^2 = s (P^2 + 1), and P is smallest between the cycles, where p = -min P = (7/32)^2 a. So
    rho = 2 p / (p^2 + 1) if p <= 1, and 1 otherwise. The derivatives are largest at the corners, s = 2 side^2.
    """

    check_option("a", a, above=0)
    check_option("side", side, least=1)  # both cycles lie in the box

    def field(w: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        s = w * w + delta * delta
        P = a * (s - 1) * (s - 9 / 16)
        return w * P - delta, -delta * P - w

    def phi(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
        fixed_w, fixed_delta = w.detach(), delta.detach()
        F_w, F_delta = field(fixed_w, fixed_delta)
        return ((w - fixed_w) * F_w + (delta - fixed_delta) * F_delta).squeeze(1)

    s, p = 2 * side**2, (7 / 32) ** 2 * a
    twist = s * a * (2 * s - 25 / 16)  # s P'(s)
    L = a * (s - 1) * (s - 9 / 16) + twist
    constants = Constants(L11=L, L12=twist + 1, L22=L, rho=2 * p / (p**2 + 1) if p <= 1 else 1.0)
    return _in_box(phi, field, side, (-side, -0.8 * side), constants), _zero()


def _zero() -> Solution:
    return Solution(tensor([0.0]), tensor([[0.0]]))


def _in_box(
    phi: Callable[..., Tensor], field: Field, side: float, start: tuple[float, float], constants: Constants
) -> Problem:
    """Build a game with gradients by hand and both numbers in [-side, side]."""
    by_hand = Gradients(
        lambda w, delta, index: field(w, delta.view(1))[0],  # noqa: ARG005
        lambda w, delta, index: field(w, delta.view(1))[1].view(1, 1),  # noqa: ARG005
    )
    box = Box(-side, side)
    return Problem(phi, tensor([start[0]]), tensor([[start[1]]]), box, box, constants, by_hand=by_hand)


def _polynomial(
    psi: list[float], shift: float, side: float, start: tuple[float, float], constants: Constants
) -> Problem:
    """Build w (d - shift) + psi(w) - psi(d) with psi(z) = psi[0] z^2 + psi[1] z^4 + psi[2] z^6."""
    a, b, c = psi

    def value(z: Tensor) -> Tensor:
        s = z * z
        return s * (a + s * (b + s * c))

    def slope(z: Tensor) -> Tensor:
        s = z * z
        return z * (2 * a + s * (4 * b + s * (6 * c)))

    def phi(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
        return (w * (delta - shift) + value(w) - value(delta)).squeeze(1)

    def gradients(w: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        return delta - shift + slope(w), w - slope(delta)

    return _in_box(phi, gradients, side, start, constants)
