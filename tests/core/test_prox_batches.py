"""Proximal maps of many blocks at once, of any shape, in both precisions."""

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
    Zero,
)
from tests.core.convex_cases import F64, INF

FAMILY: dict[str, Callable[[Tensor], Convex]] = {
    "zero": lambda _: Zero(),
    "l1": lambda _: L1(0.7),
    "elastic": lambda _: ElasticNet(0.7, 0.4),
    "squared": lambda c: SquaredL2(0.6, c),
    "nonnegative": lambda _: NonNegative(),
    "box": lambda c: Box(c, c + 1),
    "box mixed": lambda c: Box(-INF, c),
    "linf": lambda c: LinfBall(0.5, c),
    "l2 origin": lambda _: L2Ball(0.9),
    "l2": lambda c: L2Ball(0.9, c),
    "simplex": lambda _: Simplex(2.0),
    "simplex translated": lambda c: Simplex().translated(c),
    "l2 scaled": lambda c: L2Ball(1.5).translated(c).scaled(2.0),
}
family = pytest.mark.parametrize("make", FAMILY.values(), ids=FAMILY.keys())


@family
@pytest.mark.parametrize("shape", [(3, 5), (1, 5), (3, 2, 3), (3, 1), (3,), (0, 4), (2, 0)], ids=str)
@pytest.mark.parametrize("strided", [False, True])
def test_a_batch_is_a_loop_over_blocks(make: Callable[[Tensor], Convex], shape: tuple[int, ...], strided: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    z, c, v = (torch.randn(shape, dtype=F64, generator=generator) for _ in range(3))
    if strided:
        z, v = (x.transpose(0, -1).contiguous().transpose(0, -1) for x in (z, v))
    if 0 in shape[1:] and isinstance(getattr(make(c), "function", make(c)), Simplex):
        pytest.skip("no simplex without entries")
    whole = make(c)
    u = whole.prox(z, 0.7, batch=1)
    assert u.shape == z.shape
    for result in (whole.value(u, batch=1), whole.distance(u, v, batch=1)):
        assert result.shape == shape[:1]
        assert result.dtype == F64
    for i in range(shape[0]):
        h = make(c[i])
        assert h.value(u[i]).shape == ()
        torch.testing.assert_close(u[i], h.prox(z[i], 0.7))
        torch.testing.assert_close(whole.value(u, batch=1)[i], h.value(u[i]))
        torch.testing.assert_close(whole.distance(u, v, batch=1)[i], h.distance(u[i], v[i]))


@family
def test_a_block_of_any_shape_is_one_vector(make: Callable[[Tensor], Convex]) -> None:
    z, c, v = torch.randn(3, 2, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
    h, flat = make(c), make(c.flatten())
    u = h.prox(z, 0.7)
    torch.testing.assert_close(u.flatten(), flat.prox(z.flatten(), 0.7))
    torch.testing.assert_close(h.value(u), flat.value(u.flatten()))
    torch.testing.assert_close(h.distance(u, v), flat.distance(u.flatten(), v.flatten()))


@family
def test_two_batch_dimensions_are_one_long_batch(make: Callable[[Tensor], Convex]) -> None:
    z, c, v = torch.randn(3, 2, 3, 4, dtype=F64, generator=torch.Generator().manual_seed(0))
    h, long = make(c), make(c.flatten(0, 1))
    u = h.prox(z, 0.7, batch=2)
    torch.testing.assert_close(u.flatten(0, 1), long.prox(z.flatten(0, 1), 0.7, batch=1))
    torch.testing.assert_close(
        h.distance(u, v, batch=2).flatten(), long.distance(u.flatten(0, 1), v.flatten(0, 1), batch=1)
    )


@family
@pytest.mark.parametrize("d", [1, 2, 10, 3072])
@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
def test_rounded_prox_is_feasible_and_on_its_face(
    make: Callable[[Tensor], Convex], d: int, dtype: torch.dtype, size: float
) -> None:
    """In both precisions, with blocks and centres far larger and far smaller than the set."""
    generator = torch.Generator().manual_seed(d)
    z, c = (size * torch.randn(8, d, dtype=dtype, generator=generator) for _ in range(2))
    z[1] = z[1, 0]
    z[2, 1:] = z[2, 0] - 0.9 * size
    z[3:6] = c[3:6] + z[3:6] / size  # as near the centre as the set is large
    h = make(c)
    p = h.prox(z, 0.5, batch=1)
    assert p.dtype == dtype
    assert h.value(p, batch=1).isfinite().all()
    # A far centre turns u - centre, and with it the normal of a ball, by a relative rounding of `size`.
    rounding = 100 * torch.finfo(dtype).eps * (1 + size) * (z.norm(dim=1) + c.norm(dim=1) + d)
    assert (h.distance(p, (z - p) / 0.5, batch=1) <= rounding).all()


def test_simplex_keeps_exact_zeros_and_the_sum_whatever_the_size_of_z() -> None:
    z = torch.tensor([[0.3, 0.9, -5.0, 0.05]]) + torch.tensor([[0.0], [4096.0]])
    u = Simplex().prox(z, 1.0, batch=1)
    torch.testing.assert_close(u, torch.tensor([[0.2, 0.8, 0.0, 0.0]] * 2), rtol=0, atol=2e-3)
    assert (u[:, 2:] == 0).all()
    torch.testing.assert_close(u.sum(1), torch.ones(2), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
@pytest.mark.parametrize("radius", [0.0, 0.1, 0.3, 1.7, 49.0])
def test_a_ball_leaves_its_inside_exactly_alone(dtype: torch.dtype, radius: float) -> None:
    z = 0.3 * radius * torch.rand(5, 4, dtype=dtype, generator=torch.Generator().manual_seed(0))
    assert torch.equal(L2Ball(radius).prox(z, 1.0, batch=1), z)


def test_a_long_block_in_float32_lands_on_the_sphere() -> None:
    z = torch.full((10**6, 2), 0.1).T
    p = L2Ball(1.0).prox(z, 1.0, batch=1)
    torch.testing.assert_close(p.double().norm(dim=1), torch.ones(2, dtype=F64), rtol=0, atol=1e-6)
    assert (L2Ball(1.0).distance(p, z - p, batch=1) < 1e-3).all()


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
def test_points_from_elsewhere_are_feasible(dtype: torch.dtype) -> None:
    z = torch.randn(8, 3072, dtype=dtype, generator=torch.Generator().manual_seed(0))
    assert (Simplex().value(z.softmax(1), batch=1) == 0).all()
    assert (Simplex().value(torch.full((10,), 0.1, dtype=dtype)) == 0).all()
    sphere = torch.nn.functional.normalize(z)
    assert (L2Ball(1.0).distance(sphere, 3 * sphere, batch=1) < 1e-2).all()
