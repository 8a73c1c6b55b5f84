"""Solve the four standard nonconvex-nonconcave games from random starts: each method at default steps, ours also at
adaptive ones.

Forsaken, the bilinearly coupled game, the sixth-order polynomial and PolarGame are the set of Zheng et al. (NeurIPS
2023). A start is solved once ||F|| <= TOLERANCE, at any stationary point; the tables also say how often that was the
known solution. DSI-HG is left out: with one block it is SSI-HG (tests/minimax/test_ssi_hg.py).
"""

import sys
from contextlib import closing
from math import isfinite
from pathlib import Path

from benchmarks.timing import Report, Row
from sihg.minimax import METHODS
from sihg.minimax.performance_profile import ProfileComputation
from sihg.report.profile_report import report_profile
from sihg.store.profile_records import ProfileCell, SolverProfile

PROBLEMS = ("forsaken", "bilinearly-coupled", "sixth-order", "polar-game")
STARTS, PASSES, TOLERANCE, SEED = 50, 1250, 1e-3, 0
AT_SOLUTION = 0.05  # distance to the known solution
RULE = "@adaptive"
OURS, SAME_AS_OURS = "ssi-hg", "dsi-hg"
BASELINE = "eg+"


def run(repetitions: int, out: Path | None) -> Report:  # noqa: ARG001
    """Solve from all starts; with `out`, keep the cells there, and continue what is there."""
    folder = out / "standard_problems" if out else None
    found = solve_all(folder)
    if folder:
        report_profile(folder)
    exceptions = find_exceptions(found, OURS)
    return Report(
        f"{OURS} (with one block also {SAME_AS_OURS}) with adaptive steps converges from every start from which "
        f"{BASELINE} does",
        not exceptions,
        {
            "starts": STARTS,
            "budget, block gradients": 2 * PASSES,
            "solved": f"||F|| <= {TOLERANCE:g}",
            "at the solution": f"within {AT_SOLUTION:g} of it",
            "seed": SEED,
        },
        {
            **{problem: [_row(found, problem, method) for method in found.methods] for problem in PROBLEMS},
            **({f"starts that {BASELINE} solves and the method does not": exceptions} if exceptions else {}),
        },
    )


def solve_all(folder: Path | None) -> SolverProfile:
    """Compute the cells, or read them; print a line per cell."""
    names = [name for name, kind in METHODS.items() if not kind.bilinear_only and name != SAME_AS_OURS]
    methods = [*names, OURS + RULE]
    settings = {"passes": PASSES, "reduction": 0.0, "tolerance": TOLERANCE, "starts": STARTS, "seed": SEED}
    with closing(ProfileComputation(PROBLEMS, methods, folder=folder, **settings)) as computation:  # type: ignore[arg-type]
        for problem, method in computation.pairs():
            cell = computation.run(problem, method)
            print(f"{problem}, {method}: {cell.solved:.0%}", file=sys.stderr, flush=True)
        return computation.summarise()


def find_exceptions(found: SolverProfile, name: str) -> list[Row]:
    """Count, per problem, the starts from which the baseline converges and this method with adaptive steps does not."""
    rows: list[Row] = []
    for problem in PROBLEMS:
        ours, theirs = found.cell(problem, name + RULE), found.cell(problem, BASELINE)
        assert ours is not None
        assert theirs is not None
        pairs = zip(ours.runs, theirs.runs, strict=True)
        missed = [mine for mine, other in pairs if other.cost is not None and mine.cost is None]
        if missed:
            outcomes = sorted({run.reason or run.outcome for run in missed})
            rows.append({"method": name + RULE, "problem": problem, "starts": len(missed), "outcome": outcomes[0]})
    return rows


def _row(found: SolverProfile, problem: str, method: str) -> Row:
    cell = found.cell(problem, method)
    assert cell is not None
    return {
        "method": method,
        "solved": f"{cell.solved:.0%}",
        "at the solution": f"{_at_solution(cell):.0%}",
        "median gradients": cell.median_cost if isfinite(cell.median_cost) else "-",
    }


def _at_solution(cell: ProfileCell) -> float:
    near = [run.cost is not None and (run.distance or 0.0) <= AT_SOLUTION for run in cell.runs]
    return sum(near) / len(near)
