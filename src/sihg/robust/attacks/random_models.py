"""Attacks on models that are random: gradients are averaged over draws (EoT), and points are classified several times.

Expectation over transformation (Athalye et al., 2018): where a model draws numbers in each pass, the gradient of its
expected loss is the expectation of gradients. With `eot` = K an attack follows the mean of K gradients, each of its own
draw. AutoAttack's version for random models does the same with K = 20.

A verdict is a vote: a point is classified n times, and it is misclassified if at least half of the draws are wrong. So
a verdict depends neither on the luck of one draw nor, as "wrong in any draw" would, on how often one tries. Its logits
are those of the draw of median margin, which are wrong exactly if the vote is. An attack gives up on a sample, as
broken, only where three quarters of the draws are wrong: a lucky vote must not end a search.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sihg.errors import InputError
from sihg.robust.gradients import margins

VERDICT, BREAK = 0.5, 0.75  # shares of draws that are wrong: for a verdict, and for a search to end
VOTES = 10  # draws that classify a point of a random model, unless the user says otherwise
ADVISED_EOT = 20  # as in AutoAttack


@dataclass(frozen=True)
class Draws:
    """How often a model is asked where one pass would do if it were not random.

    Args:
        eot: Gradients and losses of an attack are means over so many draws.
        votes: A point is classified so many times.
    Raises:
        InputError: Unless both are integers >= 1 ("count-range").
    """

    eot: int = 1
    votes: int = 1

    def __post_init__(self) -> None:
        for setting, value in (("eot", self.eot), ("votes", self.votes)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError("count-range", setting=setting, value=value)


ONCE = Draws()


def average(compute: Callable[[], tuple[Tensor, ...]], count: int) -> tuple[Tensor, ...]:
    """Return the means of the tensors that `compute` returns in `count` calls."""
    sums = compute()
    for _ in range(1, count):
        sums = tuple(a + b for a, b in zip(sums, compute(), strict=True))
    return sums if count == 1 else tuple(a / count for a in sums)


def pick_draw(draws: Tensor, y: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Return, per row, the logits of the draw at a quantile of the margins, and how many draws are wrong.

    The class of these logits is wrong exactly if at least this share of the draws is wrong.

    Args:
        draws: Logits, (draws, rows, classes).
        y: Labels, (rows).
        share: Which quantile, such as 0.5 for the (lower) median.
    Example:
        >>> draws = torch.tensor([[[0.0, 1.0]], [[2.0, 0.0]], [[0.0, 3.0]]])
        >>> pick_draw(draws, torch.tensor([0]), 0.5)
        (tensor([[0., 1.]]), tensor([2]))
    """
    wrong = draws.argmax(2) != y
    margin = torch.stack([margins(logits, y) for logits in draws])
    order = margin.argsort(dim=0, stable=True)
    order = order.gather(
        0, (~wrong).gather(0, order).to(torch.uint8).argsort(dim=0, stable=True)
    )  # a tie may be either
    place = order[math.ceil(share * len(draws)) - 1]
    return draws[place, torch.arange(len(y), device=y.device)], wrong.sum(0)
