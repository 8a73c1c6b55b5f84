"""Problems refuse what cannot work, with the value and the remedy."""

from typing import Any

import pytest
import torch
from torch import Tensor

from sihg.core.prox import L1, Box, SquaredL2
from sihg.errors import InputError
from sihg.minimax import LinearMap, Problem, measure
from sihg.minimax.problem import Gradients

W, D = torch.ones(3), torch.ones(2, 3)


def inner(w: Tensor, delta: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
    return delta @ w


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"w0": [1.0]}, "w0 must be a tensor or a dict of tensors, got list"),
        ({"w0": {}}, r"got dict \(empty\)"),
        ({"delta0": 3}, "delta0 must be a tensor .* or a list of n tensors, got int"),
        ({"delta0": torch.tensor(1.0)}, r"delta0 must have shape \(n, ...\) with n >= 1, got \(\)"),
        ({"delta0": torch.ones(0, 3)}, r"got \(0, 3\)"),
        ({"w0": torch.ones(3, dtype=torch.int64)}, "w0 must be floating point of one dtype .* got torch.int64"),
        ({"w0": torch.ones(3, dtype=torch.float64)}, "w0 is torch.float64 on cpu, delta0 torch.float32 on cpu"),
        ({"w0": torch.tensor([1.0, float("nan"), 1.0])}, "w0 has 1 values that are not finite"),
        ({"delta0": torch.full((2, 3), float("inf"))}, "delta0 has 6 values that are not finite"),
        (
            {"coupling": lambda w, d, _: (d @ w).sum()},
            r"shape \(2,\), one phi_i for each entry of index, got shape \(\)",
        ),
        ({"coupling": lambda w, d, _: (d @ w)[:1]}, r"got shape \(1,\)"),
        ({"coupling": lambda *_: 3.0}, "got float"),
        ({"coupling": lambda w, d, _: (d @ w) / 0}, "coupling gives inf for block 0"),
        ({"coupling": lambda w, d, _: (d @ w).detach()}, "do not detach"),
        (
            {"coupling": lambda w, d, i: torch.arange(1.0, len(i) + 1) * (d @ w)},
            "row k of delta belongs to block index",
        ),
        ({"f": 3.0}, "f must be a convex function of sihg.core.prox, got float"),
        ({"f": {"a": L1()}}, r"f has the keys \['a'\], w0 has \[\]"),
        ({"g": [L1()]}, "g is a list of 1 functions for 2 blocks"),
        ({"g": [L1(), None, 3]}, "g is a list of 3 functions for 2 blocks"),
        ({"g": Box(torch.zeros(5), torch.ones(5))}, "g does not fit the shape of its variable"),
        ({"f": SquaredL2(1.0, torch.zeros(2, 3))}, "f's prox gives 6 numbers for 3"),
        ({"constants": {"L13": 1.0}}, r"constants \['L13'\]: known are L11"),
        ({"constants": {"L11": float("nan")}}, "constant L11 must be finite and >= 0, got nan"),
        ({"by_hand": Gradients(lambda _w, d, _i: d.sum(0), lambda w, d, _: -w.expand_as(d))}, "by_hand.delta is not"),
    ],
)
def test_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Problem(**{"coupling": inner, "w0": W, "delta0": D, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"blocks": torch.ones(2, 3)}, r"blocks must have shape \(n, d, m\), got \(2, 3\)"),
        ({"blocks": [LinearMap(lambda w: w, lambda d: d)]}, "give w0 and delta0"),
        ({"blocks": torch.ones(2, 3, 4), "w0": torch.ones(5)}, r"block 0 has shape \(3, 4\), .* ask for \(3, 5\)"),
        ({"blocks": torch.ones(2, 3, 4), "delta0": torch.ones(1, 3)}, "2 blocks but delta0 has 1"),
        (
            {"blocks": [LinearMap(lambda w: 2 * w, lambda d: d)], "w0": W, "delta0": torch.ones(1, 3)},
            r"block 0: <A w, d> = .* but <w, A\^T d> = .*: correct the adjoint",
        ),
        (
            {"blocks": [LinearMap(lambda w: w, lambda d: d[:2])], "w0": W, "delta0": torch.ones(1, 3)},
            "adjoint 2 for 3",
        ),
    ],
)
def test_refused_bilinear(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
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


def test_what_an_index_ignoring_or_partial_coupling_may_do() -> None:
    """A coupling may leave out w or delta: its gradient there is zero."""
    only_delta = Problem(lambda _w, d, _: -(d**2).sum(1), W, D)
    assert not only_delta.gradient_w(only_delta.w0, only_delta.delta0, only_delta.all).any()
    only_w = Problem(lambda w, _d, i: (w**2).sum() * torch.ones(len(i)), W, D)
    assert not only_w.gradient_delta(only_w.w0, only_w.delta0, only_w.all).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"delta0": torch.ones(2, 4)}, r"coupling fails at \(w0, delta0\) with w \(3,\) and delta \(2, 4\)"),
        ({"coupling": lambda w, d, _: d @ w**2, "linear_in_w": True}, "grad_w phi changes with w"),
        ({"closed_form": lambda _w, c, _t, _i: 0 * c + 5}, "closed_form does not solve the implicit step"),
        ({"closed_form": lambda _w, c, _t, _i: c[:1]}, "closed_form does not solve the implicit step"),
        ({"coupling": lambda w, d, _: (d @ w).abs().sqrt(), "w0": torch.zeros(3)}, "in w is not finite at"),
        ({"g": Box(torch.zeros(2, 3), torch.ones(2, 3))}, "give its tensors the shape of w, or of one block"),
    ],
)
def test_declarations_that_do_not_hold(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Problem(**{"coupling": inner, "w0": W, "delta0": D, **arguments})


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([], "blocks is empty"),
        ([3.0], "block 0 must be a matrix or a LinearMap, got float"),
        ([torch.ones(3)], "block 0"),
    ],
)
def test_bilinear_blocks_that_are_none(blocks: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Problem.bilinear(blocks)


def test_bilinear_dtypes() -> None:
    with pytest.raises(InputError, match=r"matrix 0 is torch.float32, w0 torch.float64"):
        Problem.bilinear(torch.ones(1, 2, 3), w0=torch.ones(3, dtype=torch.float64))


def test_dicts_are_taken_by_key() -> None:
    def coupling(w: dict[str, Tensor], delta: Tensor, index: Tensor) -> Tensor:  # noqa: ARG001
        return delta @ w["a"] + w["b"].square().sum()

    a, b = torch.arange(3.0), torch.arange(2.0) + 5
    problem = Problem(coupling, {"a": a, "b": b}, D)
    one = measure.saddle_norm_squared(problem, {"a": a, "b": b}, D)
    assert measure.saddle_norm_squared(problem, {"b": b, "a": a}, D) == one
    with pytest.raises(InputError, match=r"w has the keys \['a', 'c'\], the problem's has \['a', 'b'\]"):
        measure.saddle_norm_squared(problem, {"a": a, "c": b}, D)
    with pytest.raises(InputError, match="w has shapes"):
        measure.saddle_norm_squared(problem, {"a": b, "b": a}, D)
    with pytest.raises(InputError, match="delta has 1 blocks, not 2"):
        measure.saddle_norm_squared(problem, {"a": a, "b": b}, D[:1])


def test_whole_and_single_blocks_agree() -> None:
    """The tall matrix for all blocks gives what the blocks give one by one."""
    A = torch.randn(4, 3, 5, dtype=torch.float64)
    tall, listed = Problem.bilinear(A), Problem.bilinear(list(A))
    w, d = torch.randn(5, dtype=torch.float64), torch.randn(12, dtype=torch.float64)
    for one, other in zip(tall.gradients(w, d), listed.gradients(w, d), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)
