"""MSI-HG: what it is without its parts, and Algorithm 4 word for word."""

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sihg.core.hybrid import HybridGradient
from sihg.parse import ORDERS
from sihg.robust.data.augment import Augment
from sihg.robust.data.batches import Batch, batches
from sihg.robust.gradients import input_gradient
from sihg.robust.memory import PerturbationMemory
from sihg.robust.methods import MSIHG, PGDAT
from sihg.robust.models import Threshold
from sihg.robust.threat import Ball
from sihg.robust.training.optimizer import TrainingOptimizer
from sihg.robust.training.schedules import Constant
from tests.refused import refused
from tests.robust.methods.nets import IMAGE, net, samples, sgd, start_noise, watched, weights

EPS = 0.25  # a power of two, so that delta / eps and back are exact


def fp32(n: int) -> PerturbationMemory:
    return PerturbationMemory(n, IMAGE, EPS, dtype="fp32")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["plain", "bn"])
@pytest.mark.parametrize(("norm", "trainers"), [("linf", False), ("linf", True), ("l2", True)])
def test_without_its_parts_it_is_pgd_at(dtype: torch.dtype, kind: str, norm: str, trainers: bool) -> None:
    """theta = 0, tau = 2 eps, noise eps and an empty memory: the same weights to the bit after 20 steps."""
    model, twin = net(kind, dtype=dtype), net(kind, dtype=dtype)
    before = weights(model)
    memory = PerturbationMemory(80, IMAGE, EPS, dtype="int8" if norm == "linf" else "fp16")
    ours, theirs = MSIHG(eps=EPS, norm=norm, tau=2 * EPS, noise=EPS, memory=memory), PGDAT(eps=EPS, norm=norm, steps=5)
    hybrid, plain = HybridGradient(sgd(model), theta=0.0), sgd(twin)
    whole = TrainingOptimizer(model, hybrid, Constant(0.1))
    for batch in batches(samples(80, dtype=dtype), size=4):
        whole.time = batch.time
        log = ours.step(model, batch, whole if trainers else hybrid)
        same = theirs.step(twin, batch, plain)
        assert log.loss == same.loss
        assert log.passes == same.passes
    assert torch.equal(weights(model), weights(twin))
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), twin.buffers(), strict=True))
    assert float((weights(model) - before).abs().max()) > 0.01


def test_its_parts_matter() -> None:
    """Each of theta, tau and the memory changes the weights, so that the equation above says something."""
    results = []
    for theta, tau, stored in (
        (0.0, 2 * EPS, False),
        (1.0, 2 * EPS, False),
        (0.0, EPS / 4, False),
        (0.0, 2 * EPS, True),
    ):
        model, memory = net("plain"), fp32(32)
        if stored:
            memory.write(torch.arange(32), 0, torch.full((32, *IMAGE), EPS))
        optimizer = HybridGradient(sgd(model), theta=theta)
        for batch in list(batches(samples(32), size=8, epochs=2))[4:]:
            MSIHG(eps=EPS, tau=tau, noise=EPS, memory=memory).step(model, batch, optimizer)
        results.append(weights(model))
    for i, one in enumerate(results):
        assert all(float((one - other).abs().max()) > 1e-4 for other in results[:i])


def algorithm_4(model: nn.Module, data: list[Batch], n: int, tau: float, T: int, lr: float) -> list[Tensor]:
    """The listing, one sample at a time, with momentum 0.9 and theta = 1 by hand."""
    memory = [torch.zeros(IMAGE) for _ in range(n)]
    parameters = list(model.parameters())
    velocity = [torch.zeros_like(p) for p in parameters]
    previous: list[Tensor] | None = None
    for batch in data:
        noise = start_noise(batch, tau)
        deltas = []
        for row, i in enumerate(batch.index.tolist()):
            x, y, old = batch.x[row], batch.y[row : row + 1], memory[i].double()
            low, high = (-x).clamp(min=-EPS), (1 - x).clamp(max=EPS)  # B_i
            centre = old.clamp(low, high)  # what float32 has rounded out of B_i
            low, high = torch.maximum(low, centre - tau), torch.minimum(high, centre + tau)  # S_i
            delta = (old + noise[row]).clamp(low, high)
            for _ in range(T):
                point = (x + delta)[None].requires_grad_()
                (g,) = torch.autograd.grad(cross_entropy(model(point), y), point)
                delta = (delta + 2.5 * EPS / T * g[0].sign()).clamp(low, high)
            memory[i] = delta.float()
            deltas.append(delta)
        loss = cross_entropy(model(batch.x + torch.stack(deltas)), batch.y)
        gradients = list(torch.autograd.grad(loss, parameters))
        for p, v, g, q in zip(parameters, velocity, gradients, previous or gradients, strict=True):
            v.mul_(0.9).add_(2 * g - q)
            p.data.sub_(lr * v)
        previous = gradients
    return memory


