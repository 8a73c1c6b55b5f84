import pytest
import torch
from torch import nn

from sihg.robust.models import Threshold, build, split_stem
from sihg.robust.models.threshold import LEAK
from tests.refused import refused


def test_it_is_a_ramp_that_leaks_a_thousandth() -> None:
    x = torch.linspace(-0.5, 1.5, 401, dtype=torch.float64)
    for low, high in ((0.4, 0.6), (0.1, 0.95)):
        z = (x - low) / (high - low)
        leaked = torch.where(z < 0, LEAK * z, torch.where(z > 1, 1 + LEAK * (z - 1), z))
        torch.testing.assert_close(Threshold(low, high)(x), leaked)


def test_no_perturbation_of_two_fifths_passes_on_black_and_white() -> None:
    black, white = torch.zeros(1), torch.ones(1)
    moved = Threshold()(black + 0.4) - Threshold()(black)
    assert 0 < float(moved) <= 2.1 * LEAK
    assert 0 < float(Threshold()(white) - Threshold()(white - 0.4)) <= 2.1 * LEAK
    assert float(Threshold()(torch.tensor([0.9])) - Threshold()(torch.tensor([0.1]))) > 0.99  # grey is the attacker's


def test_gradients_see_through_with_the_sign_of_what_is_behind() -> None:
    behind = nn.Linear(64, 1).double()
    x = torch.linspace(0, 1, 64, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(behind(Threshold()(x)).sum(), x)
    assert torch.equal(gradient.sign(), behind.weight[0].sign())


def test_at_its_ends_the_slope_is_that_of_the_flat_side() -> None:
    x = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0], dtype=torch.float64, requires_grad=True)  # z is exact in these
    (slope,) = torch.autograd.grad(Threshold(0.25, 0.75)(x).sum(), x)
    torch.testing.assert_close(slope, torch.tensor([LEAK, LEAK, 1, LEAK, LEAK], dtype=torch.float64) / 0.5)


def test_threshold_cnn_is_the_small_cnn_behind_a_threshold() -> None:
    ours, small = (build(name, (1, 28, 28), 10, seed=4) for name in ("threshold-cnn", "small-cnn"))
    assert ours.state_dict().keys() != small.state_dict().keys()  # no weights of one are taken for the other's
    same = zip(ours.state_dict().values(), small.state_dict().values(), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in same)
    x = torch.rand(3, 1, 28, 28)
    assert torch.equal(ours(x), small(Threshold()(x)))
    assert isinstance(split_stem(ours)[0], nn.Sequential)
    assert "Threshold(0.4, 0.6)" in repr(ours)


@pytest.mark.parametrize(("low", "high"), [(0.6, 0.4), (0.5, 0.5), (float("nan"), 1.0), (0.0, float("inf"))])
def test_a_threshold_that_does_not_rise_is_refused(low: float, high: float) -> None:
    with refused("threshold-range", high=high):
        Threshold(low, high)


def test_what_passes_of_an_interval_is_its_part_on_the_ramp() -> None:
    low = torch.tensor([0.0, 0.1, 0.45, 0.5, 0.7, 0.0, 0.1])
    high = torch.tensor([0.3, 0.5, 0.55, 0.9, 1.0, 1.0, 0.1])
    first, last = Threshold().passed(low, high)
    torch.testing.assert_close(first, torch.tensor([0.3, 0.4, 0.45, 0.5, 0.7, 0.4, 0.1]))
    torch.testing.assert_close(last, torch.tensor([0.3, 0.5, 0.55, 0.6, 0.7, 0.6, 0.1]))
    for mine, whole in ((first, low), (last, high)):
        assert float((Threshold()(mine) - Threshold()(whole)).abs().max()) <= 2.1 * LEAK
