"""Adversarial weight perturbation and label smoothing, which every method against a ball has."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.overrides import TorchFunctionMode

from sihg.core.hybrid import HybridGradient
from sihg.robust.data.batches import Batch
from sihg.robust.methods import METHODS, PGDAT, YOPO, build_method
from sihg.robust.methods.awp import perturbed_weights
from sihg.robust.models import split_stem
from tests.refused import refused
from tests.robust.methods.nets import CLASSES, gradient_after, net, one_batch, sgd, watched, weights

EPS = 0.2
BALLS = [name for name in METHODS if name != "natural"]
FEW: dict[str, dict[str, Any]] = {
    **{name: {"steps": 2} for name in ("pgd", "dat", "trades", "mart", "msi-hg")},
    "yopo": {"outer": 2, "inner": 2},
    "free": {"replays": 2},
}


def build(name: str, **settings: Any) -> Any:
    return build_method(name, eps=EPS, **FEW.get(name, {}), **settings)


def kind_for(name: str) -> str:
    return "plain" if name == "ibp" else "bn"


def perturb(model: nn.Module, loss: Tensor, gamma: float) -> None:
    """By hand, per weight tensor: w + gamma |w| g / |g|."""
    parameters = list(model.parameters())
    with torch.no_grad():
        for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            if p.dim() > 1:
                p.add_(gamma * p.norm() * g / g.norm())


def attacked_loss(model: nn.Module, batch: Batch, adversarial: Tensor) -> Tensor:
    return cross_entropy(model(adversarial), batch.y)


def trades_loss(model: nn.Module, batch: Batch, adversarial: Tensor) -> Tensor:
    logits = model(batch.x)
    clean, attacked = logits.softmax(1), model(adversarial).softmax(1)
    divergence: Tensor = (clean * (clean.log() - attacked.log())).sum(1).mean()
    return cross_entropy(logits, batch.y) + 6.0 * divergence


@pytest.mark.parametrize("kind", ["smooth", "bn"])
@pytest.mark.parametrize(
    ("name", "objective", "passes"), [("pgd", attacked_loss, 2 + 2), ("trades", trades_loss, 2.5 + 4)]
)
def test_a_step_is_the_gradient_at_the_perturbed_weights(
    name: str, objective: Callable[[nn.Module, Batch, Tensor], Tensor], passes: float, kind: str
) -> None:
    """The gradient is that of the same objective at the same points."""
    batch, model, twin = one_batch(), net(kind), net(kind)
    before = weights(model)
    with watched(model) as points:
        log = build(name, awp_gamma=0.1).step(model, batch, torch.optim.SGD(model.parameters(), lr=0.0))
    assert torch.equal(weights(model), before)
    adversarial = points.inputs[-1]
    assert sum(torch.equal(point, adversarial) for point in points.inputs) == 2
    statistics = {name: value.clone() for name, value in twin.named_buffers()}
    perturb(twin, objective(twin, batch, adversarial), 0.1)
    twin.load_state_dict(statistics, strict=False)  # those of the first pass are not kept
    loss = objective(twin, batch, adversarial)
    for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(twin.parameters())), strict=True):
        torch.testing.assert_close(p.grad, g, rtol=1e-9, atol=1e-13)
    for a, b in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
    assert log.loss == pytest.approx(float(loss.detach()), rel=1e-12)
    assert log.passes == passes * 12


def test_yopo_ascends_and_trains_at_the_perturbed_weights() -> None:
    """One full pass and one ascent step, by hand."""
    batch, model, twin = one_batch(), net("smooth"), net("smooth")
    method = YOPO(eps=EPS, outer=1, inner=1, step_size=0.07, awp_gamma=0.1)
    with watched(model.stem) as points:  # type: ignore[arg-type]
        log = method.step(model, batch, torch.optim.SGD(model.parameters(), lr=0.0))
    first, last = points.inputs[0], points.inputs[-1]
    perturb(twin, cross_entropy(twin(first), batch.y), 0.1)
    stem, body = split_stem(twin)
    point = first.clone().requires_grad_()
    out = stem(point).detach().requires_grad_()
    loss = cross_entropy(body(out), batch.y)
    *of_body, p = torch.autograd.grad(loss, [*body.parameters(), out])
    (g,) = torch.autograd.grad(stem(point), point, p)
    low, high = (batch.x - EPS).clamp(min=0), (batch.x + EPS).clamp(max=1)
    torch.testing.assert_close(last, (first + 0.07 * g.sign()).clamp(low, high), rtol=0, atol=1e-12)
    of_stem = torch.autograd.grad((stem(last) * p).sum(), list(stem.parameters()))
    for parameter, expected in zip(model.parameters(), (*of_stem, *of_body), strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-9, atol=1e-13)
    assert log.passes == 2 * 12


@pytest.mark.parametrize("name", BALLS)
def test_every_method_has_it_from_the_end_of_the_warmup_on(name: str) -> None:
    """Before, every bit is as without; afterwards the gradient is another one, and all of its passes are counted."""
    batch = one_batch()
    later = type(batch)(**{**vars(batch), "epoch": 2, "time": 2.5})
    model = net(kind_for(name))
    for now in (batch, later):
        plain, log = gradient_after(build(name), model, now)
        other, same = gradient_after(build(name, awp_gamma=0.05, awp_warmup=1.0), model, now)
        assert torch.equal(plain, other) == (now is batch)
        assert (log.passes == same.passes) == (now is batch)


@pytest.mark.parametrize("name", [name for name in BALLS if name not in ("yopo", "ibp", "dat")])
@pytest.mark.parametrize("gamma", [0.0, 0.05])
def test_the_passes_are_those_of_the_model(name: str, gamma: float) -> None:
    batch, model = one_batch(), net("bn")
    with watched(model) as points:
        log = build(name, awp_gamma=gamma).step(model, batch, sgd(model))
    forward = sum(points.rows) - points.rows_with_gradient()
    assert log.passes == points.rows_with_gradient() + forward / 2


@pytest.mark.parametrize("name", BALLS)
def test_the_weights_are_restored_to_the_bit(name: str) -> None:
    model = net(kind_for(name))
    before = weights(model)
    build(name, awp_gamma=0.3).step(model, one_batch(), torch.optim.SGD(model.parameters(), lr=0.0))
    assert torch.equal(weights(model), before)


@pytest.mark.parametrize("name", ["pgd", "free", "yopo", "atta"])
def test_within_autocast_a_pass_sees_the_weights_of_its_time(name: str) -> None:
    """Autocast keeps 16-bit copies of the weights; they must not outlive a change of the weights."""
    batch, model = one_batch(dtype=torch.float32), net("plain", dtype=torch.float32)
    found = {}
    for gamma in (0.0, 0.05):
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            expected, _ = gradient_after(build(name, awp_gamma=gamma), model, batch)
        with torch.autocast("cpu", torch.bfloat16):
            found[gamma], _ = gradient_after(build(name, awp_gamma=gamma), model, batch)
        assert torch.equal(found[gamma], expected)
    assert not torch.equal(found[0.0], found[0.05])
    with torch.autocast("cpu", torch.bfloat16):
        before = model(batch.x)
        build(name, awp_gamma=0.3).step(model, batch, torch.optim.SGD(model.parameters(), lr=0.0))
        assert torch.equal(model(batch.x), before)


class InterruptedWrite(TorchFunctionMode):
    """Raise KeyboardInterrupt at the second `add_`."""

    writes = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.writes += func is Tensor.add_
        if func is Tensor.add_ and self.writes == 2:
            raise KeyboardInterrupt
        return func(*args, **(kwargs or {}))


def test_the_weights_are_restored_when_a_pass_or_a_write_fails() -> None:
    model, before = net("plain"), weights(net("plain"))
    x, y = torch.rand(3, 1, 8, 8, dtype=torch.float64), torch.tensor([0, 1, 2])

    def objective(model: nn.Module) -> tuple[Tensor, Tensor]:
        logits = model(x)
        return cross_entropy(logits, y), logits

    def fail_within() -> None:
        with perturbed_weights(model, objective, x, 0.1):
            assert not torch.equal(weights(model), before)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_within()
    assert torch.equal(weights(model), before)
    with pytest.raises(KeyboardInterrupt), InterruptedWrite(), perturbed_weights(model, objective, x, 0.1):
        pass
    assert torch.equal(weights(model), before)
    for p in model.parameters():
        p.requires_grad_(p.dim() == 1)  # nothing that it could perturb
    with perturbed_weights(model, objective, x, 0.1):
        assert torch.equal(weights(model), before)


class Root(nn.Module):
    """Add the root of a zero weight: the output is finite, and its gradient in the weight is not."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8, 8, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight.sqrt()


