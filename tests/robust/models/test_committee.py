import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sihg.robust.gradients import input_gradient
from sihg.robust.models import Committee, Threshold, build, split_stem


def lines(count: int, seed: int = 0) -> Committee:
    torch.manual_seed(seed)
    return Committee(*(nn.Linear(5, 3) for _ in range(count))).double()


@pytest.mark.parametrize("rows", [1, 2, 7, 12])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_judged_together_taught_apart(rows: int, count: int) -> None:
    committee, x = lines(count), torch.randn(rows, 5, dtype=torch.float64)
    each = [member(x) for member in committee.members]
    torch.testing.assert_close(committee.eval()(x), sum(each) / count)
    taught, start = committee.train()(x), 0
    for member, part in enumerate(x.tensor_split(count)):
        torch.testing.assert_close(taught[start : start + len(part)], each[member][start : start + len(part)])
        start += len(part)
    assert start == rows


def test_a_member_learns_from_its_own_rows_as_if_it_were_alone() -> None:
    committee, x, y = lines(2).train(), torch.randn(8, 5, dtype=torch.float64), torch.arange(8) % 3
    cross_entropy(committee(x), y).backward()
    for member, (rows, labels) in zip(committee.members, zip(x.split(4), y.split(4), strict=True), strict=True):
        assert isinstance(member, nn.Linear)
        weight_gradient = torch.autograd.grad(cross_entropy(member(rows), labels), member.weight)[0]
        torch.testing.assert_close(member.weight.grad, weight_gradient / 2)


def test_an_ascent_in_training_mode_is_against_the_member_that_learns() -> None:
    committee, x, y = lines(2).train(), torch.rand(6, 5, dtype=torch.float64), torch.arange(6) % 3
    together = input_gradient(committee, x, y)
    parts = zip(committee.members, x.split(3), y.split(3), strict=True)
    torch.testing.assert_close(together, torch.cat([input_gradient(*part) for part in parts]))


def test_the_pair_is_two_unlike_small_cnns_behind_one_threshold() -> None:
    pair = build("threshold-pair", (1, 28, 28), 10, width=2, seed=4)
    stem, committee = split_stem(pair)
    assert isinstance(stem, Threshold)
    assert isinstance(committee, Committee)
    one, other = committee.members
    small = build("small-cnn", (1, 28, 28), 10, width=2, seed=4)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), small.parameters(), strict=True))
    assert not torch.equal(next(one.parameters()), next(other.parameters()))
    x = torch.rand(3, 1, 28, 28)
    torch.testing.assert_close(pair.eval()(x), (one(stem(x)) + other(stem(x))) / 2)
