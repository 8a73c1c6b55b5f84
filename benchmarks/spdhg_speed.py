"""Compare SSI-HG and SPDHG with ODL's SPDHG: equal iterates from equal blocks, and the time they take.

ODL is set up in the fastest way we found:
- its own proximal operators, without the functionals that wrap them (1.4 to 1.5 times slower);
- NumPy arrays (its PyTorch arrays are at least 5 times slower);
- for ridge its `MatrixOperator`;
- for total variation both its `PartialDerivative` on `uniform_discr` and operators written by hand on `rn`, which are
  faster than that and than sparse matrices.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.odl_spdhg import load
from benchmarks.timing import Report, Row, Value, time_interleaved
from sihg.core.draw import generator
from sihg.core.prox import LinfBall, SquaredL2
from sihg.minimax import Problem, solve, zoo
from sihg.minimax.bilinear import BilinearCoupling

odl: Any = import_module("odl")  # untyped
odl_prox: Any = import_module("odl.solvers.nonsmooth.proximal_operators")

SEED = 0
SIZE, SAMPLES, FEATURES, BLOCKS = 256, 20000, 200, 20
ITERATIONS = 300
OURS = ("ssi-hg", "spdhg")
MAX_DISTANCE, MIN_RATIO = 1e-8, 2.0  # between iterates; of ODL's time to ours

Iterate = tuple[Tensor, Tensor]


class Setup(NamedTuple):
    """A problem for ODL: operators A_i, and factories of the proximal operators of f and of each g_i."""

    operators: Sequence[Any]
    prox_f: Callable[[float], Any]
    prox_g: Sequence[Callable[[float], Any]]


@dataclass(frozen=True)
class Case:
    """A problem for our solvers, and the same problem in one or more setups for ODL."""

    name: str
    problem: Problem
    odl: Mapping[str, Setup]


def run(repetitions: int, out: Path | None) -> Report:  # noqa: ARG001
    """Time all solvers on both problems, and check that they end at the same point."""
    tables: dict[str, list[Row]] = {}
    measured: dict[str, Value] = {}
    holds = True
    for case in (tv_denoising(), ridge()):
        timings = time_interleaved(solvers(case), repetitions)
        distances = {name: distance(times.value, timings[OURS[0]].value) for name, times in timings.items()}
        assert max(distances.values()) <= MAX_DISTANCE, f"{case.name}: iterates differ by {max(distances.values()):.1e}"
        tables[case.name] = [
            {
                "solver": name,
                "iteration, ms": times.milliseconds(ITERATIONS),
                **{f"over {ours}": times.over(timings[ours])[0] for ours in OURS},
                **{f"CPU over {ours}": times.over(timings[ours])[1] for ours in OURS},
                f"distance to {OURS[0]}": f"{distances[name]:.0e}",
            }
            for name, times in timings.items()
        ]
        for ours in OURS:
            fastest = min(timings[name].over(timings[ours])[0] for name in case.odl)
            measured[f"{case.name}, the fastest ODL over {ours}"] = fastest
            holds = holds and fastest.median >= MIN_RATIO
    return Report(
        f"ODL's SPDHG takes at least {MIN_RATIO:g} times the time of our SSI-HG and of our SPDHG for the same iterates",
        holds,
        {**measured, "iterations": ITERATIONS, "repetitions": repetitions, "seed": SEED, "dtype": "float64"},
        tables,
    )


def tv_denoising() -> Case:
    """Set up total-variation denoising, one block per direction."""
    problem = zoo.get("tv-denoising", size=SIZE, seed=SEED).problem
    f, g = problem.f, problem.g
    assert isinstance(f, SquaredL2)
    assert isinstance(f.centre, Tensor)
    assert isinstance(g, LinfBall)
    image, weight, radius = f.centre.numpy(), f.weight, g.radius

    def setup(space: Any, difference: Callable[[Any, int], Any]) -> Setup:
        clip = odl_prox.proximal_box_constraint(space, -radius, radius)
        prox_f = odl_prox.proximal_l2_squared(space, weight / 2, space.element(image))
        return Setup([difference(space, axis) for axis in (1, 0)], prox_f, [clip, clip])

    def derivative(space: Any, axis: int) -> Any:
        return odl.PartialDerivative(space, axis, method="forward", pad_mode="symmetric")

    setups = {
        "ODL, PartialDerivative": setup(odl.uniform_discr([0, 0], [SIZE, SIZE], [SIZE, SIZE]), derivative),
        "ODL, differences by hand": setup(odl.rn((SIZE, SIZE)), Difference),
    }
    return Case(f"tv-denoising, {SIZE} x {SIZE}, n = 2", problem, setups)


def ridge() -> Case:
    """Set up ridge regression, with the samples in blocks."""
    problem = zoo.get("ridge", samples=SAMPLES, features=FEATURES, n=BLOCKS, seed=SEED).problem
    f, g = problem.f, problem.g
    assert isinstance(problem.coupling, BilinearCoupling)
    assert isinstance(f, SquaredL2)
    assert isinstance(g, list)
    identity = torch.eye(FEATURES, dtype=torch.float64)
    operators = [odl.MatrixOperator(linear.forward(identity).numpy()) for linear in problem.coupling.maps]
    prox_f = odl_prox.proximal_l2_squared(operators[0].domain, f.weight / 2)
    prox_g = []
    for operator, g_i in zip(operators, g, strict=True):
        assert isinstance(g_i, SquaredL2)
        assert isinstance(g_i.centre, Tensor)
        centre = operator.range.element((-g_i.weight * g_i.centre).numpy())
        prox_g.append(odl_prox.proximal_convex_conj_l2_squared(operator.range, 1 / (2 * g_i.weight), centre))
    name = f"ridge, {SAMPLES} samples, {FEATURES} features, n = {BLOCKS}"
    return Case(name, problem, {"ODL, MatrixOperator": Setup(operators, prox_f, prox_g)})


def solvers(case: Case) -> Mapping[str, Callable[[], Iterate]]:
    """Return all solvers as callables: from zero, with SSI-HG's step sizes and one sequence of blocks."""
    problem, n = case.problem, case.problem.n
    steps = solve(problem, iterations=0, record_every=None).steps
    blocks = torch.randint(n, (ITERATIONS,), generator=generator(SEED, "blocks")).tolist()
    settings: dict[str, Any] = {"sigma": steps.sigma, "tau": steps.tau, "theta": steps.theta}
    spdhg = load()

    def ours(method: str) -> Iterate:
        result = solve(problem, method, **settings, iterations=ITERATIONS, blocks=blocks, record_every=None)
        return result.state.inner.w, result.state.inner.delta

    def theirs(setup: Setup) -> Iterate:
        A = odl.BroadcastOperator(*setup.operators)
        x, y = A.domain.zero(), A.range.zero()
        f = [SimpleNamespace(convex_conj=SimpleNamespace(proximal=prox)) for prox in setup.prox_g]
        g = SimpleNamespace(proximal=setup.prox_f)
        chosen = {"theta": steps.theta, "fun_select": lambda k: [blocks[k]]}
        spdhg(x, f, g, A, steps.sigma, [steps.tau] * n, ITERATIONS, y=y, **chosen)
        return flatten(x), torch.cat([flatten(block) for block in y])

    return {method: partial(ours, method) for method in OURS} | {
        name: partial(theirs, setup) for name, setup in case.odl.items()
    }


