"""Problems: what they refuse, and the forms of w and delta that they accept."""

from typing import Any

import pytest
import torch
from torch import Tensor

from sihg.core.prox import L1, Box, SquaredL2
from sihg.minimax import Gradients, LinearMap, Problem, measure
from tests.refused import refused

W, D = torch.ones(3), torch.ones(2, 3)


def inner(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
    return delta @ w


NAN, INF = float("nan"), float("inf")
REFUSED: list[tuple[dict[str, Any], str, dict[str, object]]] = [
    ({"w0": [1.0]}, "w0-type", {"got": "list"}),
    ({"w0": {}}, "w0-type", {"got": "dict (empty)"}),
    ({"delta0": 3}, "delta0-type", {"got": "int"}),
    ({"delta0": torch.tensor(1.0)}, "delta0-shape", {"shape": ()}),
    ({"delta0": torch.ones(0, 3)}, "delta0-shape", {"shape": (0, 3)}),
    ({"w0": torch.ones(3, dtype=torch.int64)}, "start-dtype", {"name": "w0", "got": "torch.int64 on cpu"}),
    ({"w0": torch.ones(3, dtype=torch.float64)}, "starts-differ", {}),
    ({"w0": torch.tensor([1.0, NAN, 1.0])}, "start-not-finite", {"name": "w0", "count": 1}),
    ({"delta0": torch.full((2, 3), INF)}, "start-not-finite", {"name": "delta0", "count": 6}),
    ({"coupling": lambda w, d, _: (d @ w).sum()}, "coupling-shape", {"got": "shape ()"}),
    ({"coupling": lambda w, d, _: (d @ w)[:1]}, "coupling-shape", {"got": "shape (1,)"}),
    ({"coupling": lambda *_: 3.0}, "coupling-shape", {"got": "float"}),
    ({"coupling": lambda w, d, _: (d @ w) / 0}, "coupling-not-finite", {"block": 0}),
    ({"coupling": lambda w, d, _: (d @ w).detach()}, "coupling-detached", {}),
    ({"coupling": lambda w, d, i: torch.arange(1.0, len(i) + 1) * (d @ w)}, "coupling-index", {"block": 1}),
    ({"delta0": torch.ones(2, 4)}, "coupling-fails", {}),
    (
        {"coupling": lambda w, d, _: (d @ w).abs().sqrt(), "w0": torch.zeros(3)},
        "gradient-not-finite",
        {"variable": "w"},
    ),
    ({"f": 3.0}, "not-convex-function", {"name": "f"}),
    ({"f": {"a": L1()}}, "f-keys", {}),
    ({"g": [L1()]}, "g-count", {"count": 1}),
    ({"g": [L1(), None, 3]}, "g-count", {"count": 3}),
    ({"g": [L1(), 3]}, "not-convex-function", {"name": "g[1]"}),
    ({"g": Box(torch.zeros(5), torch.ones(5))}, "prox-fails", {"function": "g"}),
    ({"g": Box(torch.zeros(2, 3), torch.ones(2, 3))}, "prox-shape", {"function": "g"}),
    ({"f": SquaredL2(1.0, torch.zeros(2, 3))}, "prox-shape", {"function": "f"}),
    ({"constants": {"L13": 1.0}}, "unknown-constants", {}),
    ({"constants": {"L11": NAN}}, "constant-range", {"name": "L11"}),
    (
        {"by_hand": Gradients(lambda _w, d, _i: d.sum(0), lambda w, d, _: -w.expand_as(d))},
        "by-hand-gradient",
        {"variable": "delta"},
    ),
    ({"coupling": lambda w, d, _: d @ w**2, "linear_in_w": True}, "not-linear-in-w", {}),
    ({"closed_form": lambda _w, c, _t, _i: 0 * c + 5}, "closed-form-wrong", {}),
    ({"closed_form": lambda _w, c, _t, _i: c[:1]}, "closed-form-wrong", {}),
]


@pytest.mark.parametrize(("arguments", "code", "values"), REFUSED)
def test_refused(arguments: dict[str, Any], code: str, values: dict[str, object]) -> None:
    with refused(code, **values):
        Problem(**{"coupling": inner, "w0": W, "delta0": D, **arguments})


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"blocks": torch.ones(2, 3)}, "bilinear-blocks-shape"),
        ({"blocks": []}, "bilinear-empty"),
        ({"blocks": [3.0]}, "bilinear-block-type"),
        ({"blocks": [torch.ones(3)]}, "bilinear-block-type"),
        ({"blocks": torch.ones(1, 2, 3), "w0": {"a": torch.ones(3)}}, "bilinear-w0-type"),
        ({"blocks": torch.ones(1, 2, 3), "w0": torch.ones(3, dtype=torch.float64)}, "bilinear-dtype"),
        ({"blocks": [LinearMap(lambda w: w, lambda d: d)]}, "bilinear-starts-missing"),
        ({"blocks": torch.ones(2, 3, 4), "w0": torch.ones(5)}, "bilinear-block-shape"),
        ({"blocks": torch.ones(2, 3, 4), "delta0": torch.ones(1, 3)}, "bilinear-block-count"),
        (
            {"blocks": [LinearMap(lambda w: 2 * w, lambda d: d)], "w0": W, "delta0": torch.ones(1, 3)},
            "linear-map-adjoint",
        ),
        (
            {"blocks": [LinearMap(lambda w: w, lambda d: d[:2])], "w0": W, "delta0": torch.ones(1, 3)},
            "linear-map-shape",
        ),
    ],
)
def test_refused_bilinear(arguments: dict[str, Any], code: str) -> None:
    with refused(code):
        Problem.bilinear(**arguments)


