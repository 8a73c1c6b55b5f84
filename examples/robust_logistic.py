"""Logistic regression that is robust against Linf perturbations: three methods and the known solution."""

from sihg.minimax import measure, solve, zoo


def main() -> None:
    benchmark = zoo.get("robust-logistic", samples=80, n=16, eps=0.1)
    assert benchmark.solution is not None
    for method in ("ssi-hg", "extragradient", "gda"):
        result = solve(benchmark.problem, method, iterations=1500, record_every=None)
        apart = measure.distance(benchmark.problem, result.w, result.delta, *benchmark.solution)
        gradients = result.state.w_gradients + result.state.delta_gradients
        print(f"{method:14} {gradients:7} block gradients, {apart:.1e} from the solution")


if __name__ == "__main__":
    main()