def flatten(element: Any) -> Tensor:
    """Convert an element of ODL to a vector."""
    return torch.from_numpy(element.asarray()).reshape(-1)


def distance(a: Iterate, b: Iterate) -> float:
    """Return the largest difference of any entry."""
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))


class Difference(odl.Operator):  # type: ignore[misc]
    """Forward differences along an axis, zero at the last index, and their adjoint; allocates only the result."""

    def __init__(self, space: Any, axis: int, adjoint: "Difference | None" = None) -> None:
        super().__init__(space, space, linear=True)
        self.axis, self.forward = axis, adjoint is None
        self.other = Difference(space, axis, self) if adjoint is None else adjoint

    def _call(self, x: Any, out: Any) -> None:
        u: NDArray[np.float64] = np.moveaxis(x.data, self.axis, 0)
        v: NDArray[np.float64] = np.moveaxis(out.data, self.axis, 0)
        if self.forward:
            np.subtract(u[1:], u[:-1], out=v[:-1])
            v[-1] = 0
        else:
            np.negative(u[0], out=v[0])
            np.subtract(u[:-2], u[1:-1], out=v[1:-1])
            v[-1] = u[-2]

    @property
    def adjoint(self) -> "Difference":
        """Return the adjoint, which is built only once."""
        return self.other