@pytest.mark.parametrize("kind", ["smooth", "plain"])
def test_two_epochs_are_algorithm_4(kind: str) -> None:
    model, twin, memory = net(kind), net(kind), fp32(34)
    data = list(batches(samples(34), size=8, epochs=2))
    method = MSIHG(eps=EPS, tau=0.1, steps=3, memory=memory)
    optimizer = HybridGradient(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), theta=1.0)
    for batch in data:
        method.step(model, batch, optimizer)
    expected = algorithm_4(twin, data, 34, tau=0.1, T=3, lr=0.1)
    torch.testing.assert_close(weights(model), weights(twin), rtol=0, atol=1e-12)
    torch.testing.assert_close(memory.read(torch.arange(34), 2), torch.stack(expected), rtol=0, atol=1e-7)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_the_search_stays_near_the_stored_perturbation(norm: str) -> None:
    """On the grid of the memory, one made in another epoch, with a smaller tau."""
    dtype = "int8" if norm == "linf" else "fp16"
    model, memory = net("plain"), PerturbationMemory(40, IMAGE, EPS, dtype=dtype)
    optimizer = sgd(model)
    for batch in batches(samples(40), size=10, epochs=3):
        stored = memory.read(batch.index, batch.epoch).double()
        with watched(model) as points:
            log = MSIHG(eps=EPS, norm=norm, tau=0.05, memory=memory).step(model, batch, optimizer)
        old = Ball(EPS, norm).around(batch.x).project_(stored.clone())
        order = ORDERS[norm]
        for point in points.inputs:
            moved, whole = ((point - batch.x - some).flatten(1) for some in (old, torch.zeros_like(old)))
            assert float(torch.linalg.vector_norm(moved, ord=order, dim=1).max()) <= 0.05 + 1e-12
            assert float(torch.linalg.vector_norm(whole, ord=order, dim=1).max()) <= EPS + 1e-12
        delta = points.inputs[-1] - batch.x
        assert log.moved == pytest.approx(float((delta - stored).abs().mean()) / EPS, rel=1e-9)
        if norm == "linf":
            low, high = (-batch.x).clamp(min=-EPS), (1 - batch.x).clamp(max=EPS)
            full = (delta <= low + 1e-12) | (delta >= high - 1e-12)
        else:
            full = delta.flatten(1).norm(p=order, dim=1) >= 0.99 * EPS
        assert log.saturated == pytest.approx(float(full.double().mean()), abs=1e-12)
        kept = memory.read(batch.index, batch.epoch + 1).double()
        torch.testing.assert_close(kept, delta, rtol=0, atol=EPS / 254 + 1e-7)


@pytest.mark.parametrize(("norm", "step_size"), [("linf", None), ("linf", 0.2), ("l2", None), ("l1", None)])
def test_the_proximal_form_solves_the_implicit_step(norm: str, step_size: float | None) -> None:
    memory, most = fp32(12), {"linf": EPS, "l2": EPS / 8, "l1": EPS / 64}[norm]
    stored = (2 * torch.rand(12, *IMAGE, generator=torch.Generator().manual_seed(1)) - 1) * most
    memory.write(torch.arange(12), 0, stored)
    batch = list(batches(samples(12), size=12, epochs=2))[1]
    model, tau = net("smooth"), 0.8
    method = MSIHG(eps=EPS, norm=norm, tau=tau, steps=150, step_size=step_size, implicit="proximal", memory=memory)
    with watched(model) as points:
        method.step(model, batch, torch.optim.SGD(model.parameters(), lr=0.0))
    delta, ball = points.inputs[-1] - batch.x, Ball(EPS, norm).around(batch.x)
    slopes = input_gradient(model, batch.x + delta, batch.y)
    implicit = ball.project_(stored[batch.index].double() + tau * slopes)
    torch.testing.assert_close(delta, implicit, rtol=0, atol=1e-9)
    explicit = ball.project_(
        stored[batch.index].double() + tau * input_gradient(model, batch.x + stored[batch.index], batch.y)
    )
    assert float((delta - explicit).abs().max()) > 1e-4  # which is another step


