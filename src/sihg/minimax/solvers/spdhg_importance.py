"""SPDHG with importance sampling of the blocks (Chambolle, Ehrhardt, Richtarik & Schoenlieb, SIAM J. Optim. 2018)."""

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from sihg.minimax._memory import RememberingOracle
from sihg.minimax._oracle import Oracle
from sihg.minimax.constants import Constants
from sihg.minimax.problem import Problem
from sihg.minimax.solvers.base import Method, State, change, quotient
from sihg.minimax.solvers.block_norms import block_norms
from sihg.minimax.step_sizes import Condition, StepSizes


@dataclass(frozen=True)
class SPDHGImportanceState(State):
    """The iterate with z = A^T delta, its extrapolation, and the norms ||A_i||."""

    z: Tensor | None = None
    z_bar: Tensor | None = None
    norms: Tensor | None = None
    sigma: float | None = None  # the step that led here


@dataclass(frozen=True)
class SPDHGImportance(Method[SPDHGImportanceState]):
    """Stochastic PDHG that draws block i with probability p_i in proportion to ||A_i||, for bilinear phi only.

        w^{k+1} = prox_f^sigma[w^k - sigma z_bar^k]
        delta_i^{k+1} = prox_{g_i}^{tau_i}[delta_i^k + tau_i A_i w^{k+1}],  i = i_k,  tau_i = tau m / ||A_i||
        z^{k+1} = z^k + dz,  z_bar^{k+1} = z^{k+1} + (theta / p_i) dz,  dz = A_i^T (delta_i^{k+1} - delta_i^k)

    m is the mean of the norms. It converges for theta = 1 and m sqrt(sigma tau n) < 1, where uniform sampling needs the
    largest norm instead of the mean. Norms come from power iterations, once per problem, and are not counted. Norms
    below m/100 count as m/100, so that every block is drawn.
    """

    state = SPDHGImportanceState
    bilinear_only = True
    needs_constants = False
    bound = 0.95

    theta: float = 1.0

    def step(self, oracle: Oracle, s: SPDHGImportanceState, i: int) -> SPDHGImportanceState:
        """Do one iteration."""
        norms = block_norms(oracle.problem) if s.norms is None else s.norms
        p = float(norms[i] / norms.sum())
        tau = self.tau / (oracle.n * p)
        z = oracle.gradient_w(s.w, s.delta).clone() if s.z is None else s.z
        z_bar = z if s.z_bar is None else s.z_bar
        if s.sigma not in (None, self.sigma):  # with steps that vary
            z_bar = torch.lerp(z, z_bar, s.sigma / self.sigma)
        w = oracle.prox_f(s.w.sub(z_bar, alpha=self.sigma), self.sigma)
        old = oracle.block(s.delta, i)
        Aw = oracle.gradient_delta_of(w, old, oracle.problem.only(i))
        new = oracle.prox_g_block(i, old.add(Aw, alpha=tau), tau)
        dz = oracle.gradient_w_change(w, i, new, old)
        z = z + dz
        z_bar = z.add(dz, alpha=self.theta / p)
        delta = oracle.replace(s.delta, i, new)
        return SPDHGImportanceState(w, delta, z=z, z_bar=z_bar, norms=norms, sigma=self.sigma)

    def local_ratio(
        self, oracle: RememberingOracle, s: SPDHGImportanceState, new: SPDHGImportanceState, i: int
    ) -> float:
        """Return sqrt(sigma tau_i / p_i) ||dz|| / ||ddelta_i||, which the condition of the steps keeps below 1."""
        assert new.z is not None
        assert new.norms is not None
        p = float(new.norms[i] / new.norms.sum())
        before = oracle.gradient_w(s.w, s.delta) if s.z is None else s.z
        moved = sqrt(oracle.n / self.tau) * oracle.moved(s.delta, new.delta)
        return sqrt(self.sigma) * quotient(change(new.z, before, times=1 / p), moved)

    def weights(self, problem: Problem, s: SPDHGImportanceState) -> Tensor:
        """Return the norms of the blocks."""
        return block_norms(problem) if s.norms is None else s.norms

    @classmethod
    def choose(cls, problem: Problem, constants: Constants) -> StepSizes:  # noqa: ARG003
        """Choose equal steps just inside the condition."""
        step = 0.99 / (float(block_norms(problem).mean()) * problem.n**0.5)
        return StepSizes(step, step, 1.0, f"the condition for importance sampling (n = {problem.n})")

    def condition(self, problem: Problem, constants: Constants, steps: StepSizes) -> Condition:  # noqa: ARG002
        """Check theta = 1 and m sqrt(sigma tau n) < 1."""
        mean = float(block_norms(problem).mean())
        left = mean * (steps.sigma * steps.tau * problem.n) ** 0.5
        return Condition(
            steps.theta == 1 and left < 1,
            f"importance sampling asks theta = 1 and m sqrt(sigma tau n) < 1; sigma = {steps.sigma:.4g}, tau = "
            f"{steps.tau:.4g}, theta = {steps.theta:.4g} give {left:.4g} (mean norm m = {mean:.4g}, n = {problem.n})",
        )
