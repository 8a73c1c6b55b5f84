"""Lanes on one process: their gradients are the batch's, their statistics are merged, and each has its own state."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sihg.core.processes import Processes
from sihg.robust.data.batches import Batch, batches
from sihg.robust.data.samples import Samples, as_samples
from sihg.robust.methods import MSIHG, FreeAT, Log, Method, Natural, Optimizer
from sihg.robust.training.preflight import preflight
from sihg.robust.training.trainer import Trainer
from tests.refused import refused
from tests.robust.small import digits, settings

N = 60


def double(n: int = N) -> Samples:
    few = digits(n)
    return as_samples((few.floats().double(), few.y), classes=few.classes)


def mlp(*middle: nn.Module) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), *middle, nn.Tanh(), nn.Linear(16, 10)).double()


def run(model: nn.Module, own: Method | None = None, **values: Any) -> Trainer:
    chosen = settings(**{"epochs": 2, "batch_size": 25, "method": "natural", "lr": 0.1, "theta": 0.0, **values})
    trainer = Trainer(preflight(model, double(), chosen, None, own))
    trainer.run()
    return trainer


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("lanes", [2, 4, 32])
@pytest.mark.parametrize("values", [{}, {"theta": 0.7}, {"clip": 0.3, "ema": 0.6}, {"optimizer": "adamw", "lr": 0.01}])
def test_without_batch_normalisation_lanes_change_only_the_rounding(lanes: int, values: dict[str, Any]) -> None:
    whole, split = (run(mlp(), lanes=count, **values) for count in (1, lanes))
    torch.testing.assert_close(weights(split.model), weights(whole.model), rtol=0, atol=1e-12)
    torch.testing.assert_close(
        weights(split.optimizer.evaluated), weights(whole.optimizer.evaluated), rtol=0, atol=1e-12
    )
    assert float((weights(whole.model) - weights(mlp())).abs().max()) > 1e-2


def test_each_lane_has_the_memory_of_its_samples() -> None:
    values: dict[str, Any] = {"method": "msi-hg", "steps": 2, "memory": "fp32", "eps": 0.2}
    whole, split = run(mlp(), **values), run(mlp(), **values, lanes=4)
    assert isinstance(whole.method, MSIHG)
    assert whole.method.memory is not None
    for lane, method in split.methods.items():
        assert isinstance(method, MSIHG)
        assert method.memory is not None
        own = torch.arange(lane, N, 4)
        stored, expected = (memory.read(own, 2) for memory in (method.memory, whole.method.memory))
        torch.testing.assert_close(stored, expected, rtol=0, atol=1e-6)
        assert float(stored.abs().max()) > 0.1
        with refused("memory-foreign-sample"):
            method.memory.read((own + 1) % N, 2)


# ---- buffers


@pytest.mark.parametrize("batch_size", [60, 30])
def test_running_statistics_are_the_means_of_the_lanes(batch_size: int) -> None:
    """Weighted by their samples. The weights stay, so that a second pass sees what the first one saw."""
    model = mlp(nn.BatchNorm1d(16, momentum=0.3))
    first, norm = model.get_submodule("1"), model.get_submodule("2")
    trained = run(model, batch_size=batch_size, lanes=4, epochs=1, lr=1e-300)
    mean, var = torch.zeros(16, dtype=torch.float64), torch.ones(16, dtype=torch.float64)
    steps = 0
    for batch in batches(double(), size=batch_size):
        means, variances = torch.zeros_like(mean), torch.zeros_like(var)
        for lane in batch.lanes(4):
            seen = first(lane.x.flatten(1)).detach()
            share = len(seen) / len(batch.x)
            means += share * seen.mean(0)
            variances += share * seen.var(0)
        mean, var, steps = 0.7 * mean + 0.3 * means, 0.7 * var + 0.3 * variances, steps + 1
    assert trained.model is model
    torch.testing.assert_close(norm.running_mean, mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(norm.running_var, var, rtol=0, atol=1e-12)
    assert int(norm.get_buffer("num_batches_tracked")) == steps == -(-N // batch_size)


def test_buffers_that_no_lane_changes_keep_every_bit() -> None:
    model = mlp()
    kept = {
        "mask": torch.full((3,), -torch.inf),
        "exact": torch.tensor([1 / 3, 1e-300], dtype=torch.float64),
        "short": torch.tensor([1 / 3], dtype=torch.float16),
        "count": torch.tensor([2**53 + 1]),
        "flags": torch.tensor([True, False]),
    }
    for name, value in kept.items():
        model.register_buffer(name, value.clone())
    trained = run(model, lanes=8)
    for name, value in kept.items():
        found = trained.model.get_buffer(name)
        assert found.dtype == value.dtype
        assert torch.equal(found.view(torch.uint8), value.view(torch.uint8)), name


# ---- parameters


class Parts(nn.Module):
    """One layer is used by all, one by nobody, one only if sample 5 of the data is in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused, self.rare = nn.Linear(64, 10), nn.Linear(64, 10), nn.Linear(64, 10)
        self.double()
        self.sought = double().floats(slice(5, 6)).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        out: Tensor = self.used(x)
        if bool((x == self.sought).all(1).any()):
            out = out + self.rare(x)
        return out