def augmented(epochs: int, **settings: Any) -> tuple[list[Batch], nn.Module, PerturbationMemory, MSIHG]:
    data = list(batches(samples(20, dtype=torch.float32), size=10, epochs=epochs, augment=Augment(crop=2)))
    memory = fp32(20)
    return data, net("plain", dtype=torch.float32), memory, MSIHG(eps=EPS, noise=0.0, memory=memory, **settings)


@pytest.mark.parametrize("how", ["same", "independent", "none"])
def test_how_stored_perturbations_move(how: str) -> None:
    data, model, memory, method = augmented(3, augment_delta=how)
    own_moves = 0
    for batch in data:
        assert batch.move is not None
        stored = memory.read(batch.index, batch.epoch)
        with watched(model) as points:
            method.step(model, batch, sgd(model))
        move = {"same": batch.move, "independent": batch.move.shuffled(batch.draw("delta")), "none": None}[how]
        old = stored if move is None else move.apply(stored)
        start = Ball(EPS).around(batch.x).project_(old.clone())
        assert torch.equal(points.inputs[0], batch.x + start)
        delta = points.inputs[-1] - batch.x
        kept = memory.read(batch.index, batch.epoch + 1)
        if how == "same":
            torch.testing.assert_close(kept, batch.move.back(delta, stored), rtol=0, atol=1e-6)
        else:
            torch.testing.assert_close(kept, delta, rtol=0, atol=1e-6)
        own_moves += int(torch.equal(old, batch.move.apply(stored)))
        assert float(kept.abs().max()) > 0
    assert own_moves == (6 if how == "same" else 2)  # in the first epoch there is nothing to move


def test_a_pixel_that_was_cropped_away_keeps_its_perturbation() -> None:
    data, model, memory, method = augmented(2)
    first = torch.where(torch.arange(20).view(20, 1, 1, 1) % 2 == 0, 0.125, -0.0625).expand(20, *IMAGE)
    memory.write(torch.arange(20), 0, first.contiguous())
    batch = data[2]
    assert batch.move is not None
    method.step(model, batch, sgd(model))
    seen = batch.move.back(torch.ones_like(batch.x), torch.zeros_like(batch.x)) == 1
    kept = memory.read(batch.index, 2)
    assert torch.equal(kept[~seen], first[batch.index][~seen])
    assert float((kept[seen] != first[batch.index][seen]).double().mean()) > 0.5
    assert int((~seen).sum()) > 0


def test_the_memory_starts_again_every_few_epochs() -> None:
    """In those epochs as without a memory, also in the first after them from what they wrote."""
    memory = fp32(10)
    model = net("plain")
    for batch in batches(samples(10), size=10, epochs=4):
        stored = memory.read(batch.index, batch.epoch).double()
        with watched(model) as points:
            MSIHG(eps=EPS, noise=0.0, reset=2, memory=memory).step(model, batch, sgd(model))
        start = torch.zeros_like(stored) if batch.epoch % 2 == 0 else stored
        torch.testing.assert_close(points.inputs[0], (batch.x + start).clamp(0, 1), rtol=0, atol=1e-7)


@pytest.mark.parametrize("bounds", [None, (0.0, 1.0)])
def test_corners_count_as_saturated_with_a_pixel_box_too(bounds: tuple[float, float] | None) -> None:
    model, memory = net("smooth"), fp32(20)
    method = MSIHG(eps=EPS, bounds=bounds, tau=2 * EPS, step_size=2 * EPS, memory=memory)
    (batch,) = batches(samples(20), size=20)
    log = method.step(model, batch, sgd(model))
    assert log.saturated == 1.0
    if bounds is not None:
        assert float((memory.read(batch.index, 1).abs() < 0.99 * EPS).float().mean()) > 0.1


