"""Train a network adversarially by DSI-HG, as the minimax problem of the theorems, with theta 0 and theta 1.

As in Corollary 3, the network is smooth, every gradient uses all digits, and the ascent step is implicit. It is unknown
whether a weak MVI holds. Step sizes come from local estimates of the constants. The script prints the smallest squared
saddle norm |F|^2 up to iteration K, and its rate K^-r over the last decade of K. It takes about ten minutes.
"""

import argparse
import math

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sihg.minimax import LinfBall, Problem, Result, SquaredL2, solve
from sihg.robust import data

EPS, HIDDEN = 0.1, 16


def problem() -> Problem:
    """Build a tanh network on digits; `sihg solve examples/robust_network.py:problem` solves it too."""
    train, _ = data.load("digits")
    x, y = train.floats().flatten(1).double(), train.y
    draw = torch.Generator().manual_seed(0)
    start = {
        "inner": torch.randn(x.shape[1], HIDDEN, generator=draw, dtype=x.dtype) / math.sqrt(x.shape[1]),
        "bias": torch.zeros(HIDDEN, dtype=x.dtype),
        "outer": torch.randn(HIDDEN, 10, generator=draw, dtype=x.dtype) / math.sqrt(HIDDEN),
    }

    def loss(w: dict[str, Tensor], delta: Tensor, index: Tensor) -> Tensor:
        hidden = torch.tanh((x[index] + delta) @ w["inner"] + w["bias"])
        return cross_entropy(hidden @ w["outer"], y[index], reduction="none") / len(x)

    return Problem(loss, start, torch.zeros_like(x), f=SquaredL2(1e-3), g=LinfBall(EPS))


def smallest_norms(result: Result) -> list[tuple[int, float]]:
    """Return each recorded iteration with the smallest squared saddle norm up to it."""
    smallest, rows = math.inf, []
    for k, norm in zip(result.history["iteration"], result.history["saddle_norm_squared"], strict=True):
        smallest = min(smallest, norm)
        rows.append((int(k), smallest))
    return rows


def fit_rate(rows: list[tuple[int, float]]) -> float:
    """Fit log norm = c - r log K over the last decade of K; return r."""
    last = [(math.log(k), math.log(norm)) for k, norm in rows if k >= rows[-1][0] / 10 and k]
    k, norm = torch.tensor(last, dtype=torch.float64).T
    return -float(((k - k.mean()) * (norm - norm.mean())).sum() / (k - k.mean()).square().sum())


def main() -> None:
    """Solve with theta 0 and 1 and print the norms."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=3000, help="iterations of DSI-HG (default: 3000)")
    iterations = parser.parse_args().iterations
    if iterations < 10:
        parser.error(f"--iterations must be at least 10 to fit a rate, got {iterations}: raise it")
    for theta in (0.0, 1.0):
        result = solve(problem(), "dsi-hg", iterations=iterations, theta=theta)
        rows = smallest_norms(result)
        printed = {k: norm for k, norm in rows if k in {0, iterations} | {10**p for p in range(1, 9)}}
        print(f"theta {theta:g}, sigma {result.steps.sigma:.3g}, tau {result.steps.tau:.3g}")
        print("\n".join(f"  K {k:7d}   smallest |F|^2 {norm:.3e}" for k, norm in printed.items()))
        print(f"  rate over the last decade: K^-{fit_rate(rows):.2f}")


if __name__ == "__main__":
    main()