def test_gradients_by_hand_are_used() -> None:
    calls = []

    def grad_w(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
        calls.append(len(index))
        return delta.sum(0)

    def grad_delta(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
        return w.expand_as(delta)

    problem = Problem(inner, W, D, by_hand=Gradients(grad_w, grad_delta))
    problem.gradient_w(problem.w0, problem.delta0, problem.all)
    assert calls[-1] == 2


def test_the_start_is_copied() -> None:
    w0 = torch.ones(3)
    problem = Problem(inner, w0, D)
    w0.zero_()
    assert problem.w0.sum() == 3


def test_gradients_of_a_coupling_without_w_or_without_delta_are_zero() -> None:
    """A coupling may leave out w or delta: its gradient there is zero."""
    only_delta = Problem(lambda _w, d, _: -(d**2).sum(1), W, D)
    assert not only_delta.gradient_w(only_delta.w0, only_delta.delta0, only_delta.all).any()
    only_w = Problem(lambda w, _d, i: (w**2).sum() * torch.ones(len(i)), W, D)
    assert not only_w.gradient_delta(only_w.w0, only_w.delta0, only_w.all).any()


def test_dicts_are_taken_by_key() -> None:
    def coupling(w: dict[str, Tensor], delta: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
        return delta @ w["a"] + w["b"].square().sum()

    a, b = torch.arange(3.0), torch.arange(2.0) + 5
    problem = Problem(coupling, {"a": a, "b": b}, D)
    one = measure.saddle_norm_squared(problem, {"a": a, "b": b}, D)
    assert measure.saddle_norm_squared(problem, {"b": b, "a": a}, D) == one
    with refused("w-keys", got=["a", "c"]):
        measure.saddle_norm_squared(problem, {"a": a, "c": b}, D)
    with refused("w-shapes", got=[(2,), (3,)]):
        measure.saddle_norm_squared(problem, {"a": b, "b": a}, D)
    with refused("delta-shapes", blocks=1):
        measure.saddle_norm_squared(problem, {"a": a, "b": b}, D[:1])


def test_whole_and_single_blocks_agree() -> None:
    """The tall matrix for all blocks gives what the blocks give one by one."""
    A = torch.randn(4, 3, 5, dtype=torch.float64)
    tall, listed = Problem.bilinear(A), Problem.bilinear(list(A))
    w, d = torch.randn(5, dtype=torch.float64), torch.randn(12, dtype=torch.float64)
    for one, other in zip(tall.gradients(w, d), listed.gradients(w, d), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)


def test_a_problem_prints_its_shapes() -> None:
    assert repr(Problem(inner, W, D)) == "Problem(n=2, w=(3,), delta=(2, 3), float32)"
    uneven = Problem.bilinear([torch.ones(1, 2), torch.ones(3, 2)])
    assert repr(uneven) == "Problem(n=2, w=(2,), delta=4 numbers, float32)"
