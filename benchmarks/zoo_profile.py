"""Draw the performance profile of all methods over the zoo; say where SSI-HG with adaptive steps is near the best."""

import sys
from contextlib import closing
from math import inf, isfinite
from pathlib import Path

import msgspec

from benchmarks.timing import Report, Row
from sihg.minimax import METHODS, zoo
from sihg.minimax.performance_profile import ProfileComputation
from sihg.report.profile_report import report_profile
from sihg.store.profile_records import SolverProfile

PASSES, REDUCTION, SEED = 1000, 1e-3, 0
RULE, OURS, SIBLING = "@adaptive", "ssi-hg@adaptive", "dsi-hg"
MANY_BLOCKS, FACTOR, SHARE = 4, 2.0, 0.7  # the claim: within FACTOR of the best on this share of problems with n >= 4


def run(repetitions: int, out: Path | None) -> Report:  # noqa: ARG001
    """Compute all cells; with `out`, keep them there, and continue what is there."""
    folder = out / "zoo_profile" if out else None
    found = compute(folder)
    if folder:
        report_profile(folder)
    many = [problem.name for problem in found.problems if problem.n >= MANY_BLOCKS]
    share = found.share(OURS, FACTOR, many)
    methods = sorted(found.methods, key=lambda m: (-found.share(m, FACTOR), -found.share(m, inf)))
    return Report(
        f"{OURS} costs at most {FACTOR:g} times the best method on at least {SHARE:.0%} of the problems with n >= "
        f"{MANY_BLOCKS}",
        share >= SHARE,
        {
            "measured": f"{share:.0%} of {len(many)} problems",
            f"{SIBLING}{RULE}": f"{found.share(SIBLING + RULE, FACTOR, many):.0%}",
            f"compared with all methods but {SIBLING}": f"{_without_sibling(found).share(OURS, FACTOR, many):.0%}",
            "budget": f"{PASSES} passes of n block gradients in w and n in delta",
            "solved": f"||F|| <= {REDUCTION:g} ||F(z0)||",
            "seed": SEED,
        },
        {
            "all problems: share of problems solved at a cost of at most so many times the best": [
                _shares(found, method, None) for method in methods
            ],
            f"problems with n >= {MANY_BLOCKS}": [_shares(found, method, many) for method in methods],
            f"{OURS} on each problem": [_place(found, problem.name, problem.n) for problem in found.problems],
        },
    )


def compute(folder: Path | None) -> SolverProfile:
    """Compute the cells, or read them; print a line per cell."""
    methods = [*METHODS, *(name + RULE for name, kind in METHODS.items() if not kind.adapts_itself)]
    problems = zoo.names()
    with closing(
        ProfileComputation(problems, methods, folder=folder, passes=PASSES, reduction=REDUCTION, seed=SEED)
    ) as computation:
        for problem, method in computation.pairs():
            cell = computation.run(problem, method)
            print(f"{problem}, {method}: {cell.runs[0].cost or cell.runs[0].outcome}", file=sys.stderr, flush=True)
        return computation.summarise()


def _without_sibling(found: SolverProfile) -> SolverProfile:
    methods = tuple(method for method in found.methods if not method.startswith(SIBLING))
    return msgspec.structs.replace(found, methods=methods)


def _shares(found: SolverProfile, method: str, problems: list[str] | None) -> Row:
    limits = {"best": 1.0, "within 2": 2.0, "within 10": 10.0, "solved": inf}
    return {
        "method": method,
        **{name: f"{found.share(method, limit, problems):.0%}" for name, limit in limits.items()},
    }


def _place(found: SolverProfile, problem: str, n: int) -> Row:
    costs = {m: cell.median_cost for m in found.methods if (cell := found.cell(problem, m)) is not None}
    best = min(costs, key=lambda method: costs[method])
    mine, least = costs[OURS], costs[best]
    return {
        "problem": problem,
        "n": n,
        "gradients": mine if isfinite(mine) else "not solved",
        "best method": best if isfinite(least) else "none",
        "its gradients": least if isfinite(least) else "-",
        "ratio": mine / max(least, 1.0) if isfinite(mine) else "-",
    }
