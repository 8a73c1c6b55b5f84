"""Attacks that search in bfloat16: float32 makes every verdict."""

from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sihg
from sihg.robust import models
from sihg.robust.attacks import APGD, FAB, PGD, Attack, Natural, Noise, Square
from sihg.robust.attacks.attacked_rows import Rows
from sihg.robust.attacks.registry import Plan, build_plan
from sihg.robust.attacks.runner import attack_batch, run_attacks
from sihg.robust.attacks.search import Search
from sihg.robust.data import Samples, as_samples
from sihg.robust.evaluation.evaluate_run import EvaluationRequest
from sihg.robust.gradients import compute_logits, inner_mode, misclassified
from sihg.robust.precision import FormatChoice, number_formats
from sihg.robust.threat import Ball
from sihg.store.schema import EvaluationRecord, read_evaluation
from tests.refused import refused
from tests.robust.small import digits

EPS = 0.1
ATTACKS = {
    "pgd": PGD(eps=EPS, steps=8),
    "pgd, last iterate": PGD(eps=EPS, steps=8, last_iterate=True),
    "pgd, l2": PGD(eps=1.0, norm="l2", steps=8, restarts=2),
    "pgd, no bounds": PGD(eps=EPS, bounds=None, steps=8),
    "apgd": APGD(eps=EPS, steps=10),
    "apgd-t": APGD(eps=EPS, loss="dlr-t", steps=5, targets=3),
    "fab": FAB(eps=EPS, steps=10, targets=3),
    "fab, l2": FAB(eps=1.0, norm="l2", steps=10, targets=3),
    "square": Square(eps=EPS, queries=60),
    "square, l2": Square(eps=1.0, norm="l2", queries=60),
}
EXACT: dict[str, Attack] = {
    "natural": Natural(),
    "noise": Noise(eps=EPS, draws=2),
}


def trained() -> nn.Module:
    torch.manual_seed(0)
    model = models.build("small-cnn", (1, 8, 8), 10, width=1 / 2, seed=0)
    return sihg.fit(model, digits(300), method="pgd", eps=EPS, steps=2, epochs=3, batch_size=50).model


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return trained()


class Liar(nn.Module):
    """Classifies its first pixels by their sum of weights; under autocast it says that all rows are misclassified."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)
        self.lies = 0

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x.flatten(1))
        if out.dtype == torch.bfloat16:
            self.lies += 1
            return -out
        return out


@pytest.mark.parametrize("name", ATTACKS)
def test_broken_means_misclassified_in_float32(name: str, model: nn.Module) -> None:
    few = digits(200)
    x, y = few.floats(), few.y
    verdict = attack_batch(ATTACKS[name], model, x, y, precision="bfloat16")
    assert verdict.x_adv.dtype == verdict.margin.dtype == torch.float32
    assert 0 < int(verdict.broken.sum()) < len(y)
    assert torch.equal(ATTACKS[name].ball.clip(verdict.x_adv), verdict.x_adv)
    logits = compute_logits(model, verdict.x_adv)
    assert torch.equal(logits.argmax(1), verdict.prediction)
    assert torch.equal(verdict.broken, verdict.prediction != y)


@pytest.mark.parametrize("name", ["pgd", "apgd", "apgd-t", "fab", "square"])
def test_both_formats_break_about_the_same_samples(name: str, model: nn.Module) -> None:
    few = digits(300)
    found = [
        attack_batch(ATTACKS[name], model, few.floats(), few.y, precision=precision).broken
        for precision in ("float32", "bfloat16")
    ]
    assert int((found[0] != found[1]).sum()) <= 6  # of 300


@pytest.mark.parametrize("name", ["pgd", "apgd", "fab", "square"])
def test_a_model_that_lies_in_bfloat16_gains_no_false_break(name: str) -> None:
    torch.manual_seed(0)
    liar, few = Liar(), digits(50)
    x = few.floats()
    y = compute_logits(liar, x).argmax(1)  # all are classified correctly
    attacks = (PGD(eps=1e-6, steps=5), APGD(eps=1e-6, steps=5), FAB(eps=1e-6, steps=5), Square(eps=1e-6, queries=5))
    attack = dict(zip(("pgd", "apgd", "fab", "square"), attacks, strict=True))[name]
    verdict = attack_batch(attack, liar, x, y, precision="bfloat16")
    assert liar.lies > 0
    assert not bool(verdict.broken.any())
    assert bool((verdict.margin > 0).all())
    assert verdict.forwards > len(x)  # every claim was looked at


class Astray(nn.Module):
    """Has the logits 0 and x, the label's; in bfloat16 its gradient points the wrong way."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        out = self.head(x.flatten(1))
        value = 2 * out.detach() - out if out.dtype == torch.bfloat16 else out
        return torch.cat([torch.zeros_like(value), value], 1)


def test_float32_searches_again_for_the_tenth_with_the_smallest_margins() -> None:
    x = torch.linspace(0.2, 0.39, 20)[torch.randperm(20, generator=torch.Generator().manual_seed(0))]
    attack = PGD(eps=0.5, steps=4, bounds=None, random_start=False)
    points, y = x.view(-1, 1, 1, 1), torch.ones(20, dtype=torch.long)
    exact = attack_batch(attack, Astray(), points, y)
    assert bool(exact.broken.all())
    verdict = attack_batch(attack, Astray(), points, y, precision="bfloat16")
    closest = x.argsort()[:2]
    assert verdict.broken.nonzero().flatten().tolist() == sorted(closest.tolist())
    assert torch.equal(verdict.x_adv[closest], exact.x_adv[closest])
    logits = compute_logits(Astray(), verdict.x_adv)
    assert torch.equal(verdict.margin, logits[:, 1] - logits[:, 0])