def test_an_int8_memory_is_too_coarse_for_l2() -> None:
    memory = PerturbationMemory(3, IMAGE, EPS)
    with refused("memory-dtype-norm", dtype="int8", norm="l2") as caught:
        MSIHG(eps=EPS, norm="l2", memory=memory)
    assert "\n" not in str(caught.value)
    assert MSIHG(eps=EPS, memory=memory).memory is memory
    for dtype in ("fp16", "fp32"):
        fine = PerturbationMemory(3, IMAGE, EPS, dtype=dtype)
        assert MSIHG(eps=EPS, norm="l2", memory=fine).memory is fine


def test_a_memory_for_a_smaller_ball() -> None:
    with refused("memory-eps", eps=0.3):
        MSIHG(eps=0.3, memory=fp32(3))


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_with_every_search_fresh_it_is_pgd_at(norm: str) -> None:
    """Whatever is stored and however small tau is: the same weights to the bit, over two epochs."""
    model, twin, memory = net("plain"), net("plain"), fp32(16)
    ours = MSIHG(eps=EPS, norm=norm, tau=EPS / 8, fresh=1.0, memory=memory)
    theirs = PGDAT(eps=EPS, norm=norm, steps=5)
    hybrid, plain = HybridGradient(sgd(model), theta=0.0), sgd(twin)
    for batch in batches(samples(16), size=4, epochs=2):
        ours.step(model, batch, hybrid)
        theirs.step(twin, batch, plain)
    assert torch.equal(weights(model), weights(twin))


def test_a_share_of_the_searches_is_fresh() -> None:
    """The others stay within tau of what is stored; the fresh ones, about that share, go further."""
    n, tau = 400, EPS / 8
    memory = fp32(n)
    memory.write(torch.arange(n), 0, torch.full((n, *IMAGE), EPS / 2))
    method = MSIHG(eps=EPS, bounds=None, tau=tau, fresh=0.25, memory=memory)
    (batch,) = list(batches(samples(n), size=n, epochs=2))[1:]
    method.step(net("plain"), batch, sgd(net("plain")))
    moved = (memory.read(torch.arange(n), 2) - EPS / 2).abs().flatten(1).amax(1)
    far = moved > tau * 1.001
    assert 0.15 < float(far.float().mean()) < 0.35
    assert float(moved[far].min()) > 2 * tau


def test_a_share_outside_0_to_1_is_refused() -> None:
    with refused("setting-value", setting="fresh", value=1.5):
        MSIHG(eps=EPS, fresh=1.5)


def behind(body: nn.Module, low: float = 0.4, high: float = 0.6) -> nn.Module:
    return nn.Sequential(OrderedDict(stem=Threshold(low, high), body=body))


@pytest.mark.parametrize("steps", [1, 4])
def test_a_search_of_the_threshold_is_one_behind_it(steps: int) -> None:
    """Its points, seen behind the threshold, are those of signed ascent in the box of what the threshold lets pass.

    By hand: u = the threshold of x + delta lies between its values at the ends of the ball, and each length in delta is
    one in u as the widths of both boxes are to each other.
    """
    eps, tau, body, memory = 0.3, 0.2, net("smooth"), PerturbationMemory(12, IMAGE, 0.3, dtype="fp32")
    memory.write(torch.arange(12), 0, torch.full((12, *IMAGE), 0.15))
    batch = list(batches(samples(12), size=12, epochs=2))[1]
    method = MSIHG(eps=eps, tau=tau, noise=0.1, steps=steps, search="threshold", memory=memory)
    model = behind(body)
    with watched(model) as in_front, watched(body) as points:
        log = method.step(model, batch, torch.optim.SGD(model.parameters(), lr=0.0))

    def clipped(x: Tensor) -> Tensor:
        return ((x - 0.4) / 0.2).clamp(0, 1)

    x = batch.x
    low, high = (x - eps).clamp(min=0), (x + eps).clamp(max=1)
    least, most = clipped(low), clipped(high)
    scale = (most - least) / (high - low)
    stored = clipped((x + 0.15).clamp(low, high))
    noise = start_noise(batch, 0.1)
    # the noise is added to what is stored, which need not lie on the ramp
    start = ((x + 0.15).clamp(max=1) + 0.2 * scale * noise - 0.4) / 0.2
    near = torch.maximum(least, stored - tau * scale), torch.minimum(most, stored + tau * scale)
    u = torch.clamp(start, *near)
    for step in range(steps):
        torch.testing.assert_close(points.inputs[step].clamp(0, 1), u, rtol=0, atol=1e-6)
        u = torch.clamp(
            u + 2.5 * eps / steps * scale * input_gradient(body, points.inputs[step], batch.y).sign(), *near
        )
    torch.testing.assert_close(points.inputs[-1].clamp(0, 1), u, rtol=0, atol=1e-6)
    delta = in_front.inputs[-1] - x
    assert float(delta.abs().max()) <= eps + 1e-12
    torch.testing.assert_close(memory.read(batch.index, 2).double(), delta, rtol=0, atol=1e-6)
    grey = most > least
    assert 0.2 < float(grey.double().mean()) < 1  # so that both kinds of pixels were there
    at_ends = ((u <= least + 1e-9) | (u >= most - 1e-9))[grey]
    assert log.saturated == pytest.approx(float(at_ends.double().mean()), abs=1e-9)
    assert 0 < float(at_ends.double().mean()) < 1
    assert log.moved == pytest.approx(float((delta - 0.15).abs().mean()) / eps, rel=1e-6)


