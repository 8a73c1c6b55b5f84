"""Block gradients until ||F||^2 has fallen by 1e8, of every method with its theorem's steps and with adaptive ones.

`python -m benchmarks.adaptive_steps` prints, for each problem of the zoo with several sizes, what SSI-HG with adaptive
steps needs, what the best method needs, and the ratio. No clock is read: equal machines print equal tables.
"""

import argparse
import warnings
from collections.abc import Sequence
from math import inf, isfinite

from sihg.minimax import METHODS, Problem, Progress, measure, solve, zoo

SIZES: dict[str, tuple[dict[str, int], ...]] = {
    "ridge": ({"n": 4}, {"n": 20}, {"n": 100}),
    "quadratic": ({"n": 4}, {"n": 16}),
    "tv-denoising": ({"size": 16},),
    "weak-mvi-blocks": ({"n": 4}, {"n": 16}),
    "weak-mvi-nonlinear": ({"n": 4}, {"n": 16}),
    "robust-logistic": ({"n": 8}, {"n": 40}),
    "robust-regression": ({"n": 4},),
    "fair-groups": ({},),
    "wgan-mean": ({},),
    "wgan-covariance": ({},),
}
FALL = 1e-8
BUDGET = 2000  # block gradients per block of delta


def cost(problem: Problem, method: str, steps: str) -> float:
    """Return the block gradients in w and delta until ||F||^2 has fallen by FALL; infinite if the budget is spent."""
    first = measure.saddle_norm_squared(problem, problem.w_form(problem.w0), problem.delta_form(problem.delta0))
    budget = BUDGET * problem.n

    def spent(progress: Progress) -> bool:
        return progress.at.w_gradients + progress.at.delta_gradients >= budget

    one_block = method == "ssi-hg" or METHODS[method].bilinear_only
    every, iterations = (max(1, problem.n // 4), budget) if one_block else (1, BUDGET)
    tolerance = (FALL * first) ** 0.5 if isfinite(first) else FALL
    result = solve(
        problem, method, steps=steps, iterations=iterations, record_every=every, tolerance=tolerance, callback=spent
    )
    reached = result.stopped.startswith("tolerance")
    return result.state.w_gradients + result.state.delta_gradients if reached else inf


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="print what every method needs")
    parser.add_argument("--problem", choices=SIZES, help="only this problem")
    shown = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    print("| problem | n | ssi-hg theorem | ssi-hg adaptive | best | of | ratio |\n|---|---|---|---|---|---|---|")
    for name, sizes in SIZES.items():
        for size in sizes if shown.problem in (None, name) else ():
            problem = zoo.get(name, **size).problem
            names = [m for m, kind in METHODS.items() if problem.bilinear_in_both or not kind.bilinear_only]
            costs = {(m, rule): cost(problem, m, rule) for m in names for rule in ("theorem", "adaptive")}
            best = min(costs, key=lambda which: costs[which])
            ours = costs["ssi-hg", "adaptive"]
            numbers = f"{costs['ssi-hg', 'theorem']:.0f} | {ours:.0f} | {costs[best]:.0f}"
            print(f"| {name} | {problem.n} | {numbers} | {best[0]}, {best[1]} | {ours / costs[best]:.2f} |", flush=True)
            for (method, rule), needed in sorted(costs.items(), key=lambda item: item[1]) if shown.all else ():
                print(f"    {needed:10.0f} {method}, {rule}")


if __name__ == "__main__":
    main()
