"""DataLoaders as data sets: what they give, in which order, and what is refused."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

import sihg
from sihg.robust.data import as_samples, loader
from sihg.robust.data.locations import DataWarning
from sihg.robust.data.samples import open_samples
from tests.refused import refused

X, Y = torch.arange(14.0).view(7, 2) / 14, torch.tensor([0, 1, 2, 0, 1, 2, 0])


class Items(Dataset[Any]):
    """Items that count how often they are read."""

    def __init__(self) -> None:
        self.targets, self.reads = Y.tolist(), 0

    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        self.reads += 1
        return X[row], int(Y[row])


class Stream(IterableDataset[Any]):
    def __init__(self, *items: Any) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        yield from self.items


def _pair(items: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    return torch.stack([x for x, _ in items]), torch.tensor([y for _, y in items])


PAIRS = list(zip(X, Y, strict=True))
SAME: dict[str, Callable[[], DataLoader[Any]]] = {
    "in order": lambda: DataLoader(TensorDataset(X, Y), batch_size=3),
    "a stream": lambda: DataLoader(Stream(*PAIRS), batch_size=3),
    "without batches": lambda: DataLoader(Stream(*PAIRS), batch_size=None),
    "batches of its own": lambda: DataLoader(Stream((X[:5], Y[:5]), (X[5:], Y[5:])), batch_size=None),
    "a collate_fn": lambda: DataLoader(Items(), batch_size=3, collate_fn=_pair),
    "a sampler": lambda: DataLoader(Items(), batch_size=3, sampler=range(7)),
    "a batch sampler": lambda: DataLoader(Items(), batch_sampler=[[0, 1, 2, 3], [4, 5, 6]]),
}


@pytest.mark.parametrize("kind", list(SAME))
def test_all_samples_in_order(kind: str) -> None:
    samples = as_samples(SAME[kind]())
    assert torch.equal(samples.x, X)
    assert torch.equal(samples.y, Y)


def test_a_plain_loader_stays_lazy() -> None:
    items = Items()
    samples = open_samples(DataLoader(items, batch_size=3))
    assert samples.lazy is not None
    assert items.reads == 3  # of row 0, to learn whether it is random


def test_drop_last_and_shuffle() -> None:
    assert torch.equal(as_samples(DataLoader(Items(), batch_size=3, drop_last=True)).y, Y[:6])
    with pytest.warns(DataWarning, match="shuffles"):
        samples = as_samples(DataLoader(TensorDataset(X, Y), batch_size=3, shuffle=True))
    assert torch.equal(samples.x, X)
    drawn = RandomSampler(Items(), replacement=True, num_samples=9)
    with pytest.warns(DataWarning, match="draws its samples"):
        assert len(as_samples(DataLoader(Items(), batch_size=4, sampler=drawn))) == 9


def test_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("loader-batch", number=0, type="dict"):
        as_samples(DataLoader(Stream({"x": X, "y": Y}), batch_size=None))
    with refused("loader-failed", number=1, type="TypeError"):
        as_samples(DataLoader(Stream((X, Y), "text", (X, object())), batch_size=None, collate_fn=fails_on_text))
    with refused("samples-differ", row=7):
        as_samples(DataLoader(Stream((X, Y), (X[:, :1], Y)), batch_size=None))
    with refused("dataset-empty"):
        as_samples(DataLoader(Stream(), batch_size=2))
    monkeypatch.setattr(loader, "max_memory", lambda: 60)
    with refused("loader-memory", count=7, limit=60):
        as_samples(DataLoader(Stream((X, Y), (X, Y)), batch_size=None))


def fails_on_text(item: Any) -> Any:
    if isinstance(item, str):
        raise TypeError("text")
    return item


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_one_hot_labels(dtype: torch.dtype) -> None:
    with pytest.warns(DataWarning, match="one-hot"):
        samples = as_samples((X, nn.functional.one_hot(Y, 5).to(dtype)))
    assert torch.equal(samples.y, Y)
    assert len(samples.classes) == 5
    with refused("sample-shapes"):
        as_samples((X, torch.full((7, 2), 0.5)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("model_dtype", [torch.float32, torch.float64])
def test_an_evaluation_converts_to_the_type_of_the_model(dtype: torch.dtype, model_dtype: torch.dtype) -> None:
    seen = set()
    model = nn.Linear(2, 3).to(model_dtype)
    model.register_forward_pre_hook(lambda _, args: seen.add(args[0].dtype))
    attacks = "natural,pgd-2,apgd-t-3,square-5"
    evaluation = sihg.evaluate(model, DataLoader(TensorDataset(X.to(dtype), Y), 3), eps=0.1, attacks=attacks)
    assert len(evaluation.index) == 7
    assert seen == {model_dtype}
    if dtype == model_dtype:  # numpy arrays, and labels as a list
        again = sihg.evaluate(model, (X.to(dtype).numpy(), Y.tolist()), eps=0.1, attacks=attacks)
        assert torch.equal(again["pgd-2"].margin, evaluation["pgd-2"].margin)
