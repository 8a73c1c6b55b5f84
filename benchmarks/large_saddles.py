"""Time to a relative accuracy of 1e-3 with 1,000 blocks of 1,000 samples: ours, ODL's SPDHG, scikit-learn's SAGA.

The problems are those of `large_problems.py`, in float32. Accuracy is P(w) / min P - 1, with the minimum computed in
float64. It is looked at every CHECKED_EVERY block iterations (SAGA: after every pass) in runs that are not timed; each
solver is then timed for as many iterations as it needed. All SPDHG solvers take the same steps and blocks.

- Each library has its own process and makes its data there. Timed is the solve from zero; building the problem is timed
  apart, as "set-up".
- ODL gets NumPy arrays, and operators and proximal maps written by hand that do nothing but the arithmetic. For ridge
  its own `MatrixOperator` and proximal operators run too; for the conjugate of the logistic loss it has none.
- SAGA minimises the same P of ridge; the time of scikit-learn's `fit` includes its own set-up. No option of its
  `LogisticRegression` is the robust problem, since |w|_1 stands inside the loss, so SAGA is left out there.
"""

import contextlib
import warnings
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.large_odl import Array, odl, operators_by_hand, own_operators
from benchmarks.large_problems import CONDITION, EPS, FEATURES, SEED, WEIGHT, Case, make_case
from benchmarks.odl_spdhg import load
from benchmarks.separate_processes import SeparateProcesses
from benchmarks.timing import Measurement, Report, Row, Value, time_interleaved, time_once
from sihg.core.draw import generator
from sihg.minimax import Progress, solve

BLOCKS, ROWS = 1000, 1000
ACCURACY, CHECKED_EVERY, MAX_PASSES = 1e-3, 50, 20
OURS, BY_HAND, OWN, SAGA = ("ssi-hg", "spdhg"), "ODL, by hand", "ODL, its own operators", "scikit-learn, SAGA"
SOLVERS = {"ridge": (*OURS, BY_HAND, OWN, SAGA), "robust logistic": (*OURS, BY_HAND)}
MIN_RATIO, SECONDS = 5.0, 180.0  # of the fastest ODL's time to ours; time limit per problem

Check = Callable[[int, Tensor], bool]  # (iterations done, w) -> whether to stop


class Plan(NamedTuple):
    """What each process needs to know: the problem and its step sizes."""

    name: str
    blocks: int
    rows: int
    sigma: float
    tau: float
    theta: float


def run(repetitions: int, out: Path | None) -> Report:  # noqa: ARG001
    """Count the iterations of all solvers on both problems, then time them in turn."""
    tables: dict[str, list[Row]] = {}
    measured: dict[str, Value] = {}
    holds = True
    for name, solvers in SOLVERS.items():
        case = make_case(name, BLOCKS, ROWS)
        plan, least = Plan(name, BLOCKS, ROWS, *case.step_sizes()), case.objective(case.solution().float())
        with SeparateProcesses() as processes:
            needed = {solver: processes(solver, iterations_needed, solver, plan, least) for solver in solvers}
            setups = {solver: processes(solver, setup_seconds, solver, plan) for solver in solvers}
            calls = {solver: partial(processes, solver, timed, solver, plan, needed[solver]) for solver in solvers}
            timings = time_interleaved(calls, repetitions, SECONDS)
        accuracies = {solver: case.objective(times.value) / least - 1 for solver, times in timings.items()}
        assert max(accuracies.values()) <= ACCURACY, f"{name}: not accurate enough: {accuracies}"
        tables[describe(plan)] = [
            {
                "solver": solver,
                "iterations": "" if solver == SAGA else str(needed[solver]),
                "passes": needed[solver] / (1 if solver == SAGA else BLOCKS),
                "accuracy": accuracies[solver],
                "seconds": times.milliseconds(1000),
                **{f"over {ours}": times.over(timings[ours])[0] for ours in OURS},
                **{f"CPU over {ours}": times.over(timings[ours])[1] for ours in OURS},
                "set-up, s": setups[solver],
            }
            for solver, times in timings.items()
        ]
        peers = [solver for solver in solvers if solver.startswith("ODL")]
        for ours in OURS:
            fastest = min(timings[peer].over(timings[ours])[0] for peer in peers)
            measured[f"{name}: the fastest ODL over {ours}"] = fastest
            holds = holds and fastest.median >= MIN_RATIO
        measured[f"{name}: repetitions"] = len(timings[OURS[0]].wall)
    return Report(
        f"ODL's SPDHG takes at least {MIN_RATIO:g} times the time of our SSI-HG and SPDHG to accuracy {ACCURACY:g}",
        holds,
        {**measured, "samples": BLOCKS * ROWS, "features": FEATURES, "condition": CONDITION}
        | {"lambda": WEIGHT, "eps": EPS, "seed": SEED, "dtype": "float32"},
        tables,
    )


