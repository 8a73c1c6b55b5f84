"""Solve robust logistic regression (Linf perturbations) by three methods; compare with the known solution.

python examples/robust_logistic.py
"""

from sihg.minimax import measure, solve, zoo


def main() -> None:
    benchmark = zoo.get("robust-logistic", samples=80, n=16, eps=0.1)
    assert benchmark.solution is not None
    for method in ("ssi-hg", "extragradient", "gda"):
        result = solve(benchmark.problem, method, iterations=1500, record_every=None)
        distance = measure.distance(benchmark.problem, result.w, result.delta, *benchmark.solution)
        gradients = result.state.w_gradients + result.state.delta_gradients
        print(f"{method:14} {gradients:7} block gradients, distance to the solution {distance:.1e}")


if __name__ == "__main__":
    main()