def test_a_gradient_that_is_not_finite_reaches_neither_weights_nor_statistics() -> None:
    batch, model = one_batch(), nn.Sequential(Root(), net("bn"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with refused("awp-not-finite"):
        build("pgd", awp_gamma=0.1).step(model, batch, sgd(model))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_sample_that_is_not_finite_is_named() -> None:
    batch, model = one_batch(), net("smooth")
    batch.x[5, 0, 0, 0] = torch.nan
    with refused("loss-not-finite", rows=(5,)):
        build("pgd", awp_gamma=0.1).step(model, batch, sgd(model))


def test_the_hybrid_gradient_extrapolates_the_perturbed_gradients() -> None:
    """Two steps with theta = 1 by hand: w - lr (2 g - q)."""
    batch, model, method = one_batch(), net("smooth"), PGDAT(eps=EPS, steps=2, awp_gamma=0.1)
    optimizer = HybridGradient(torch.optim.SGD(model.parameters(), lr=0.1), theta=1.0)
    start = weights(model)
    q, _ = gradient_after(method, model, batch)
    method.step(model, batch, optimizer)
    torch.testing.assert_close(weights(model), start - 0.1 * q, rtol=0, atol=1e-12)
    g, _ = gradient_after(method, model, batch)
    second = weights(model)
    method.step(model, batch, optimizer)
    torch.testing.assert_close(weights(model), second - 0.1 * (2 * g - q), rtol=0, atol=1e-12)


# ---- label smoothing


@pytest.mark.parametrize("name", BALLS)
def test_every_method_smooths_its_labels(name: str) -> None:
    batch, model = one_batch(), net(kind_for(name))
    plain, smoothed = (gradient_after(build(name, label_smoothing=share), model, batch)[0] for share in (0.0, 0.2))
    assert not torch.equal(smoothed, plain)


def passes_of(name: str, smoothing: float) -> Tensor:
    """All points at which a step computes outputs, with weights that stay."""
    batch, model = one_batch(), net("bn")
    with watched(split_stem(model)[0]) as points:  # YOPO ascends through the stem alone
        build(name, label_smoothing=smoothing).step(model, batch, torch.optim.SGD(model.parameters(), lr=0.0))
    return torch.cat(points.inputs)


@pytest.mark.parametrize("name", [name for name in BALLS if name != "ibp"])  # which has no attack
def test_the_attack_has_plain_labels_unless_its_gradient_is_that_of_training(name: str) -> None:
    is_smoothed = name in ("free", "yopo", "fgsm-pgi")
    assert torch.equal(passes_of(name, 0.3), passes_of(name, 0.0)) != is_smoothed


def test_smoothed_labels_by_hand() -> None:
    batch, model = one_batch(), net("smooth")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watched(model) as points:
        log = PGDAT(eps=EPS, steps=2, label_smoothing=0.3).step(model, batch, optimizer)
    labels = 0.7 * torch.eye(CLASSES, dtype=torch.float64)[batch.y] + 0.3 / CLASSES
    loss = -(labels * model(points.inputs[-1]).softmax(1).log()).sum(1).mean()
    assert log.loss == pytest.approx(float(loss.detach()), rel=1e-12)
