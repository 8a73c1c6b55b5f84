"""SSI-HG and SPDHG beside ODL's SPDHG: the same iterates from the same blocks, and the time they take.

ODL is set up in the fastest way found. It gets its own proximal operators directly, without functionals that wrap them
(1.4 to 1.5 times slower), and NumPy arrays (its PyTorch arrays are at least 5 times slower). Ridge uses its
`MatrixOperator`. Total variation runs twice: with its `PartialDerivative` on `uniform_discr`, and with operators
written by hand on `rn`, which beat that and sparse matrices.
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
from benchmarks.timing import Report, Row, Value, interleaved
from sihg.core.draw import generator
from sihg.core.prox import LinfBall, SquaredL2
from sihg.minimax import Problem, solve, zoo
from sihg.minimax.bilinear import BilinearCoupling

odl: Any = import_module("odl")  # has no types
odl_prox: Any = import_module("odl.solvers.nonsmooth.proximal_operators")

SEED = 0
SIZE, SAMPLES, FEATURES, BLOCKS = 256, 20000, 200, 20
ITERATIONS = 300
OURS = ("ssi-hg", "spdhg")
EQUAL, LEAST = 1e-8, 2.0  # how far iterates may be apart, and the claimed quotient of times

Iterate = tuple[Tensor, Tensor]


class Setup(NamedTuple):
    """A problem in ODL's terms: operators A_i, and factories of the proximal operators of f and of each g_i."""

    operators: Sequence[Any]
    prox_f: Callable[[float], Any]
    prox_g: Sequence[Callable[[float], Any]]


@dataclass(frozen=True)
class Case:
    """A problem for us, and the same for ODL in one or more ways."""

    name: str
    problem: Problem
    odl: Mapping[str, Setup]


def run(repetitions: int, out: Path | None) -> Report:  # noqa: ARG001
    """Time all solvers on both problems, once they are known to be at the same point."""
    tables: dict[str, list[Row]] = {}
    measured: dict[str, Value] = {}
    holds = True
    for case in (tv_denoising(), ridge()):
        timed = interleaved(solvers(case), repetitions)
        apart = {name: distance(times.value, timed[OURS[0]].value) for name, times in timed.items()}
        assert max(apart.values()) <= EQUAL, f"{case.name}: iterates are {max(apart.values()):.1e} apart"
        tables[case.name] = [
            {
                "solver": name,
                "iteration, ms": times.milliseconds(ITERATIONS),
                **{f"over {ours}": times.over(timed[ours])[0] for ours in OURS},
                **{f"CPU over {ours}": times.over(timed[ours])[1] for ours in OURS},
                f"distance to {OURS[0]}": f"{apart[name]:.0e}",
            }
            for name, times in timed.items()
        ]
        for ours in OURS:
            least = min(timed[name].over(timed[ours])[0] for name in case.odl)
            measured[f"{case.name}, the fastest ODL over {ours}"] = least
            holds = holds and least.median >= LEAST
    return Report(
        f"SSI-HG and SPDHG make ODL's iterates in at least {LEAST:g} times less time",
        holds,
        {**measured, "iterations": ITERATIONS, "repetitions": repetitions, "seed": SEED, "dtype": "float64"},
        tables,
    )


def tv_denoising() -> Case:
    """Total-variation denoising, a block a direction."""
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

    ways = {
        "ODL, PartialDerivative": setup(odl.uniform_discr([0, 0], [SIZE, SIZE], [SIZE, SIZE]), derivative),
        "ODL, differences by hand": setup(odl.rn((SIZE, SIZE)), Difference),
    }
    return Case(f"tv-denoising, {SIZE} x {SIZE}, n = 2", problem, ways)


def ridge() -> Case:
    """Ridge regression, samples in blocks."""
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
    """All solvers from zero, with SSI-HG's step sizes and one sequence of blocks."""
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
        return flat(x), torch.cat([flat(block) for block in y])

    return {method: partial(ours, method) for method in OURS} | {
        name: partial(theirs, setup) for name, setup in case.odl.items()
    }


def flat(element: Any) -> Tensor:
    """An element of ODL as a vector."""
    return torch.from_numpy(element.asarray()).reshape(-1)


def distance(a: Iterate, b: Iterate) -> float:
    """The largest difference of any entry."""
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))


class Difference(odl.Operator):  # type: ignore[misc]
    """Forward differences along an axis, zero at the far edge, and their adjoint, with no array but the result."""

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
        """Made once."""
        return self.other
