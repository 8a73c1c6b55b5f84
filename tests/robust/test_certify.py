"""Interval bounds hold for every point of the box, and for single points are the network itself."""

import pytest
import torch
from torch import Tensor, nn

from sihg.robust import models
from sihg.robust.attacks import PGD, Certified, certified
from sihg.robust.certify import flatten_layers, interval_bounds, worst_case_margins
from sihg.robust.evaluation.evaluate import evaluate
from sihg.robust.evaluation.progress import EvaluationProgress
from sihg.robust.models import Threshold
from tests.refused import refused

X = torch.rand(6, 2, 9, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.tensor([0, 1, 2, 3, 2, 1])


def network() -> nn.Sequential:
    torch.manual_seed(0)
    first, second = (
        nn.Conv2d(2, 4, 3, 2, 1, groups=2),
        nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect", bias=False),
    )
    stem = nn.Sequential(Threshold(0.3, 0.7), first, nn.LeakyReLU(0.2), second)
    body = nn.Sequential(nn.MaxPool2d(2), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(6, 5), nn.Softplus())
    return nn.Sequential(stem, body, nn.Linear(5, 4)).double()


def hooked(layer: nn.Module) -> nn.Module:
    layer.register_forward_hook(lambda *_: None)
    return layer


def box(eps: float) -> tuple[Tensor, Tensor]:
    return (X - eps).clamp(0, 1), (X + eps).clamp(0, 1)


def test_every_output_lies_within() -> None:
    model, (low, high) = network(), box(0.1)
    least, most = interval_bounds(flatten_layers(model), low, high)
    for draw in range(200):
        generator = torch.Generator().manual_seed(draw)
        share = torch.rand(X.shape, generator=generator, dtype=X.dtype)
        share = share.round() if draw % 2 else share  # corners as well
        out = model(low + share * (high - low))
        assert bool((out >= least - 1e-12).all())
        assert bool((out <= most + 1e-12).all())


def test_a_linear_network_reaches_its_bounds() -> None:
    torch.manual_seed(1)
    head = nn.Linear(162, 4).double()
    model, weight, bias = nn.Sequential(nn.Flatten(), head), head.weight, head.bias
    low, high = box(0.1)
    least, most = interval_bounds(flatten_layers(model), low, high)
    for k in range(4):
        best = torch.where(weight[k] > 0, high.flatten(1), low.flatten(1)) @ weight[k] + bias[k]
        torch.testing.assert_close(most[:, k], best, rtol=0, atol=1e-12)
    lead = worst_case_margins(model, low, high, Y)
    rows = weight - weight[Y][:, None]
    most_apart = torch.where(rows > 0, high.flatten(1)[:, None], low.flatten(1)[:, None]).mul(rows).sum(2)
    torch.testing.assert_close(lead, most_apart + bias - bias[Y][:, None], rtol=0, atol=1e-12)
    assert bool((lead <= most - least.gather(1, Y[:, None]) + 1e-12).logical_or(lead == 0).all())  # and tighter


def test_a_point_gives_the_network_itself() -> None:
    model = network()
    logits = model(X)
    torch.testing.assert_close(
        worst_case_margins(model, X, X, Y), logits - logits.gather(1, Y[:, None]), rtol=0, atol=1e-12
    )


def test_the_bounds_can_be_differentiated() -> None:
    model = network()
    worst_case_margins(model, *box(0.05), Y).sum().backward()
    assert all(weight.grad is not None and bool(weight.grad.isfinite().all()) for weight in model.parameters())


@pytest.mark.parametrize(
    ("layers", "unknown"),
    [
        ([nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(98, 4)], "BatchNorm2d"),
        ([nn.Conv1d(2, 2, 3), nn.Flatten(), nn.Linear(98, 4)], "Conv1d"),
        ([nn.Flatten(), nn.Linear(162, 4), nn.Tanh()], "Tanh"),
        ([nn.Flatten(), nn.LeakyReLU(-1.0), nn.Linear(162, 4)], "LeakyReLU"),
        ([nn.MaxPool2d(2, return_indices=True), nn.Flatten(), nn.Linear(32, 4)], "MaxPool2d"),
        ([nn.Sequential(), nn.Flatten(), nn.Linear(162, 4)], "Sequential"),
        ([type("Own", (nn.ReLU,), {})(), nn.Flatten(), nn.Linear(162, 4)], "Own"),
        ([type("Twice", (nn.Linear,), {"forward": lambda *_: None})(162, 4)], "Twice"),
        ([type("Scaled", (nn.Conv2d,), {"_conv_forward": None})(2, 2, 3), nn.Linear(7, 4)], "Scaled"),
        ([type("Skip", (nn.Sequential,), {"forward": lambda *_: None})(nn.ReLU()), nn.Linear(9, 4)], "Skip"),
    ],
)
def test_layers_without_bounds_are_refused(layers: list[nn.Module], unknown: str) -> None:
    with refused("interval-layer", layer=unknown):
        worst_case_margins(nn.Sequential(*layers).double(), X, X, Y)


def test_hooks_are_refused() -> None:
    with refused("interval-hooks"):
        worst_case_margins(nn.Sequential(hooked(nn.Flatten()), nn.Linear(162, 4)).double(), X, X, Y)


def test_certified_samples_hold_and_others_are_counted() -> None:
    model, y = network(), network()(X).argmax(1)
    sure, unsure = (Certified(eps=eps).run(model, X, y) for eps in (1e-4, 1.0))
    assert not bool(sure.broken.any())
    assert bool((sure.margin > 0).all())
    assert torch.equal(sure.prediction, y)
    assert bool(unsure.broken.all())
    assert bool((unsure.margin <= 0).all())
    assert sure.passes == 0
    assert sure.forwards == 2 * len(X)
    assert torch.equal(sure.x_adv, X)
    attacked = PGD(eps=1e-4).run(model, X, y)
    assert not bool(attacked.broken.any())
    assert bool((attacked.margin >= sure.margin).all())


def test_the_lower_bound_stands_last_and_apart_from_what_attacks_leave() -> None:
    model = models.build("small-cnn", (1, 8, 8), 10, seed=0)
    x = torch.rand(80, 1, 8, 8)
    with torch.no_grad():
        y = model(x).argmax(1)
    found = evaluate(model, (x, y), eps=0.02, attacks="certified,natural,pgd-5,pgd-3", samples=60)
    assert [row.attack for row in found.rows()] == ["natural", "pgd-5", "pgd-3", "all", "certified"]
    assert found["certified"].accuracy < found["pgd-5"].accuracy == found.accuracy
    assert [one.result for one in found.checks if one.name.startswith("proof")] == ["fine"] * 3
    assert "certified: proven by interval bounds" in str(found)
    alone = evaluate(model, (x, y), eps=0.02, attacks="certified")
    assert alone.accuracy == alone["certified"].accuracy


def test_an_attack_on_what_was_proven_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.build("small-cnn", (1, 8, 8), 10, seed=0)
    x, y = torch.rand(80, 1, 8, 8), torch.zeros(80, dtype=torch.long)
    monkeypatch.setattr(
        certified, "worst_case_margins", lambda _model, low, _high, _y: -torch.ones(len(low), 10)
    )  # a wrong bound
    found = evaluate(model, (x, y), eps=0.2, attacks="certified,pgd-5")
    (check,) = [one for one in found.checks if one.name == "proof: pgd-5"]
    assert check.result == "error"
    assert f"pgd-5 breaks {int(found['pgd-5'].broken.sum())} samples that certified proves robust" in check.message


def test_a_model_without_bounds_is_refused_before_any_attack() -> None:
    x, y, asked = torch.rand(80, 1, 8, 8), torch.zeros(80, dtype=torch.long), list[str]()

    def progress(event: EvaluationProgress) -> None:
        asked.append(event.stage)

    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.GELU(), nn.Linear(10, 10))
    with refused("interval-layer", layer="GELU"):
        evaluate(model, (x, y), eps=0.1, attacks="pgd-5,certified", progress=progress)
    assert not asked


def test_a_label_without_an_output() -> None:
    with refused("certify-label-range"):
        worst_case_margins(network(), X, X, Y + 1)


def test_there_are_none_for_l2() -> None:
    with refused("interval-norm", norm="l2"):
        Certified(eps=1.0, norm="l2")


def test_a_tie_is_not_a_proof() -> None:
    model = nn.Linear(3, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    found = Certified(eps=0.1).run(model, torch.full((2, 3), 0.5), torch.tensor([0, 1]))
    assert found.broken.tolist() == [True, True]