@pytest.mark.parametrize("settings", [{"fresh": 1.0}, {"ramp": 3.0}, {"bounds": None}])
@pytest.mark.parametrize("lanes", [1, 4])
def test_searches_of_the_threshold_stay_on_the_ramp(settings: dict[str, Any], lanes: int) -> None:
    """Also in lanes, on moved images, at a radius of 0 to begin with, and outside [0, 1]; and they find something."""
    x, y = samples(12)
    memory = fp32(12)
    method, model = MSIHG(eps=EPS, tau=2 * EPS, noise=0.1, search="threshold", memory=memory, **settings), net("plain")
    model = behind(model, 0.45, 0.55)
    for whole in batches((x, y), size=12, epochs=3, augment=Augment(crop=1)):
        for batch in whole.lanes(lanes):
            with watched(model) as points:
                method.step(model, batch, torch.optim.SGD(model.parameters(), lr=0.0))
            radius = EPS * min(1.0, batch.time / settings["ramp"]) if "ramp" in settings else EPS
            low, high = batch.x - radius, batch.x + radius
            if "bounds" not in settings:
                low, high = low.clamp(min=0), high.clamp(max=1)
            least, most = Threshold(0.45, 0.55).passed(low, high)
            for point in points.inputs:
                assert bool((point >= least - 1e-6).all())
                assert bool((point <= most + 1e-6).all())
            with torch.no_grad():
                near, far = (cross_entropy(model(some), batch.y) for some in (batch.x, points.inputs[-1]))
            assert float(far) > float(near) or radius == 0


def test_a_search_of_a_threshold_needs_one_and_signed_steps() -> None:
    method = MSIHG(eps=EPS, search="threshold")
    (batch,) = batches(samples(4), size=4)
    with refused("no-threshold"):
        method.step(net("plain"), batch, sgd(net("plain")))
    two = nn.Sequential(Threshold(0.3, 0.7), Threshold(), net("plain"))
    with refused("thresholds-differ"):
        method.step(two, batch, sgd(net("plain")))
    with refused("threshold-search-norm", norm="linf", implicit="proximal"):
        MSIHG(eps=EPS, search="threshold", implicit="proximal")
    with refused("threshold-search-norm", norm="l2", implicit="sign"):
        MSIHG(eps=EPS, search="threshold", norm="l2")
    with refused("setting-value", setting="search", value="box"):
        MSIHG(eps=EPS, search="box")


def test_a_search_of_the_threshold_checks_that_it_sees_the_samples() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = behind(net("plain"))

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.network((x - 0.5) / 0.5)
            return logits

    x, _ = samples(1)
    MSIHG(eps=EPS, search="threshold").check(nn.Sequential(Threshold(), net("plain")), x)
    MSIHG(eps=EPS).check(Scaled(), x)
    model = Scaled()
    with refused("threshold-not-first"):
        MSIHG(eps=EPS, search="threshold").check(model, x)
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert model.training
