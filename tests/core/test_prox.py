"""The equations of sihg.core.prox, each against a plain description of the function solved by SciPy."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import lsq_linear, minimize
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
    Zero,
)
from sihg.errors import InputError

Array = NDArray[np.float64]
INF = math.inf
D = 4
C = np.array([0.5, -1.0, 0.0, 2.0])
F64 = torch.float64


def tensor(x: Array | list[float]) -> Tensor:
    return torch.tensor(x, dtype=F64)


@dataclass(frozen=True)
class Plain:
    """a ||u - s||_1 + (b/2) ||u - c||^2 + indicator of the bounds, of ||u - m|| <= r and of sum_j (u - s)_j = total."""

    a: float = 0.0
    s: Array | float = 0.0
    b: float = 0.0
    c: Array | float = 0.0
    lower: Array | float = -INF
    upper: Array | float = INF
    r: float | None = None
    m: Array | float = 0.0
    total: float | None = None

    def value(self, u: Array) -> float:
        outside = (
            np.any(u < self.lower - 1e-12)
            or np.any(u > self.upper + 1e-12)
            or (self.r is not None and np.linalg.norm(u - self.m) > self.r + 1e-12)
            or (self.total is not None and abs(np.sum(u - self.s) - self.total) > 1e-12)
        )
        finite = self.a * np.sum(np.abs(u - self.s)) + self.b / 2 * np.sum((u - self.c) ** 2)
        return INF if outside else float(finite)

    def prox(self, z: Array, eta: float) -> Array:
        """SLSQP on (u, e) with e >= |u - s|, which makes every one of these problems smooth."""
        eye, s = np.eye(D), np.broadcast_to(self.s, D)
        constraints = [
            {"type": "ineq", "fun": lambda x: x[D:] - x[:D] + s, "jac": lambda _: np.hstack([-eye, eye])},
            {"type": "ineq", "fun": lambda x: x[D:] + x[:D] - s, "jac": lambda _: np.hstack([eye, eye])},
        ]
        if self.r is not None:
            constraints.append({"type": "ineq", "fun": lambda x: self.r**2 - np.sum((x[:D] - self.m) ** 2)})
        if self.total is not None:
            constraints.append({"type": "eq", "fun": lambda x: np.sum(x[:D] - s) - self.total})

        def objective(x: Array) -> tuple[float, Array]:
            u, e = x[:D], x[D:]
            f = self.a * e.sum() + self.b / 2 * np.sum((u - self.c) ** 2) + np.sum((u - z) ** 2) / (2 * eta)
            return f, np.concatenate([self.b * (u - self.c) + (u - z) / eta, np.full(D, self.a)])

        lower, upper = np.broadcast_to(self.lower, D), np.broadcast_to(self.upper, D)
        start = np.clip(z, lower, upper)
        found = minimize(
            objective,
            np.concatenate([start, np.abs(start - s)]),
            jac=True,
            method="SLSQP",
            bounds=[*zip(lower, upper, strict=True), *[(0.0, None)] * D],
            constraints=constraints,
            options={"ftol": 1e-15, "maxiter": 500},
        )
        return np.asarray(found.x[:D], dtype=np.float64)

    def distance(self, u: Array, v: Array) -> float:
        """Bounded least squares over the generators of the subdifferential at u."""
        eye, s = np.eye(D), np.broadcast_to(self.s, D)
        fixed = self.b * (u - self.c) + self.a * np.sign(u - s)
        generators = [(np.zeros(D), -1.0, 1.0)]
        generators += [(eye[j], -self.a, self.a) for j in range(D) if self.a > 0 and u[j] == s[j]]
        generators += [(eye[j], 0, INF) for j in range(D) if abs(u[j] - np.broadcast_to(self.upper, D)[j]) < 1e-12]
        generators += [(eye[j], -INF, 0) for j in range(D) if abs(u[j] - np.broadcast_to(self.lower, D)[j]) < 1e-12]
        if self.r is not None and abs(np.linalg.norm(u - self.m) - self.r) < 1e-12:
            generators += [(u - self.m, 0, INF)] if self.r else [(e, -INF, INF) for e in eye]
        if self.total is not None:
            generators.append((np.ones(D), -INF, INF))
        columns, low, high = zip(*generators, strict=True)
        found = lsq_linear(np.stack(columns, 1), v - fixed, (low, high), method="bvls", tol=1e-14)
        return float(np.linalg.norm(found.fun))


BOX = (np.array([-INF, -1.0, 0.5, -0.2]), np.array([0.3, INF, 0.5, 0.7]))
CASES: dict[str, tuple[Convex, Plain]] = {
    "zero": (Zero(), Plain()),
    "l1": (L1(0.7), Plain(a=0.7)),
    "l1 weight 0": (L1(0.0), Plain()),
    "squared": (SquaredL2(0.6), Plain(b=0.6)),
    "squared centre": (SquaredL2(0.6, tensor(C)), Plain(b=0.6, c=C)),
    "squared number": (SquaredL2(2.0, -1.5), Plain(b=2.0, c=-1.5)),
    "elastic": (ElasticNet(0.7, 0.4), Plain(a=0.7, b=0.4)),
    "box": (Box(-0.5, 1.25), Plain(lower=-0.5, upper=1.25)),
    "box tensors": (Box(tensor(BOX[0]), tensor(BOX[1])), Plain(lower=BOX[0], upper=BOX[1])),
    "box mixed": (Box(tensor(C), 2.5), Plain(lower=C, upper=2.5)),
    "box half": (Box(-INF, tensor(C)), Plain(upper=C)),
    "nonnegative": (NonNegative(), Plain(lower=0.0)),
    "linf": (LinfBall(0.8), Plain(lower=-0.8, upper=0.8)),
    "linf centre": (LinfBall(0.8, tensor(C)), Plain(lower=C - 0.8, upper=C + 0.8)),
    "l2": (L2Ball(1.3), Plain(r=1.3)),
    "l2 centre": (L2Ball(1.3, tensor(C)), Plain(r=1.3, m=C)),
    "l2 point": (L2Ball(0.0, tensor(C)), Plain(lower=C, upper=C)),
    "simplex": (Simplex(), Plain(lower=0.0, total=1.0)),
    "simplex large": (Simplex(3.5), Plain(lower=0.0, total=3.5)),
    "l1 scaled": (L1(0.7).scaled(3.0), Plain(a=2.1)),
    "l1 translated": (L1(0.7).translated(tensor(C)), Plain(a=0.7, s=C)),
    "elastic both": (ElasticNet(0.7, 0.4).scaled(2.0).translated(tensor(C)), Plain(a=1.4, b=0.8, s=C, c=C)),
    "box translated": (Box(-0.1, 0.3).translated(tensor(C)), Plain(lower=C - 0.1, upper=C + 0.3)),
    "l2 both": (L2Ball(1.3).translated(tensor(C)).scaled(0.5), Plain(r=1.3, m=C)),
    "simplex translated": (Simplex().translated(tensor(C)), Plain(lower=C, s=C, total=1.0)),
}
table = pytest.mark.parametrize(("h", "plain"), CASES.values(), ids=CASES.keys())
functions = pytest.mark.parametrize("h", [h for h, _ in CASES.values()], ids=CASES.keys())

# Small grids make ties, kinks and faces likely; floats make everything else likely.
entries = st.one_of(st.sampled_from([-2.0, -1.0, 0.0, 0.3, 0.5, 1.0]), st.floats(-10, 10, allow_subnormal=False))
vectors = st.lists(entries, min_size=D, max_size=D).map(tensor)
grid = st.lists(st.integers(-80, 80).map(lambda k: k / 8), min_size=D, max_size=D).map(tensor)
steps = st.floats(0.05, 20.0)
quickly = settings(max_examples=30, deadline=None)


def points(seed: int) -> tuple[Array, Array, float]:
    rng = np.random.default_rng(seed)
    return 2 * rng.standard_normal(D), 2 * rng.standard_normal(D), float(rng.uniform(0.2, 3.0))


@table
@pytest.mark.parametrize("seed", range(4))
def test_prox_is_the_minimiser_scipy_finds(h: Convex, plain: Plain, seed: int) -> None:
    z, _, eta = points(seed)
    p = h.prox(tensor(z), eta).numpy()
    np.testing.assert_allclose(p, plain.prox(z, eta), atol=2e-6)


@table
@pytest.mark.parametrize("seed", range(8))
def test_distance_is_the_least_squares_residual_over_the_generators(h: Convex, plain: Plain, seed: int) -> None:
    z, v, eta = points(seed)
    u = h.prox(tensor(z), eta)
    np.testing.assert_allclose(h.distance(u, tensor(v)).item(), plain.distance(u.numpy(), v), atol=1e-9)


@table
@pytest.mark.parametrize("seed", range(4))
def test_value_is_the_plain_formula(h: Convex, plain: Plain, seed: int) -> None:
    z, _, eta = points(seed)
    for u in (tensor(z), h.prox(tensor(z), eta)):
        np.testing.assert_allclose(h.value(u).item(), plain.value(u.numpy()), rtol=1e-12)


@functions
@quickly
@given(z=vectors, eta=steps)
def test_prox_certificate_lies_in_the_subdifferential(h: Convex, z: Tensor, eta: float) -> None:
    p = h.prox(z, eta)
    scale = 1 + z.abs().max().item() / eta
    assert h.value(p).isfinite()
    assert h.distance(p, (z - p) / eta).item() <= 1e-9 * scale


@functions
@quickly
@given(x=vectors, y=vectors, eta=steps)
def test_prox_is_firmly_nonexpansive(h: Convex, x: Tensor, y: Tensor, eta: float) -> None:
    d = h.prox(x, eta) - h.prox(y, eta)
    assert d @ d <= d @ (x - y) + 1e-12


@functions
@quickly
@given(x=vectors, y=vectors, v=vectors, eta=steps)
def test_distance_is_at_least_what_the_subgradient_inequality_demands(
    h: Convex, x: Tensor, y: Tensor, v: Tensor, eta: float
) -> None:
    """Every g in dh(p) has <g, q - p> <= h(q) - h(p), so ||v - g|| ||q - p|| >= <v, q - p> - h(q) + h(p)."""
    p, q = h.prox(x, eta), h.prox(y, eta)
    d = q - p
    assume(d.norm() > 1e-3 or not h.distance(p, v))
    gap = h.value(q) - h.value(p)
    assert h.distance(p, v) * d.norm() >= v @ d - gap - 1e-9
    # The certificate pushed off the subdifferential: by construction at least ||d|| away.
    if d.norm() > 1e-3:
        g = (x - p) / eta
        pushed = g + d * (1 + (gap - g @ d) / (d @ d))
        assert h.distance(p, pushed) >= d.norm() * (1 - 1e-6)


def block_soft(z: Tensor, eta: float) -> Tensor:
    """The prox of 1.3 ||u||_2, the conjugate of the indicator of L2Ball(1.3)."""
    return torch.mul(z, max(0.0, 1 - 1.3 * eta / max(math.hypot(*z.tolist()), 1e-300)))


CONJUGATES: dict[str, tuple[Convex, Callable[[Tensor, float], Tensor]]] = {
    "zero, point": (Zero(), Box(0.0, 0.0).prox),
    "point, zero": (LinfBall(0.0), Zero().prox),
    "l1, linf": (L1(0.7), LinfBall(0.7).prox),
    "linf, l1": (LinfBall(0.7), L1(0.7).prox),
    "l2, norm": (L2Ball(1.3), block_soft),
    "nonnegative, nonpositive": (NonNegative(), Box(-INF, 0.0).prox),
    "squared, squared": (SquaredL2(0.4, tensor(C)), SquaredL2(2.5, -0.4 * tensor(C)).prox),
    # (a h)* = a h*(. / a): the same ball a times as large; h(. - s)* = h* + <s, .>: the prox at z - eta s.
    "scaled l1, linf": (L1(0.7).scaled(2.0), LinfBall(1.4).prox),
    "translated l1, linf": (L1(0.7).translated(tensor(C)), lambda z, eta: LinfBall(0.7).prox(z - eta * tensor(C), eta)),
}


@pytest.mark.parametrize(("h", "conjugate"), CONJUGATES.values(), ids=CONJUGATES.keys())
@quickly
@given(z=vectors, eta=steps)
def test_moreau_identity(h: Convex, conjugate: Callable[[Tensor, float], Tensor], z: Tensor, eta: float) -> None:
    torch.testing.assert_close(h.prox(z, eta) + eta * conjugate(z / eta, 1 / eta), z, rtol=1e-12, atol=1e-12)


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


@functions
@quickly
@given(
    z=grid, v=vectors, eta=steps, factor=st.floats(0.1, 10.0), shift=st.one_of(grid, grid.map(lambda x: x[0].item()))
)
def test_scaled_and_translated(
    h: Convex, z: Tensor, v: Tensor, eta: float, factor: float, shift: Tensor | float
) -> None:
    close = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-9)
    scaled, moved = h.scaled(factor), h.translated(shift)
    p = h.prox(z, eta)
    close(scaled.prox(z, eta), h.prox(z, factor * eta))
    close(scaled.value(p), factor * h.value(p))
    close(scaled.distance(p, factor * v), factor * h.distance(p, v))
    close(moved.prox(z + shift, eta), p + shift)
    # A translation cannot see how far p is from a face or a kink by less than its rounding; the grid avoids that.
    assume(((p == 0) | (p.abs() > 1e-9)).all())
    u = p + shift
    close(moved.value(u), h.value(p))
    close(moved.distance(u, v), h.distance(p, v))


BAD: dict[str, tuple[Callable[[], Convex], str]] = {
    "l1": (lambda: L1(-1.5), r"L1: weight must be finite and >= 0, got -1\.5: choose a weight that is"),
    "l1 nan": (lambda: L1(math.nan), r"L1: weight .* got nan"),
    "squared": (lambda: SquaredL2(-2.0), r"SquaredL2: weight .* got -2\.0"),
    "squared centre": (lambda: SquaredL2(1.0, tensor([0.0, math.nan])), r"SquaredL2: centre .* got nan"),
    "elastic l1": (lambda: ElasticNet(-0.1, 1.0), r"ElasticNet: l1 .* got -0\.1"),
    "elastic l2": (lambda: ElasticNet(0.1, -1.0), r"ElasticNet: l2 .* got -1\.0"),
    "box": (lambda: Box(2.0, 1.0), r"^Box: lower must be <= upper, got lower=2\.0, upper=1\.0: swap them$"),
    "box tensor": (lambda: Box(tensor([0.0, 3.0]), 1.0), r"got lower=3\.0, upper=1\.0: swap them"),
    "box nan": (lambda: Box(0.0, math.nan), r"Box: upper must be a number > -inf, got nan"),
    "box empty": (lambda: Box(INF, INF), r"Box: lower must be a number < inf, got inf"),
    "linf": (lambda: LinfBall(-0.5), r"LinfBall: radius .* got -0\.5"),
    "linf centre": (lambda: LinfBall(0.5, math.nan), r"LinfBall: centre .* got nan"),
    "l2": (lambda: L2Ball(-0.5), r"L2Ball: radius .* got -0\.5"),
    "l2 infinite": (lambda: L2Ball(INF), r"L2Ball: radius .* got inf"),
    "simplex": (lambda: Simplex(0.0), r"Simplex: total must be finite and > 0, got 0\.0"),
    "factor": (lambda: L1().scaled(0.0), r"Scaled: factor must be finite and > 0, got 0\.0"),
    "shift": (lambda: Translated(L1(), tensor([INF])), r"Translated: shift must be finite, got inf"),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD.keys())
def test_bad_parameters_are_named_with_their_value(make: Callable[[], Convex], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_functions_print_as_they_are_written() -> None:
    assert repr(L1(0.5)) == "L1(weight=0.5)"
    assert repr(NonNegative()) == "NonNegative()"
    assert repr(LinfBall(0.5).translated(1.0)) == ("Translated(function=LinfBall(radius=0.5, centre=0.0), shift=1.0)")