@pytest.mark.parametrize("optimizer", [{"name": "sgd", "lr": 0.1, "weight_decay": 0.5}, {"name": "adamw", "lr": 0.1}])
def test_parameters_without_a_gradient_stay_without_one(optimizer: dict[str, Any]) -> None:
    """Else weight decay would change them."""
    torch.manual_seed(0)
    model = Parts()
    before = deepcopy(model.state_dict())
    seen: list[list[bool]] = []

    class Watched(Natural):
        def step(self, model: nn.Module, batch: Batch, optimizer: Optimizer) -> Log:
            seen.append([p.grad is None for p in model.parameters()])
            return super().step(model, batch, optimizer)

    chosen = settings(method="natural", epochs=1, batch_size=25, lanes=4, optimizer=optimizer, theta=0.0)
    trainer = Trainer(preflight(model, double(), chosen, None, Watched()))
    trainer.run()
    after = trainer.model.state_dict()
    same = {name.partition(".")[0]: torch.equal(after[name], before[name]) for name in after}
    assert same == {"used": False, "unused": True, "rare": False}
    assert all(p.grad is None for p in model.unused.parameters())


# ---- dropout


def test_each_lane_draws_its_own_dropout() -> None:
    """By hand: the generator of each lane and step, its gradient, and the sum of these."""
    model, twin = mlp(nn.Dropout(0.4)), mlp(nn.Dropout(0.4))
    run(model, lanes=4)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    masks = set()
    with torch.random.fork_rng(devices=[]):
        for batch in batches(double(), size=25, epochs=2):
            optimizer.zero_grad()
            for lane in batch.lanes(4):
                purpose = f"model/{lane.lane}/0" if lane.lane else "model"
                torch.default_generator.manual_seed(batch.draw(purpose).initial_seed())
                masks.add(tuple(torch.rand(8).tolist()))
                torch.default_generator.manual_seed(batch.draw(purpose).initial_seed())
                (cross_entropy(twin(lane.x), lane.y, reduction="sum") / len(batch.x)).backward()
            optimizer.step()
    torch.testing.assert_close(weights(model), weights(twin), rtol=0, atol=1e-12)
    assert len(masks) == 6 * 4


# ---- several steps per batch


def test_free_with_lanes_is_the_listing_with_the_gradient_of_all_lanes() -> None:
    """Every replay: all lanes at the same weights, one step along the sum, and each lane's own slots climb."""
    eps, m = 0.2, 3
    model, twin = mlp(), mlp()
    trained = run(model, method="free", replays=m, eps=eps, lanes=4)
    theirs = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    slots = {lane: torch.zeros(0, 1, 8, 8, dtype=torch.float64) for lane in range(4)}
    for batch in batches(double(), size=25, epochs=2):
        lanes = list(batch.lanes(4))
        for lane in lanes:
            more = len(lane.x) - len(slots[lane.lane])
            slots[lane.lane] = torch.cat([slots[lane.lane], torch.zeros(max(0, more), 1, 8, 8, dtype=torch.float64)])
        for _ in range(m):
            theirs.zero_grad()
            points = []
            for lane in lanes:
                delta = slots[lane.lane][: len(lane.x)].clamp(-eps, eps)
                point = (lane.x + delta).clamp(0, 1).requires_grad_()
                (cross_entropy(twin(point), lane.y, reduction="sum") / len(batch.x)).backward()
                points.append(point)
            theirs.step()
            for lane, point in zip(lanes, points, strict=True):
                assert point.grad is not None
                delta = (point.detach() - lane.x + eps * point.grad.sign()).clamp(-eps, eps)
                slots[lane.lane][: len(lane.x)] = (lane.x + delta).clamp(0, 1) - lane.x
    torch.testing.assert_close(weights(model), weights(twin), rtol=0, atol=1e-10)
    for number, method in trained.methods.items():
        assert isinstance(method, FreeAT)
        assert method.delta is not None
        torch.testing.assert_close(method.delta, slots[number], rtol=0, atol=1e-10)


class Twice(Method):
    """Steps twice per batch, and does not say so."""

    def step(self, model: nn.Module, batch: Batch, optimizer: Optimizer) -> Log:
        Natural().step(model, batch, optimizer)
        return Natural().step(model, batch, optimizer)


class TwiceInRounds(Twice):
    """Says so."""

    optimizer_steps = 2

    def rounds(self, model: nn.Module, batch: Batch, optimizer: Optimizer) -> Iterator[Log]:
        for _ in range(2):
            yield Natural().step(model, batch, optimizer)


class Never(Method):
    """Steps in one of two lanes, as accumulation by hand would."""

    def step(self, model: nn.Module, batch: Batch, optimizer: Optimizer) -> Log:
        if batch.lane:
            return Natural().step(model, batch, optimizer)
        return Natural().step(model, batch, torch.optim.SGD(model.parameters(), lr=0.0))


def test_a_method_that_steps_twice_must_say_so() -> None:
    run(mlp(), Twice(), eps=0.1)
    with refused("method-steps-lanes"):
        run(mlp(), Twice(), eps=0.1, lanes=2)
    whole, split = (run(mlp(), method, eps=0.1, lanes=n) for n, method in ((1, Twice()), (2, TwiceInRounds())))
    torch.testing.assert_close(weights(split.model), weights(whole.model), rtol=0, atol=1e-12)


def test_a_method_must_step_in_every_lane() -> None:
    with refused("method-without-step"):
        run(mlp(), Never(), eps=0.1, lanes=2)


# ---- what does not fit


@pytest.mark.parametrize("lanes", [3, 5, 48, 128])
def test_lanes_are_a_power_of_two(lanes: int) -> None:
    with refused("lanes-range", lanes=lanes):
        run(mlp(), lanes=lanes)


def test_processes_that_cannot_share_the_lanes() -> None:
    prepared = preflight(mlp(), double(), settings(method="natural", lanes=4))
    with refused("lanes-processes", lanes=4, processes=3):
        Trainer(prepared, processes=Processes(0, 3))
    with refused("lanes-processes", lanes=4, processes=8):
        Trainer(prepared, processes=Processes(0, 8))
