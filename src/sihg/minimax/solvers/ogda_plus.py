"""OGDA+ (Boehm, "Solving nonconvex-nonconcave min-max problems exhibiting weak Minty solutions", TMLR 2023)."""

from dataclasses import dataclass

from torch import Tensor

from sihg.minimax._oracle import Oracle
from sihg.minimax.solvers.base import State
from sihg.minimax.solvers.halfspace import WeakMVIMethod
from sihg.minimax.solvers.ranges import check_inside
from sihg.minimax.solvers.saddle_operator import Operator, Vector

RATIO = 5**0.5 - 2  # maximises the rate ratio a^2 of rho = 0 under a L = (1 - ratio) / (1 + ratio)
GOLDEN = (1 - RATIO) / (1 + RATIO)  # = 0.618


@dataclass(frozen=True)
class OGDAPlusState(State):
    """The iterate and the previous value of F."""

    F_w: Tensor | None = None
    F_delta: Tensor | None = None
    sigma: float | None = None  # the step that led here


@dataclass(frozen=True)
class OGDAPlus(WeakMVIMethod[OGDAPlusState]):
    """Optimistic descent ascent with a long look-ahead and a shorter step, one gradient per iteration.

        z^{k+1} = prox^{a ratio}[z^k - a {(1 + ratio) F(z^k) - F(z^{k-1})}],  a = (sigma, tau)

    It converges for a L <= (1 - ratio) / (1 + ratio) and rho < a without f and g: at ratio near 0 for rho < 1/L. With f
    and g the fixed points are the stationary points, because the steps along F add up to a ratio; the theorem does not
    cover them. Give a smaller ratio together with a larger sigma and tau for a large rho.
    """

    state = OGDAPlusState  # its first step takes z^{-1} = z^0
    bound = 0.9 * GOLDEN
    default_step = (0.999 * GOLDEN, "step below 0.618/L")

    ratio: float = RATIO

    def __post_init__(self) -> None:
        check_inside(self, ratio=(0, 1))

    @property
    def largest_step(self) -> float:
        """The largest step that the theorem covers, times 1/L."""
        return float((1 - self.ratio) / (1 + self.ratio))  # it may be of numpy

    def step(self, oracle: Oracle, s: OGDAPlusState, i: int) -> OGDAPlusState:  # noqa: ARG002
        """Do one iteration."""
        a, z = Operator(oracle, self.sigma, self.tau), Vector(s.w, s.delta)
        F = a.F(z)
        before = F if s.F_w is None or s.F_delta is None else Vector(s.F_w, s.F_delta)
        stretch = 1.0 if s.sigma is None else s.sigma / self.sigma  # of the look-ahead, with steps that vary
        ahead = z - a.Gamma(self.ratio * F + stretch * (F - before))
        z = Operator(oracle, self.ratio * self.sigma, self.ratio * self.tau).resolvent(ahead)
        return OGDAPlusState(z.w, z.delta, F_w=F.w, F_delta=F.delta, sigma=self.sigma)