def describe(plan: Plan) -> str:
    """Return the title of a table."""
    steps = f"sigma {plan.sigma:.3g}, tau {plan.tau:.3g}, theta {plan.theta:.6f}"
    return f"{plan.name}, n = {plan.blocks} blocks of {plan.rows} samples; {steps}"


def iterations_needed(solver: str, plan: Plan, least: float) -> int:
    """Return after how many iterations (SAGA: passes) the accuracy is reached."""
    case = make_case(plan.name, plan.blocks, plan.rows)

    def reached(w: Tensor) -> bool:
        return case.objective(w) <= (1 + ACCURACY) * least

    if solver == SAGA:
        return next(passes for passes in range(1, MAX_PASSES) if reached(saga(plan, passes)))
    count = 0

    def check(iterations: int, w: Tensor) -> bool:
        nonlocal count
        count = iterations
        return iterations % CHECKED_EVERY == 0 and reached(w)

    build(solver, plan)(MAX_PASSES * plan.blocks, check)
    assert count < MAX_PASSES * plan.blocks, f"{solver} does not reach {ACCURACY:g} in {MAX_PASSES} passes"
    return count


def timed(solver: str, plan: Plan, iterations: int) -> Measurement:
    """Solve from zero, with a set-up that is kept between calls."""
    if solver == SAGA:
        return time_once(lambda: saga(plan, iterations))
    return time_once(partial(kept(solver, plan), iterations, None))


def setup_seconds(solver: str, plan: Plan) -> float:
    """Return the time that building the problem takes; scikit-learn has none apart."""
    make_case(plan.name, plan.blocks, plan.rows)
    return 0.0 if solver == SAGA else time_once(lambda: build(solver, plan)).wall


Solve = Callable[[int, Check | None], Tensor]


def build(solver: str, plan: Plan) -> Solve:
    """Set a solver up; what is returned solves from zero and returns w."""
    case = make_case(plan.name, plan.blocks, plan.rows)
    return our_solver(solver, plan, case) if solver in OURS else odl_solver(solver, plan, case)


kept = cache(build)


@cache
def drawn_blocks(n: int) -> list[int]:
    """Return the blocks of all solvers: uniform draws."""
    return torch.randint(n, (MAX_PASSES * n,), generator=generator(SEED, "blocks")).tolist()


def our_solver(method: str, plan: Plan, case: Case) -> Solve:
    """Set up one of our methods."""
    problem = case.problem()

    def ours(iterations: int, check: Check | None) -> Tensor:
        def callback(progress: Progress) -> bool:
            assert check is not None
            return check(progress.iteration, progress.state.w)

        result = solve(
            problem,
            method,
            sigma=plan.sigma,
            tau=plan.tau,
            theta=plan.theta,
            iterations=iterations,
            blocks=drawn_blocks(plan.blocks)[:iterations],
            record_every=None,
            callback=callback if check else None,
        )
        return result.state.inner.w

    return ours


class Stopped(Exception):  # noqa: N818
    """Raised in ODL's callback, which has no other way to end a solve."""


def odl_solver(solver: str, plan: Plan, case: Case) -> Solve:
    """Set ODL's SPDHG up, with operators by hand or its own."""
    operators, prox_f, prox_g = operators_by_hand(case) if solver == BY_HAND else own_operators(case)
    A, spdhg = odl.BroadcastOperator(*operators), load()
    f = [SimpleNamespace(convex_conj=SimpleNamespace(proximal=prox)) for prox in prox_g]
    g = SimpleNamespace(proximal=prox_f)

    def theirs(iterations: int, check: Check | None) -> Tensor:
        x, y, done = A.domain.zero(), A.range.zero(), 0
        blocks = drawn_blocks(plan.blocks)

        def callback(iterate: Any) -> None:
            nonlocal done
            done += 1
            assert check is not None
            if check(done, torch.from_numpy(iterate[0].asarray())):
                raise Stopped

        chosen = {"theta": plan.theta, "fun_select": lambda k: [blocks[k]], "callback": callback if check else None}
        with contextlib.suppress(Stopped):
            spdhg(x, f, g, A, plan.sigma, [plan.tau] * plan.blocks, iterations, y=y, **chosen)
        return torch.from_numpy(x.asarray().copy())

    return theirs


def saga(plan: Plan, passes: int) -> Tensor:
    """Minimise P by scikit-learn's SAGA; return w after so many passes over the data."""
    linear_model: Any = import_module("sklearn.linear_model")
    x, b = flat_data(plan)
    model = linear_model.Ridge(
        alpha=WEIGHT * len(b), fit_intercept=False, solver="saga", max_iter=passes, tol=1e-30, random_state=SEED
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the tolerance was not reached
        model.fit(x, b)
    return torch.from_numpy(np.asarray(model.coef_, dtype=np.float32))


def flat_data(plan: Plan) -> tuple[Array, Array]:
    """Return the samples as one matrix, and the targets."""
    case = make_case(plan.name, plan.blocks, plan.rows)
    return case.data.flatten(0, 1).numpy(), case.targets.flatten().numpy()
