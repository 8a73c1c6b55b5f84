"""Randomness is a function of its arguments."""

import torch

from sihg.core.draw import generator


def test_equal_arguments_equal_draws_and_others_differ() -> None:
    arguments = [(0, "a", 0, 0), (1, "a", 0, 0), (0, "b", 0, 0), (0, "a", 1, 0), (0, "a", 0, 1), (0, "a/0", 0, 0)]
    draws = [torch.rand(8, generator=generator(*a)) for a in arguments]
    again = [torch.rand(8, generator=generator(*a)) for a in arguments]
    for i, one in enumerate(draws):
        assert torch.equal(one, again[i])
        assert not any(torch.equal(one, other) for other in draws[:i])
