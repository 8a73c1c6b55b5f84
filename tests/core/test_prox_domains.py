"""Outside the domain and on its faces; parameters that are refused."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sihg.core.prox import (
    L1,
    Box,
    Convex,
    ElasticNet,
    L2Ball,
    LinfBall,
    NonNegative,
    Simplex,
    SquaredL2,
    Translated,
)
from tests.core.convex_cases import F64, INF, tensor
from tests.refused import refused

INFEASIBLE: dict[str, tuple[Convex, list[float]]] = {
    "box above": (Box(-1.0, 1.0), [0.0, 1.0 + 1e-12]),
    "box below": (Box(-1.0, 1.0), [0.0, -1.0 - 1e-12]),
    "box point": (Box(tensor([0.0, 1.0]), tensor([0.0, 2.0])), [1e-300, 1.5]),
    "nonnegative": (NonNegative(), [1.0, -1e-300]),
    "linf": (LinfBall(0.5, tensor([3.0, 4.0])), [3.0, 3.4]),
    "l2": (L2Ball(1.0), [0.6, 0.8 + 1e-12]),
    "l2 point": (L2Ball(0.0, 2.0), [2.0, 2.0 + 1e-12]),
    "simplex sum above": (Simplex(), [0.5, 0.5 + 1e-12]),
    "simplex sum below": (Simplex(), [0.5, 0.5 - 1e-12]),
    "simplex sign": (Simplex(), [1.5, -0.5]),
    "simplex nothing": (Simplex(), [0.0, 0.0]),
    "scaled": (NonNegative().scaled(0.1), [1.0, -1.0]),
    "translated": (NonNegative().translated(1.0), [2.0, 0.5]),
    "not a number": (Box(-1.0, 1.0), [0.0, math.nan]),
}


@pytest.mark.parametrize(("h", "u"), INFEASIBLE.values(), ids=INFEASIBLE.keys())
def test_outside_the_domain_value_and_distance_are_infinite(h: Convex, u: list[float]) -> None:
    both = torch.stack([tensor(u), h.prox(tensor([0.2, 0.1]), 1.0)])
    assert h.value(both, batch=1).tolist() == [INF, 0.0]
    assert h.distance(both, torch.ones(2, 2, dtype=F64), batch=1).isinf().tolist() == [True, False]


@pytest.mark.parametrize(
    ("u", "v", "expected"),
    [
        ([0.0, 0.0], [3.0, -4.0], [3.0, 4.0]),  # inside: |v|
        ([1.0, 1.0], [3.0, -4.0], [0.0, 4.0]),  # the upper face: (-v)_+
        ([-1.0, -1.0], [3.0, -4.0], [3.0, 0.0]),  # the lower face: (v)_+
    ],
)
def test_faces_of_a_box_by_hand(u: list[float], v: list[float], expected: list[float]) -> None:
    assert Box(-1.0, 1.0).distance(tensor(u), tensor(v), batch=1).tolist() == expected
    assert Box(1.0, 1.0).distance(torch.ones(2, dtype=F64), tensor(v)).item() == 0.0


BAD: dict[str, tuple[Callable[[], Convex], str, str, float]] = {
    "l1": (lambda: L1(-1.5), "weight", "L1", -1.5),
    "l1 nan": (lambda: L1(math.nan), "weight", "L1", math.nan),
    "squared": (lambda: SquaredL2(-2.0), "weight", "SquaredL2", -2.0),
    "squared centre": (lambda: SquaredL2(1.0, tensor([0.0, math.nan])), "centre", "SquaredL2", math.nan),
    "elastic l1": (lambda: ElasticNet(-0.1, 1.0), "l1", "ElasticNet", -0.1),
    "elastic l2": (lambda: ElasticNet(0.1, -1.0), "l2", "ElasticNet", -1.0),
    "box nan": (lambda: Box(0.0, math.nan), "upper", "Box", math.nan),
    "box empty": (lambda: Box(INF, INF), "lower", "Box", INF),
    "linf": (lambda: LinfBall(-0.5), "radius", "LinfBall", -0.5),
    "linf centre": (lambda: LinfBall(0.5, math.nan), "centre", "LinfBall", math.nan),
    "l2": (lambda: L2Ball(-0.5), "radius", "L2Ball", -0.5),
    "l2 infinite": (lambda: L2Ball(INF), "radius", "L2Ball", INF),
    "simplex": (lambda: Simplex(0.0), "total", "Simplex", 0.0),
    "factor": (lambda: L1().scaled(0.0), "factor", "Scaled", 0.0),
    "shift": (lambda: Translated(L1(), tensor([INF])), "shift", "Translated", INF),
}


@pytest.mark.parametrize(("make", "name", "function", "value"), BAD.values(), ids=BAD.keys())
def test_bad_parameters_are_named_with_their_value(
    make: Callable[[], Convex], name: str, function: str, value: float
) -> None:
    with refused(
        "convex-parameter-range", name=name, function=function, **({} if math.isnan(value) else {"value": value})
    ):
        make()


@pytest.mark.parametrize("lower", [2.0, tensor([0.0, 2.0])])
def test_crossed_bounds_of_a_box_are_refused(lower: float | Tensor) -> None:
    with refused("box-bounds", lower=2.0, upper=1.0):
        Box(lower, 1.0)


def test_functions_print_as_they_are_written() -> None:
    assert repr(L1(0.5)) == "L1(weight=0.5)"
    assert repr(NonNegative()) == "NonNegative()"
    assert repr(LinfBall(0.5).translated(1.0)) == ("Translated(function=LinfBall(radius=0.5, centre=0.0), shift=1.0)")