def test_points_outside_the_ball_are_not_confirmed() -> None:
    torch.manual_seed(0)
    liar, few = Liar(), digits(50)
    x = few.floats()
    y = compute_logits(liar, x).argmax(1)
    search = Search(liar, Rows(x, y, Ball(0.1).around(x), torch.arange(50), torch.arange(50)), Ball(0.1), fast=True)
    far = x.clone()
    far[:20, 0, 0, 0] += 0.2  # no point of the ball
    with number_formats(liar, ascent="bfloat16"), inner_mode(liar, "running"):
        wrong = misclassified(search.compute_logits(search.rows, far, exact=False), y)
    assert wrong.tolist() == [True] * 20 + [False] * 30  # the lies about points of the ball are replaced
    assert search.forwards == 50 + 30


@pytest.mark.parametrize("name", ["pgd", "apgd"])
def test_a_search_in_bfloat16_counts_the_passes_of_the_second_search(name: str) -> None:
    attack = {"pgd": PGD(eps=1e-6, steps=5), "apgd": APGD(eps=1e-6, steps=5)}[name]
    x, y = torch.full((20, 1, 1, 1), 0.5), torch.ones(20, dtype=torch.long)
    passes = [attack_batch(attack, Astray(), x, y, precision=form).passes for form in ("float32", "bfloat16")]
    assert passes[1] == passes[0] * 11 // 10


def test_a_single_row_has_the_verdict_of_float32() -> None:
    x, y = torch.tensor([[[[0.3]]]]), torch.ones(1, dtype=torch.long)
    verdict = attack_batch(PGD(eps=0.5, steps=4), Astray(), x, y, precision="bfloat16")
    assert verdict.broken.tolist() == [True]


@pytest.mark.parametrize("name", EXACT)
def test_other_attacks_search_in_float32(name: str, model: nn.Module) -> None:
    few = digits(30)
    exact, asked = (
        attack_batch(EXACT[name], model, few.floats(), few.y, precision=precision)
        for precision in ("float32", "bfloat16")
    )
    assert torch.equal(exact.x_adv, asked.x_adv)
    assert torch.equal(exact.margin, asked.margin)


def test_the_format_does_not_depend_on_autocast_around(model: nn.Module) -> None:
    few, plans = digits(40), {"pgd": build_plan("pgd-5", Ball(EPS))}
    (expected,) = run_attacks(model, few, plans)
    with torch.autocast("cpu", torch.bfloat16):
        (found,) = run_attacks(model, few, plans)
    assert torch.equal(found.margin, expected.margin)


def test_the_record_names_the_format(model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("sihg.robust.evaluation.search_format")

    def chosen(run_pass: Any, device: str) -> FormatChoice:
        run_pass("bfloat16")
        return FormatChoice("bfloat16", f"planted for {device}")

    shared: dict[str, Any] = {"eps": EPS, "attacks": "natural,pgd-5"}
    records = [sihg.evaluate(model, digits(40), precision=name, **shared) for name in ("float32", "bfloat16")]
    assert [found.header.precision for found in records] == ["float32", "bfloat16"]
    saved = read_evaluation(records[1].save(tmp_path))
    assert isinstance(saved, EvaluationRecord)
    assert saved.precision == "bfloat16"
    assert records[0].name != records[1].name

    monkeypatch.setattr(module, "choose_format", chosen)
    assert sihg.evaluate(model, digits(40), precision="auto", **shared).header.precision == "bfloat16"
    monkeypatch.setattr(module, "choose_format", None)  # not asked where no attack could use it
    found = sihg.evaluate(model, digits(40), precision="auto", eps=EPS, attacks="natural")
    assert found.header.precision == "float32"


def shifted(model: nn.Module, by: float) -> nn.Module:
    """The same classifier with large logits, whose differences bfloat16 rounds."""
    model = deepcopy(model)
    head = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    with torch.no_grad():
        head.bias.add_(by)
    return model


class Reversed(nn.Module):
    """A classifier whose gradient has the wrong sign in bfloat16."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return 2 * out.detach() - out if out.dtype == torch.bfloat16 else out


@pytest.mark.parametrize("precision", ["bfloat16", "auto"])
def test_a_model_on_which_the_fast_search_would_fail_is_searched_in_float32(
    model: nn.Module, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module("sihg.robust.evaluation.search_format")
    monkeypatch.setattr(module, "choose_format", lambda *_: FormatChoice("bfloat16", "planted"))
    shared: dict[str, Any] = {"eps": EPS, "attacks": "natural,pgd-10,square-50", "samples": 60}
    for planted, what in ((shifted(model, 2000.0), "margins"), (Reversed(model), "gradients")):
        exact, found = (
            sihg.evaluate(planted, digits(100), precision=name, **shared) for name in ("float32", precision)
        )
        assert found.header.precision == "float32"
        assert torch.equal(found.broken, exact.broken)
        (note,) = found.header.notes or [module.choose_precision(planted, *probe(), precision).reason]
        assert f"bfloat16 changes the {what}" in note


def probe() -> tuple[Samples, dict[str, Plan]]:
    return as_samples(digits(100)), {"pgd": build_plan("pgd-10", Ball(EPS))}


def test_unknown_formats_are_refused(model: nn.Module) -> None:
    with refused("unknown-precision", name="float8"):
        sihg.evaluate(model, digits(10), eps=EPS, precision="float8")
    with refused("unknown-precision", name="float8"):
        EvaluationRequest(precision="float8")
