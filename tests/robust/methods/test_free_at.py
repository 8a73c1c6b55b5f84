"""Free adversarial training: one backward pass for both players, perturbations that stay with their slot."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sihg.robust.data.batches import batches
from sihg.robust.methods import FreeAT
from tests.robust.methods.nets import net, one_batch, samples, sgd, watched, weights

EPS = 0.2


@pytest.mark.parametrize("kind", ["smooth", "bn"])
def test_two_epochs_with_a_smaller_last_batch_are_the_listing(kind: str) -> None:
    model, twin = net(kind), net(kind)
    method, ours, theirs = FreeAT(eps=EPS, replays=3), sgd(model), sgd(twin)
    slots = torch.zeros(10, 1, 8, 8, dtype=torch.float64)
    for batch in batches(samples(26), size=10, epochs=2):
        n = len(batch.x)
        with watched(model) as points:
            log = method.step(model, batch, ours)
        assert points.rows == [n] * 3  # no other pass than the m that train
        assert log.passes == 3 * n
        for replay in range(3):
            delta = (batch.x + slots[:n].clamp(-EPS, EPS)).clamp(0, 1) - batch.x
            torch.testing.assert_close(points.inputs[replay], batch.x + delta, rtol=0, atol=1e-12)
            point = (batch.x + delta).requires_grad_()
            theirs.zero_grad()
            cross_entropy(twin(point), batch.y).backward()
            theirs.step()
            assert isinstance(point.grad, Tensor)
            delta = (delta + EPS * point.grad.sign()).clamp(-EPS, EPS)
            slots[:n] = (batch.x + delta).clamp(0, 1) - batch.x
        assert method.delta is not None
        torch.testing.assert_close(method.delta, slots, rtol=0, atol=1e-12)
    torch.testing.assert_close(weights(model), weights(twin), rtol=0, atol=1e-10)


@pytest.mark.parametrize("replays", [1, 4])
def test_every_replay_steps_the_optimiser(replays: int) -> None:
    class Counter(torch.optim.SGD):
        steps = 0

        def step(self, closure: None = None) -> None:  # type: ignore[override]
            self.steps += 1
            super().step(closure)

    model = net("plain")
    optimizer = Counter(model.parameters(), lr=0.1)
    FreeAT(eps=EPS, replays=replays).step(model, one_batch(), optimizer)
    assert optimizer.steps == replays


def test_a_state_continues_the_same_run() -> None:
    data = list(batches(samples(26), size=10))
    whole, model = FreeAT(eps=EPS, replays=2), net("plain")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert whole.state(0) == {}
    for batch in data[:2]:
        whole.step(model, batch, optimizer)
    state, other = whole.state(0), net("plain")
    other.load_state_dict(model.state_dict())
    whole.step(model, data[2], optimizer)
    resumed = FreeAT(eps=EPS, replays=2)
    resumed.load_state(state, 0)
    resumed.step(other, data[2], torch.optim.SGD(other.parameters(), lr=0.1))
    assert torch.equal(weights(model), weights(other))
    assert whole.delta is not None
    assert resumed.delta is not None
    assert torch.equal(whole.delta, resumed.delta)
    fresh = FreeAT(eps=EPS)
    fresh.load_state({}, 0)
    assert fresh.delta is None


def test_a_replay_within_autocast_sees_the_new_weights() -> None:
    """Autocast keeps 16-bit copies of the weights; they must not outlive a step of the optimiser."""
    batch, found = one_batch(dtype=torch.float32), []
    for cache in (True, False):
        model = net("plain", dtype=torch.float32)
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=cache):
            FreeAT(eps=EPS, replays=3).step(model, batch, torch.optim.SGD(model.parameters(), lr=0.5))
        found.append(weights(model))
    assert torch.equal(*found)
