"""Samples, what they are made from, and what is refused."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from sihg.robust.data import (
    DATA_FORMS,
    PUBLISHED,
    SOURCES,
    Samples,
    as_samples,
    load,
    stratified_split,
    stratified_subset,
)
from sihg.robust.data.pixels import as_pixels
from sihg.robust.data.samples import stratified_rows
from tests.refused import refused


class Items(Dataset[Any]):
    def __init__(self, items: list[Any], classes: list[str] | None = None) -> None:
        self.items = items
        if classes:
            self.classes = classes

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def test_uint8_becomes_floats_from_0_to_1() -> None:
    samples = as_samples((np.array([[0, 51], [255, 102]], np.uint8), [1, 0]))
    assert samples.floats(torch.tensor([1, 0])).tolist() == [[1.0, pytest.approx(0.4)], [0.0, pytest.approx(0.2)]]
    assert samples.floats(slice(1)).dtype == torch.float32
    assert samples.x.dtype == torch.uint8
    assert (len(samples), samples.shape, samples.classes) == (2, (2,), ("0", "1"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_floats_stay(dtype: torch.dtype) -> None:
    x = torch.tensor([[-3.0], [7.5]], dtype=dtype)
    samples = as_samples((x, torch.tensor([0, 2])))
    assert samples.floats(slice(None)).equal(x)
    assert samples.floats(slice(None)).dtype == dtype
    assert samples.classes == ("0", "1", "2")


def test_take() -> None:
    samples = as_samples((torch.arange(5.0), torch.tensor([0, 1, 2, 1, 0])), name="five")
    some = samples.take(torch.tensor([3, 1]))
    assert (some.x.tolist(), some.y.tolist(), some.classes, some.name) == ([3.0, 1.0], [1, 1], ("0", "1", "2"), "five")
    assert as_samples(some).y.equal(some.y)


def test_datasets() -> None:
    grey, colour = Image.new("L", (3, 2), 7), Image.new("RGB", (3, 2), (1, 2, 3))
    samples = as_samples(Items([(grey, 0), (grey, 1)], ["cat", "dog"]))
    assert (samples.shape, samples.x.dtype, samples.classes) == ((1, 2, 3), torch.uint8, ("cat", "dog"))
    samples = as_samples(Items([(colour, 0)]))
    assert samples.x[0, :, 0, 0].tolist() == [1, 2, 3]
    samples = as_samples(Items([(np.ones(2, np.float32), np.int64(1)), (np.zeros(2, np.float32), torch.tensor(0))]))
    assert (samples.x.tolist(), samples.y.tolist()) == ([[1, 1], [0, 0]], [1, 0])
    samples = as_samples(TensorDataset(torch.ones(3, 2), torch.tensor([0, 1, 0])))
    assert samples.y.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("data", "code", "values"),
    [
        ((torch.ones(3), torch.zeros(2)), "sample-shapes", {}),
        ((torch.ones(2), torch.zeros(2, 1)), "sample-shapes", {}),
        ((torch.ones(0, 2), torch.zeros(0)), "samples-empty", {}),
        ((torch.ones(2, 0), torch.zeros(2)), "no-features", {}),
        ((torch.ones(3), torch.tensor([0, 1, -1])), "sample-label-range", {"row": 2}),
        ((torch.ones(3), torch.tensor([0, 1.5, 1])), "sample-label-range", {"row": 1}),
        ((torch.ones(2), torch.tensor([0, float("nan")])), "sample-label-range", {"row": 1}),
        ((torch.ones(2), torch.tensor([0, 1j])), "label-type", {}),
        ((torch.tensor([[1.0, 2.0], [0.0, float("inf")]]), torch.zeros(2)), "sample-not-finite", {"row": 1}),
        ((torch.ones(2, dtype=torch.int64), torch.zeros(2)), "sample-type", {}),
        ((["a", "b"], [0, 1]), "not-numbers", {"what": "x"}),
        (Items([]), "dataset-empty", {}),
        (Items([1]), "dataset-item", {"row": 0}),
        (Items([(torch.ones(2), 0), (torch.ones(3), 0)]), "samples-differ", {"row": 1}),
        (Items([(torch.ones(2), torch.ones(2))]), "label-shape", {"row": 0}),
        (Items([(torch.ones(2), 2)], ["a", "b"]), "sample-label-range", {"row": 0}),
        (7, "not-a-data-set", {}),
    ],
)
def test_data_that_cannot_be_used_is_refused(data: object, code: str, values: dict[str, object]) -> None:
    with refused(code, **values) as caught:
        as_samples(data)
    assert "\n" not in str(caught.value)


def test_images_of_more_than_8_bits_are_refused() -> None:
    with refused("image-bits", mode="I;16"):
        as_pixels(Image.new("I;16", (2, 2)))


def test_held_out_is_stratified_fixed_and_a_partition() -> None:
    y = torch.tensor([0] * 50 + [1] * 30 + [2] * 20)
    samples = as_samples((torch.arange(100.0), y))
    train, test = stratified_split(samples, 20)
    assert test.y.bincount().tolist() == [10, 6, 4]
    assert sorted(train.x.tolist() + test.x.tolist()) == list(range(100))
    assert train.x.equal(train.x.sort().values)
    assert stratified_split(samples, 20)[1].x.equal(test.x)
    assert not stratified_split(samples, 20, seed=1)[1].x.equal(test.x)
    with refused("split-range", n=100):
        stratified_split(samples, 100)


@pytest.mark.parametrize(("n", "counts"), [(1, [1, 0]), (4, [4, 0]), (6, [5, 1]), (10, [9, 1])])
def test_a_rare_class_gets_its_share_and_no_more(n: int, counts: list[int]) -> None:
    samples = as_samples((torch.arange(20.0), torch.tensor([0] * 18 + [1] * 2)))
    assert stratified_subset(samples, n).y.bincount(minlength=2).tolist() == counts


def test_digits() -> None:
    train, test = load("digits")
    assert (len(train), len(test), train.shape, train.x.dtype) == (1400, 397, (1, 8, 8), torch.uint8)
    sixteenths = train.floats(slice(None)) * 16
    assert (sixteenths - sixteenths.round()).abs().max() <= 16 / 510 + 1e-5
    assert sixteenths.round().unique().tolist() == list(range(17))
    shares = torch.stack([part.y.bincount() / len(part) for part in (train, test)])
    assert (shares[0] - shares[1]).abs().max() < 0.003
    assert (train.y.bincount() + test.y.bincount()).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_digits_can_be_told_apart_by_the_nearest_neighbour() -> None:
    train, test = load("digits")
    near = torch.cdist(test.floats(slice(None)).flatten(1), train.floats(slice(None)).flatten(1)).argmin(1)
    assert (train.y[near] == test.y).double().mean() > 0.97


@pytest.mark.parametrize("name", ["minst", "folder:", "npz", ""])
def test_unknown_source_lists_the_choices(name: str) -> None:
    with refused("unknown-data-source", name=name, choices=DATA_FORMS):
        load(name)


def test_the_names_known_without_torch_are_those_of_the_sources() -> None:
    assert tuple(SOURCES) == PUBLISHED


def test_samples_are_compared_by_identity() -> None:
    x: Tensor = torch.ones(1)
    one, other = (Samples(x, torch.zeros(1, dtype=torch.int64), ("0",), "a") for _ in range(2))
    assert one != other


def test_the_rows_of_a_smaller_subset_are_among_those_of_a_larger_one() -> None:
    samples = as_samples((torch.zeros(60, 2), torch.arange(60) % 7 % 3))
    rows = [set(stratified_rows(samples, n, seed=2).tolist()) for n in range(1, 61)]
    assert [len(some) for some in rows] == list(range(1, 61))
    assert all(small < large for small, large in pairwise(rows))
