"""Noise: what is drawn, for whom, and what it costs."""

import math

import pytest
import torch
from torch import Tensor, nn

from sihg.robust.attacks import Noise, chunk_size
from tests.robust.attacks.trained_models import assert_inside, bounds_of, trained
from tests.robust.methods.nets import IMAGE, samples, watched


class Steadfast(nn.Module):
    """Always right, so that every draw is looked at."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tensor([1.0, 0.0]).expand(len(x), 2).to(x)


def deltas(norm: str, x: Tensor, seed: int = 0, *, draws: int = 10, eps: float = 0.2) -> list[Tensor]:
    """The deltas of all looks, one after the other, after that at x itself."""
    model = Steadfast()
    with watched(model) as points:
        Noise(eps=eps, norm=norm, bounds=None, draws=draws).run(model, x, torch.zeros(len(x), dtype=torch.int64), seed)
    return [point - x for point in points.inputs[1:]]


def test_draws_fill_the_box_and_its_corners() -> None:
    found = deltas("linf", torch.zeros(64, 50, dtype=torch.float64))
    assert len(found) == 20
    inside, corners = torch.cat(found[::2]).flatten(), torch.cat(found[1::2]).flatten()
    assert set(corners.tolist()) == {-0.2, 0.2}
    assert abs(float(corners.mean())) < 0.2 * 4 / math.sqrt(len(corners))
    assert float(inside.abs().max()) <= 0.2
    for share in (0.25, 0.5, 0.75):  # uniform: so much lies below the quantile
        below = float((inside < 0.4 * share - 0.2).double().mean())
        assert abs(below - share) < 4 * 0.5 / math.sqrt(len(inside))


def test_draws_fill_the_ball_and_its_sphere() -> None:
    """In d dimensions the part within radius r of a ball of radius eps is (r / eps) ** d."""
    found = deltas("l2", torch.zeros(512, 3, dtype=torch.float64))
    inside, sphere = (torch.linalg.vector_norm(torch.cat(found[kind::2]), dim=1) for kind in (0, 1))
    torch.testing.assert_close(sphere, torch.full_like(sphere, 0.2), rtol=0, atol=1e-12)
    assert float(inside.max()) <= 0.2
    assert abs(float(((inside / 0.2) ** 3).mean()) - 0.5) < 4 * 0.3 / math.sqrt(len(inside))


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_draws_depend_on_a_rows_number_alone(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = samples(200)
    model = trained("smooth")
    attack = Noise(eps={"linf": 0.3, "l2": 1.5, "l1": 6.0}[norm], norm=norm)
    whole, other = attack.run(model, x, y, seed=3), attack.run(model, x, y, seed=4)
    some = torch.tensor([3, 60, 64, 150, 199])
    part = attack.run(model, x[some], y[some], seed=3, numbers=some)
    assert torch.equal(part.broken, whole.broken[some])
    torch.testing.assert_close(part.x_adv, whole.x_adv[some], rtol=0, atol=0)
    assert not torch.equal(whole.x_adv, other.x_adv)
    monkeypatch.setattr(chunk_size, "MAX_ROWS", 64)
    assert torch.equal(attack.run(model, x, y, seed=3).x_adv, whole.x_adv)


@pytest.mark.parametrize("bounds", ["none", "scalars", "features"])
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_points_stay_inside_and_are_what_is_told(norm: str, bounds: str) -> None:
    x, y = samples(150)
    model = trained("smooth").eval()
    attack = Noise(eps={"linf": 0.3, "l2": 1.5, "l1": 6.0}[norm], norm=norm, bounds=bounds_of(bounds, "smooth"))
    found = attack.run(model, x, y)
    assert_inside(attack, x, found.x_adv)
    assert torch.equal(model(found.x_adv).argmax(1) != y, found.broken)
    assert 0 < int(found.broken.sum()) < 150


def test_a_fragile_model_falls_and_each_look_is_counted() -> None:
    class Fragile(nn.Module):
        """Right at the samples themselves alone."""

        def forward(self, x: Tensor) -> Tensor:
            off = (x - 0.5).abs().flatten(1).amax(1) > 0.01
            return torch.stack([~off, off], 1).to(x)

    x, y = torch.full((100, *IMAGE), 0.5), torch.zeros(100, dtype=torch.int64)
    model = Fragile()
    with watched(model) as points:
        found = Noise(eps=0.1).run(model, x, y)
    assert bool(found.broken.all())
    assert (found.passes, found.forwards) == (0, 200)
    assert points.rows == [100, 100]
    holding = Noise(eps=0.1, draws=4).run(Steadfast(), x, y)
    assert (int(holding.broken.sum()), holding.passes, holding.forwards) == (0, 0, 100 + 2 * 4 * 100)
