"""The sets of perturbations: what is promised of every point they give."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sihg.robust.threat import Ball, Bounds
from tests.refused import refused

quickly = settings(max_examples=40, deadline=None)
SHAPES = st.sampled_from([(1,), (7,), (1, 5, 4), (3, 2, 2)])
ROUNDING = 1e-12


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def lengths(delta: Tensor, norm: str) -> Tensor:
    order = {"linf": math.inf, "l2": 2, "l1": 1}[norm]
    return torch.stack([torch.linalg.vector_norm(row, ord=order) for row in delta.flatten(1)])


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """A ball, a batch within its bounds, and a seed for whatever else is random."""
    shape, seed = draw(SHAPES), draw(st.integers(0, 10**6))
    eps, norm = draw(st.floats(0, 0.9)), draw(st.sampled_from(["linf", "l2", "l1"]))
    x = torch.rand(draw(st.integers(1, 5)), *shape, generator=seeded(seed), dtype=torch.float64)
    x = torch.where(torch.rand(x.shape, generator=seeded(seed + 1)) < 0.3, x.round(), x)  # some on the bounds
    kind = draw(st.sampled_from(["none", "scalars", "features"]))
    bounds: Bounds = None
    if kind == "scalars":
        bounds = (0.0, 1.0)
    elif kind == "features":
        spread = torch.rand(shape, generator=seeded(seed + 2), dtype=torch.float64)
        bounds = (-spread, 1 + spread)
    return {"ball": Ball(eps, norm, bounds), "x": x, "seed": seed, "tau": draw(st.floats(0, 1.5))}


def assert_inside(ball: Ball, x: Tensor, delta: Tensor) -> None:
    assert (lengths(delta, ball.norm) <= ball.eps + ROUNDING).all()
    if ball.bounds is not None:
        assert (x + delta >= torch.as_tensor(ball.bounds[0]) - ROUNDING).all()
        assert (x + delta <= torch.as_tensor(ball.bounds[1]) + ROUNDING).all()


@quickly
@given(cases())
def test_projections_starts_and_steps_stay_inside(case: dict[str, Any]) -> None:
    ball, x, draw = case["ball"], case["x"], seeded(case["seed"])
    feasible = ball.around(x)
    far = torch.randn(x.shape, generator=draw, dtype=x.dtype)
    assert_inside(ball, x, feasible.project_(far.clone()))
    start = feasible.noisy(None, ball.eps, draw)
    assert_inside(ball, x, start)
    assert_inside(ball, x, feasible.noisy(far, case["tau"], draw))
    for _ in range(3):
        assert_inside(ball, x, feasible.climb_(start, torch.randn(x.shape, generator=draw, dtype=x.dtype), ball.eps))


@quickly
@given(cases())
def test_near_keeps_the_small_ball_too(case: dict[str, Any]) -> None:
    """Also around a centre outside the set, which is projected first, and twice in a row."""
    ball, x, draw, tau = case["ball"], case["x"], seeded(case["seed"]), case["tau"]
    far = torch.randn(x.shape, generator=draw, dtype=x.dtype)
    given_centre = far.clone()
    near = ball.around(x).near(far, tau)
    centre = ball.around(x).project_(far.clone())
    assert torch.equal(far, given_centre)
    inner = near.near(centre + 0.1, tau / 2)
    inner_centre = near.project_(centre + 0.1)
    for some, middle, radius in ((near, centre, tau), (inner, centre, tau), (inner, inner_centre, tau / 2)):
        delta = some.noisy(far, tau, draw)
        some.climb_(delta, torch.randn(x.shape, generator=draw, dtype=x.dtype), 2 * tau)
        assert_inside(ball, x, delta)
        assert (lengths(delta - middle, ball.norm) <= radius + ROUNDING).all()


@quickly
@given(cases())
def test_points_of_the_set_stay_and_rows_agree(case: dict[str, Any]) -> None:
    ball, x, draw = case["ball"], case["x"], seeded(case["seed"])
    near = ball.around(x).near(torch.randn(x.shape, generator=draw, dtype=x.dtype), case["tau"])
    inside = near.noisy(None, ball.eps, draw)
    torch.testing.assert_close(near.project_(inside.clone()), inside, rtol=0, atol=ROUNDING)
    far = torch.randn(x.shape, generator=draw, dtype=x.dtype)
    chosen = torch.randperm(len(x), generator=draw)[: 1 + len(x) // 2]
    assert torch.equal(near.rows(chosen).project_(far[chosen]), near.project_(far.clone())[chosen])


@pytest.mark.parametrize("bounds", [None, (0.0, 1.0)])
def test_the_linf_projection_is_a_clamp(bounds: Bounds) -> None:
    x = torch.rand(5, 3, generator=seeded(0), dtype=torch.float64)
    far = torch.randn(5, 3, generator=seeded(1), dtype=torch.float64)
    expected = [
        [
            max(max(-0.3, -v if bounds else -9.0), min(min(0.3, 1 - v if bounds else 9.0), d))
            for v, d in zip(row, moves, strict=True)
        ]
        for row, moves in zip(x.tolist(), far.tolist(), strict=True)
    ]
    assert Ball(0.3, "linf", bounds).around(x).project_(far).tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e-25, 1e-36, 1e20])
def test_an_l2_step_has_its_length(dtype: torch.dtype, scale: float) -> None:
    """Also for gradients whose squares are no floats, as those of a confident network."""
    x = torch.zeros(4, 3, 2, dtype=dtype)
    g = torch.randn(4, 3, 2, generator=seeded(0), dtype=torch.float64).to(dtype)
    delta = Ball(100.0, "l2", None).around(x).climb_(x.clone(), (g * scale).clone(), 0.7)
    torch.testing.assert_close(lengths(delta, "l2"), torch.full((4,), 0.7, dtype=dtype))
    directions = g / lengths(g, "l2")[:, None, None]
    torch.testing.assert_close(delta, 0.7 * directions, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_a_zero_gradient_stays(norm: str) -> None:
    x = torch.full((3, 4), 0.5)
    delta = Ball(0.3, norm).around(x).noisy(None, 0.1, seeded(0))
    assert torch.equal(Ball(0.3, norm).around(x).climb_(delta.clone(), torch.zeros(3, 4), 0.2), delta)


def test_a_linf_step_has_its_length_in_every_entry() -> None:
    x = torch.zeros(2, 5, dtype=torch.float64)
    g = torch.tensor([[1e-300, -5, 0, 2, -1e-9]] * 2, dtype=torch.float64)
    delta = Ball(1.0, "linf", None).around(x).climb_(x.clone(), g, 0.25)
    assert delta.tolist() == [[0.25, -0.25, 0, 0.25, -0.25]] * 2


@pytest.mark.parametrize("d", [1, 2, 6])
def test_l2_noise_is_uniform_in_the_ball(d: int) -> None:
    """Then (length / radius)^d is uniform in [0, 1] and no direction is preferred."""
    x = torch.zeros(4000, d, dtype=torch.float64)
    noise = Ball(2.0, "l2", None).around(x).noisy(None, 0.5, seeded(0))
    u = (lengths(noise, "l2") / 0.5) ** d
    steps = torch.linspace(0, 1, 4000, dtype=torch.float64)
    assert (u.sort().values - steps).abs().max() < 0.03
    assert noise.mean(0).abs().max() < 0.03


def test_linf_noise_is_uniform_in_every_entry() -> None:
    noise = Ball(2.0, "linf", None).around(torch.zeros(2000, 2, dtype=torch.float64)).noisy(None, 0.5, seeded(0))
    steps = torch.linspace(-0.5, 0.5, 4000, dtype=torch.float64)
    assert (noise.flatten().sort().values - steps).abs().max() < 0.03


def test_noise_is_the_generators() -> None:
    for norm in ("linf", "l2", "l1"):
        feasible = Ball(0.3, norm).around(torch.full((6, 4), 0.5))
        first, again, other = (feasible.noisy(None, 0.3, seeded(seed)) for seed in (1, 1, 2))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)


def test_noise_for_no_rows() -> None:
    for norm in ("linf", "l2", "l1"):
        assert Ball(0.3, norm).around(torch.zeros(0, 4)).noisy(None, 0.3, seeded(0)).shape == (0, 4)


def test_clip_brings_points_to_their_bounds() -> None:
    point = torch.tensor([[-0.1, 0.5, 1.2]])
    assert torch.equal(Ball(0.1).clip(point), torch.tensor([[0.0, 0.5, 1.0]]))
    assert torch.equal(Ball(0.1, bounds=None).clip(point), point)
    low, high = torch.tensor([-1.0, 0.6, 0.0]), torch.tensor([0.0, 0.9, 1.0])
    assert torch.equal(Ball(0.1, bounds=(low, high)).clip(point), torch.tensor([[-0.1, 0.6, 1.0]]))


def test_bounds_for_each_channel() -> None:
    x = torch.zeros(2, 3, 4, 4)
    high = torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)
    delta = Ball(0.25, bounds=(-high, high)).around(x).project_(torch.ones_like(x))
    torch.testing.assert_close(delta[:, :, 0, 0], torch.tensor([[0.1, 0.2, 0.25]] * 2))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((0.1, "l0"), "unknown-norm"),
        ((-0.1,), "eps-range"),
        ((math.nan,), "eps-range"),
        ((math.inf,), "eps-range"),
        (("1/0",), "not-a-number"),
        ((None,), "not-a-number"),
        ((0.1, "linf", (1.0, 0.0)), "bounds-order"),
        ((0.1, "linf", (torch.zeros(2), torch.tensor([1.0, -1.0]))), "bounds-order"),
        ((0.1, "linf", (torch.zeros(2), torch.zeros(2))), "bounds-order"),
        ((0.1, "linf", (torch.zeros(2), torch.tensor([1.0, math.nan]))), "bounds-order"),
        ((0.1, "l2", (0.5, 0.5)), "bounds-order"),
        ((0.1, "l2", (torch.zeros(2), torch.ones(3))), "bounds"),
        ((0.1, "l2", 1.0), "bounds"),
        ((8.0,), "eps-scale"),
    ],
)
def test_balls_that_are_refused(arguments: tuple[Any, ...], code: str) -> None:
    with refused(code) as caught:
        Ball(*arguments)
    assert "\n" not in str(caught.value)


def test_eps_may_be_text() -> None:
    assert Ball("8/255").eps == 8 / 255  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "name"),
    [("Linf", "linf"), ("LINF", "linf"), ("inf", "linf"), (math.inf, "linf"), ("L2", "l2"), (2, "l2"), ("L1", "l1")],
)
def test_norms_as_others_spell_them(given: Any, name: str) -> None:
    assert Ball(0.1, given).norm == name
    assert Ball(0.1, given).same_as(Ball(0.1, name))


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_a_fixed_feature_stays(norm: str) -> None:
    low, high = torch.tensor([0.0, 0.1, -1.0]), torch.tensor([1.0, 0.1, 2.0])
    x = torch.tensor([[0.5, 0.1, 0.0], [1.0, 0.1, 2.0]])
    feasible = Ball(0.3, norm, (low, high)).around(x)
    for delta in (feasible.project_(torch.ones_like(x)), feasible.noisy(None, 0.3, seeded(0))):
        assert delta[:, 1].tolist() == [0, 0]
        assert float(delta[:, 0].abs().max()) > 0
    with refused("data-outside-bounds"):
        Ball(0.3, norm, (low, high)).around(torch.tensor([[0.5, 0.2, 0.0]]))


PIXELS = torch.tensor([0, 255], dtype=torch.uint8).repeat(2, 1, 4, 2)
FLOATS = torch.tensor([-1.0, 9.0]).repeat(2, 1, 4, 2)


@pytest.mark.parametrize(
    ("ball", "x", "most"),
    [
        (Ball(8.0, "linf", None), PIXELS, 1.0),
        (Ball(1.1, "linf", (-1.0, 2.0)), PIXELS, 1.0),
        (Ball(8.0, "l2", None), PIXELS, 4.0),
        (Ball(8.0, "l2"), FLOATS, 4.0),
        (Ball(17.0, "l1"), FLOATS, 16.0),
        (Ball(33.0, "l1", (-1.0, 1.0)), FLOATS, 32.0),
        (Ball(8.5, "l2", (-1.0, 1.0)), FLOATS, 8.0),
        (Ball(8.5, "l2", (torch.zeros(4), torch.tensor([0.0, 1, 2, 1]))), FLOATS, 8.0),
    ],
)
def test_a_radius_in_another_unit_than_the_data(ball: Ball, x: Tensor, most: float) -> None:
    with refused("eps-scale", eps=ball.eps, most=most):
        ball.check_scale(x)


@pytest.mark.parametrize(
    ("ball", "x"),
    [
        (Ball(8.0, "linf", None), FLOATS),
        (Ball(8.0, "l2", None), FLOATS),
        (Ball(1.0, "linf", None), PIXELS),
        (Ball(4.0, "l2"), PIXELS),
        (Ball(16.0, "l1"), PIXELS),
        (Ball(2.0, "linf", (-1.0, 1.0)), FLOATS),
        (Ball(80.0, "linf", None), FLOATS),  # of some samples, which may not tell
    ],
)
def test_a_radius_that_may_be_meant(ball: Ball, x: Tensor) -> None:
    ball.check_scale(x)
    assert bool(torch.isfinite(ball.around(torch.full((2, 1, 4, 4), 0.5)).noisy(None, ball.eps, seeded(0))).all())


def test_saturation_counts_the_limits_of_every_entry() -> None:
    """The box cuts the ball at x = 0 and x = 0.9; the last feature is fixed and never counts."""
    x = torch.tensor([[0.0, 0.9, 0.5, 0.7]])
    feasible = Ball(0.3, "linf", (torch.tensor([0.0, 0, 0, 0.7]), torch.tensor([1.0, 1, 1, 0.7]))).around(x)
    still = torch.zeros(1, 4)
    assert feasible.saturated(feasible.project_(still + 1)) == 1.0
    assert feasible.saturated(feasible.project_(still - 1)) == 1.0
    assert feasible.saturated(still) == 1 / 3  # a black pixel that gets no darker
    assert feasible.saturated(still + 0.05) == 0.0
    assert Ball(0.0).around(x).saturated(still) == 0.0  # at the start of a ramp nothing can move
    sphere = Ball(0.3, "l2", None).around(torch.zeros(2, 4))
    assert sphere.saturated(torch.tensor([[0.3, 0, 0, 0], [0.2, 0, 0, 0]])) == 0.5
    diamond = Ball(0.3, "l1", None).around(torch.zeros(2, 4))
    assert diamond.saturated(torch.tensor([[0.1, 0, -0.2, 0], [0.2, 0, 0, 0]])) == 0.5


def test_data_outside_the_bounds() -> None:
    with refused("data-outside-bounds"):
        Ball(0.1).around(torch.tensor([[0.0, 255.0]]))
    with refused("data-outside-bounds"):
        Ball(0.1, bounds=(torch.zeros(2), torch.ones(2))).around(torch.tensor([[0.0, 1.5]]))


@pytest.mark.parametrize("shape", [(3, 1), (3, 4)])
def test_bounds_that_do_not_fit(shape: tuple[int, ...]) -> None:
    with refused("bounds-shape", shape=(5,)):
        Ball(0.1, bounds=(torch.zeros(5), torch.ones(5))).around(torch.full(shape, 0.5))


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize(("least", "most"), [(0.1, 0.9), (-2.1, 2.64), (0.0, 1.0), (-1e-3, 3e5), (-math.inf, 0.3)])
def test_the_ends_of_the_set_are_within_the_bounds_to_the_bit(norm: str, least: float, most: float) -> None:
    x = torch.rand(1000, 8, generator=seeded(0)) * min(most - least, most + 5) + max(least, -5)
    x = x.clamp(least, most)
    feasible = Ball(min(0.7, most), norm, (least, most)).around(x)
    low, high = (torch.tensor(b) for b in (least, most))
    for far in (-1e6, 1e6):
        point = x + feasible.project_(torch.full_like(x, far))
        assert bool((point >= low).all())
        assert bool((point <= high).all())
    if norm == "linf":
        assert torch.equal(Ball(9e5, "linf", None).around(x).low, torch.full_like(x, -9e5))
        reach = x + feasible.high
        assert torch.allclose(reach, torch.minimum(x + min(0.7, most), high), rtol=1e-6)


def test_balls_of_bounds_that_do_not_fit_are_not_alike() -> None:
    one, other = (Ball(0.1, bounds=(torch.zeros(n), torch.ones(n))) for n in (3, 4))
    assert not one.same_as(other)
    assert one.same_as(Ball(0.1))


def test_lists_are_bounds_too() -> None:
    with refused("data-outside-bounds"):
        Ball(0.1, bounds=([0.0, 0.0], [1.0, 1.0])).around(torch.tensor([[0.0, 2.0]]))  # type: ignore[arg-type]


def test_pixels_that_were_not_divided() -> None:
    x = torch.randint(0, 256, (5, 1, 4, 4), generator=seeded(0)).float()
    with refused("pixels-not-scaled", eps=0.3):
        Ball(0.3, "linf", None).check_scale(x)
    for ball, other in (
        (Ball(8.0, "linf", None), x),
        (Ball(0.0, "linf", None), x),
        (Ball(0.3, "linf", (0, 255)), x),
        (Ball(0.3, "linf", None), x[0, 0]),  # a table
        (Ball(0.3, "linf", None), 0.9 * x),
    ):
        ball.check_scale(other)


def test_one_sample_does_not_tell_the_range_of_open_bounds() -> None:
    x = torch.full((1, 3), 0.5)
    for bounds in ((0.0, math.inf), (-math.inf, math.inf)):
        Ball(0.1, "linf", bounds).check_scale(x)
    pair = torch.tensor([[0.0, 2.0], [1.0, 5.0]])
    assert Ball(0.1, "linf", (0.0, torch.tensor([4.0, math.inf]))).widths(pair).tolist() == [4.0, 3.0]
