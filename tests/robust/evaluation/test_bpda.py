"""A defence that hides its gradient holds against plain attacks and falls to BPDA, which a check suggests."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sihg.robust.evaluation.evaluate import evaluate, robust_curve
from sihg.robust.evaluation.masking_module import MaskingModule, find_masking_module, suggest_bpda
from sihg.robust.evaluation.task import Task, make_task
from sihg.robust.threat import Ball
from tests.refused import refused
from tests.robust.evaluation.heard import by_part
from tests.robust.planted import Defended, Quantise, digits, healthy, tripped

EPS = 0.2


def smooth(x: Tensor) -> Tensor:
    return x + 0.0


class Sparse(nn.Module):
    """Sets what is near the mean to the mean, as MeanSparse does."""

    def __init__(self, width: float) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        mean = x.detach().mean(0, keepdim=True)
        return torch.where((x - mean).abs() < self.width, mean, x)


class Reversed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x.detach() - x


class Detached(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.detach() * 1.0


@pytest.mark.parametrize("attacks", ["natural,pgd-20", "natural,apgd-ce-20"])
def test_bpda_breaks_what_plain_attacks_do_not(attacks: str) -> None:
    model = Defended(Quantise())
    plain = evaluate(model, digits(), eps=EPS, attacks=attacks, samples=100)
    found = evaluate(model, digits(), eps=EPS, attacks=attacks, samples=100, bpda={"defence": "identity"})
    assert plain.accuracy > 0.8
    assert found.accuracy < 0.3
    assert found["natural"].accuracy == plain["natural"].accuracy
    assert "give bpda={'defence': 'identity'}" in tripped(plain)["gradients"]
    assert "gradients" not in tripped(found)
    assert "forward" not in vars(model.defence)


def test_a_curve_takes_bpda_too() -> None:
    model = Defended(Quantise())
    arguments: dict[str, Any] = {"radii": [0, 0.1, EPS], "attacks": "pgd-10", "samples": 50}
    plain = robust_curve(model, digits(), **arguments).accuracy("pgd-10")
    found = robust_curve(model, digits(), **arguments, bpda={Quantise: "identity"})
    assert found.accuracy("pgd-10")[-1] < 0.4 < 0.8 < plain[-1]
    assert found.record.bpda == {"defence": "identity"}


@pytest.mark.parametrize("defence", [Quantise(), Sparse(0.4), Reversed(), Detached()])
def test_the_module_that_hides_its_gradient_is_named(defence: nn.Module) -> None:
    model, x = Defended(defence), digits().floats()
    found = find_masking_module(model, x, Ball(EPS), 0)
    assert found == MaskingModule("defence", type(defence).__name__, keeps_shape=True)
    assert find_masking_module(healthy(), x, Ball(EPS), 0) is None
    assert "'defence'" in suggest_bpda(model, x, Ball(EPS), 0)


def test_advice_for_a_module_that_changes_the_shape() -> None:
    class Ends(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x.flatten(1) > 0.5).to(x)

    found = find_masking_module(Defended(Ends()), digits().floats(), Ball(EPS), 0)
    assert found == MaskingModule("defence", "Ends", keeps_shape=False)
    assert "a differentiable function" in str(found)


def test_modules_that_change_their_input_hide_nothing() -> None:
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 8, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(288, 10))
    x = digits().floats()
    assert find_masking_module(nn.Sequential(*layers), x, Ball(EPS), 0) is None
    found = find_masking_module(nn.Sequential(Quantise(), *layers), x, Ball(EPS), 0)
    assert found is not None
    assert found.kind == "Quantise"


@pytest.mark.parametrize("defence", [Reversed(), Quantise()])
def test_checks_that_find_masked_gradients_by_attacks_name_the_module_too(defence: nn.Module) -> None:
    model, attacks = Defended(defence), "natural,pgd-20,square-300"
    warned = tripped(evaluate(model, digits(), eps=EPS, attacks=attacks, samples=100))
    assert "give bpda={'defence': 'identity'}" in warned["black box"]
    found = evaluate(model, digits(), eps=EPS, attacks=attacks, samples=100, bpda={"defence": "identity"})
    assert not any("bpda" in message for message in tripped(found).values())


def test_a_model_that_returns_a_tuple_is_named_as_the_user_does() -> None:
    class Both(Defended):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x), x  # type: ignore[return-value]

    arguments: dict[str, Any] = {"eps": EPS, "attacks": "natural,pgd-20", "samples": 60}
    plain = evaluate(Both(Quantise()), digits(), **arguments)
    assert "give bpda={'defence': 'identity'}" in tripped(plain)["gradients"]
    found = evaluate(Both(Quantise()), digits(), **arguments, bpda={"defence": "identity"})
    assert found.accuracy < 0.3 < 0.8 < plain.accuracy
    assert found.header.bpda == {"defence": "identity"}


def test_advice_is_no_reason_to_fail() -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError(x.shape)

    assert suggest_bpda(Defended(Fails()), digits().floats(), Ball(EPS), 0) == ""


def test_a_mistake_is_found_before_the_attacks() -> None:
    with refused("bpda-shape", module="net"):
        evaluate(healthy_in_net(), digits(), eps=EPS, attacks="natural", bpda={"net": "identity"})
    with refused("bpda-module", module="defense"):
        evaluate(Defended(Quantise()), digits(), eps=EPS, bpda={"defense": "identity"})


def healthy_in_net() -> nn.Module:
    return Defended(nn.Identity())


def task(bpda: object) -> Task:
    arguments = (Defended(Quantise()), digits(), "pgd-2", Ball(EPS), (), 10, 0, None)
    return make_task(*arguments, last_iterate=False, bpda=bpda)  # type: ignore[arg-type]


def test_bpda_is_part_of_the_identity(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def soft(x):\n    return x * 1.0\n", encoding="utf-8")
    named = {"defence": f"{file}:soft"}
    kinds = [None, {"defence": "identity"}, named, {"defence": nn.Sigmoid()}, {"defence": nn.Hardtanh()}]
    names, identities = zip(*((one.name, json.dumps(one.identity())) for one in map(task, kinds)), strict=True)
    assert len(set(names)) == len(set(identities)) == len(kinds)
    assert [one.header.bpda for one in map(task, kinds[:2])] == [{}, {"defence": "identity"}]
    before = task(named).identity()
    file.write_text("def soft(x):\n    return x * 2.0\n", encoding="utf-8")
    assert task(named).identity() != before
    with refused("resume-function", name="smooth"):
        task({"defence": smooth}).identity()


def test_an_interrupted_evaluation_does_not_continue_with_another_gradient(tmp_path: Path) -> None:
    model, calls = Defended(Quantise()), []

    def stop(attack: str, done: int, _total: int) -> None:
        calls.append((attack, done))
        if attack == "pgd-2":
            raise KeyboardInterrupt

    arguments: dict[str, Any] = {"eps": EPS, "attacks": "natural,pgd-2", "samples": 20, "resume": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        evaluate(model, digits(), **arguments, bpda={"defence": "identity"}, progress=by_part(stop))
    known = evaluate(model, digits(), **arguments, bpda={"defence": "identity"})
    whole = evaluate(model, digits(), **{**arguments, "resume": None}, bpda={"defence": "identity"})
    assert torch.equal(known.broken, whole.broken)
    record = json.loads(known.save(tmp_path).read_text(encoding="utf-8"))
    assert record["bpda"] == {"defence": "identity"}
    assert "note: gradient of defence: identity" in str(known)
