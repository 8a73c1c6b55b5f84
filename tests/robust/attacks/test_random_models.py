"""EoT gradients equal a plain loop, a verdict is the vote of several draws, and draws depend on the seed alone."""

import math

import pytest
import torch
from torch import Tensor, nn

from sihg.robust.attacks import APGD, FAB, PGD, Attack, Natural, Noise, Search, Square
from sihg.robust.attacks.attacked_rows import Rows
from sihg.robust.attacks.random_models import Draws, pick_draw
from sihg.robust.gradients import cross_entropy_per_row
from sihg.robust.threat import Ball
from tests.refused import refused

X = torch.rand(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([0, 1, 2, 0, 1, 2])


class Shaken(nn.Module):
    """A network whose input is noisy in evaluation mode too."""

    def __init__(self, noise: float = 0.5) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.noise, self.net = noise, nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x + self.noise * torch.randn(x.shape, dtype=x.dtype))
        return logits


def search(model: nn.Module, draws: Draws) -> Search:
    place = torch.arange(len(X))
    return Search(model, Rows(X, Y, Ball(0.1, bounds=None).around(X), place, place), draws=draws)


@pytest.mark.parametrize("eot", [1, 2, 7])
def test_the_gradient_is_the_mean_of_a_plain_loop(eot: int) -> None:
    model, found = Shaken(), search(Shaken(), Draws(eot))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        logits, losses, g = found.compute_gradient(found.rows, X, cross_entropy_per_row)
        torch.manual_seed(3)
        plain = [torch.zeros_like(value) for value in (logits, losses, g)]
        for _ in range(eot):
            point = X.clone().requires_grad_()
            out = model(point)
            loss = nn.functional.cross_entropy(out, Y, reduction="none")
            loss.sum().backward()
            assert point.grad is not None
            for total, value in zip(plain, (out, loss, point.grad), strict=True):
                total += value.detach() / eot
    for value, expected in zip((logits, losses, g), plain, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    assert (found.passes, found.forwards) == (eot * len(X), 0)


def test_logits_are_means_too_and_counted() -> None:
    found = search(Shaken(), Draws(4))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        logits = found.compute_logits(found.rows, X)
        torch.manual_seed(3)
        torch.testing.assert_close(logits, torch.stack([Shaken()(X).detach() for _ in range(4)]).mean(0))
    assert (found.passes, found.forwards) == (0, 4 * len(X))


@pytest.mark.parametrize("share", [0.5, 0.75])
@pytest.mark.parametrize("n", [1, 2, 3, 10])
def test_the_picked_draw_is_wrong_exactly_if_that_share_is(n: int, share: float) -> None:
    draws = torch.randn(n, 200, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    draws[:, :20] = draws[:, :20].round()  # ties
    y = torch.arange(200) % 4
    logits, wrong = pick_draw(draws, y, share)
    assert torch.equal(wrong, (draws.argmax(2) != y).sum(0))
    assert torch.equal(logits.argmax(1) != y, wrong >= share * n)
    assert all(any(torch.equal(logits[i], draw[i]) for draw in draws) for i in range(200))


class Coin(nn.Module):
    """Wrong with a probability that the first feature gives, whatever the gradient says."""

    def forward(self, x: Tensor) -> Tensor:
        wrong = torch.rand(len(x), dtype=x.dtype) < x[:, 0]
        return torch.stack([torch.where(wrong, -1.0, 1.0).to(x), 0 * x.sum(1)], 1)


def test_a_verdict_is_a_vote() -> None:
    x = torch.tensor([[0.0], [0.1], [0.9], [1.0]]).repeat(50, 1)
    verdict = Natural().run(Coin(), x, torch.zeros(200, dtype=torch.long), votes=10)
    assert torch.equal(verdict.broken, 2 * verdict.wrong >= 10)
    assert verdict.broken.view(50, 4).double().mean(0)[[0, 3]].tolist() == [0, 1]
    means = verdict.wrong.view(50, 4).double().mean(0) / 10
    torch.testing.assert_close(means, torch.tensor([0, 0.1, 0.9, 1.0]).double(), atol=0.05, rtol=0)
    assert verdict.forwards >= 11 * 200


def test_a_lucky_draw_is_no_break() -> None:
    x, y = torch.full((64, 1), 0.2), torch.zeros(64, dtype=torch.long)
    attack = PGD(eps=0.0, steps=20)
    assert int(attack.run(Coin(), x, y).broken.sum()) > 60  # one of 21 draws is wrong
    assert int(attack.run(Coin(), x, y, votes=10).broken.sum()) < 8


ATTACKS: list[Attack] = [
    PGD(eps=0.1, bounds=None, steps=4),
    APGD(eps=0.1, bounds=None, steps=5),
    FAB(eps=0.1, bounds=None, steps=3),
    Square(eps=0.1, bounds=None, queries=10),
    Noise(eps=0.1, bounds=None, draws=3),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: type(attack).__name__)
def test_draws_depend_on_the_seed_alone(attack: Attack) -> None:
    model = Shaken()
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = attack.run(model, X, Y, 0, eot=3, votes=4)
    assert torch.equal(torch.get_rng_state(), state)  # the user's generator is as before
    torch.manual_seed(6)
    second, third = attack.run(model, X, Y, 0, eot=3, votes=4), attack.run(model, X, Y, 1, eot=3, votes=4)
    for name in ("x_adv", "broken", "prediction", "margin", "wrong"):
        assert torch.equal(getattr(first, name), getattr(second, name))
    assert not torch.equal(first.margin, third.margin)
    assert (first.passes, first.forwards) == (second.passes, second.forwards)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: type(attack).__name__)
def test_one_draw_of_a_fixed_model_changes_nothing(attack: Attack) -> None:
    model = Shaken(0.0)
    plain, several = attack.run(model, X, Y), attack.run(model, X, Y, eot=2, votes=3)
    torch.testing.assert_close(plain.x_adv, several.x_adv)
    assert torch.equal(plain.broken, several.broken)
    assert several.passes == 2 * plain.passes
    assert torch.equal(plain.wrong, plain.broken.long())
    assert torch.equal(several.wrong, 3 * several.broken.long())


def test_eot_breaks_a_planted_random_defence_that_a_plain_attack_does_not() -> None:
    class Tricked(nn.Module):
        """Each draw adds a large slope in a random direction, which is right in no other draw."""

        def forward(self, x: Tensor) -> Tensor:
            noise = torch.randn(x.shape, dtype=x.dtype)
            slope = (x * noise).sum(1) - (x.detach() * noise).sum(1)  # 0, with the gradient `noise`
            z = 0.5 - x.mean(1) + 3 * slope
            return torch.stack([z, torch.zeros_like(z)], 1)

    x, y = torch.full((32, 16), 0.4, dtype=torch.float64), torch.zeros(32, dtype=torch.long)
    attack = PGD(eps=0.15, steps=10)
    plain, found = attack.run(Tricked(), x, y, votes=5), attack.run(Tricked(), x, y, votes=5, eot=2000)
    assert float(plain.broken.double().mean()) < 0.2
    assert float(found.broken.double().mean()) > 0.8


@pytest.mark.parametrize(("setting", "value"), [("eot", 0), ("votes", -1), ("eot", 2.5), ("votes", True)])
def test_numbers_that_are_none(setting: str, value: object) -> None:
    with refused("count-range", setting=setting, value=value):
        PGD(eps=0.1).run(Shaken(), X, Y, **{setting: value})  # type: ignore[arg-type]


def test_a_gradient_that_is_not_finite_in_one_draw_is_refused() -> None:
    class Sometimes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            factor = math.inf if float(torch.rand(())) < 0.3 else 1.0
            return torch.stack([x.sum(1), (x.detach() - x).sum(1) * factor], 1).nan_to_num()

    with refused("input-gradient-not-finite"):
        PGD(eps=0.1, bounds=None, steps=5).run(Sometimes(), X, Y % 2, eot=20)
