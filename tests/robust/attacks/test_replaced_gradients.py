"""The gradient of a stand-in is an equation, the forward pass and the model stay as they are, mistakes are named."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sihg.robust.attacks import PGD, replace_gradients
from sihg.robust.attacks.replaced_gradients import Bpda, check_stand_ins
from tests.refused import refused


class Round(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (4 * x).round() / 4


class Jpeg(nn.Module):
    """Leaves torch, as a codec does."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(np.round(4 * x.numpy()) / 4)


class Joined(nn.Module):
    """Takes two tensors, and an option by name."""

    def forward(self, x: Tensor, y: Tensor, *, scale: float) -> Tensor:
        return (scale * x * y).sign()


class Net(nn.Module):
    """A network with a layer in its middle that hides its gradient."""

    def __init__(self, defence: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.defence, self.last = nn.Linear(5, 5), defence, nn.Linear(5, 3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.defence(self.first(x)))
        return logits


def gradient(model: nn.Module, x: Tensor, bpda: Bpda) -> tuple[Tensor, Tensor]:
    """The logits and the input gradient of the sum of their squares."""
    x = x.clone().requires_grad_()
    with replace_gradients(model, bpda):
        logits = model(x)
        return logits.detach(), torch.autograd.grad(logits.square().sum(), x)[0]


X = torch.rand(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("defence", [Round(), Jpeg()])
@pytest.mark.parametrize("smooth", [None, torch.tanh, nn.Sequential(nn.Linear(5, 5), nn.Sigmoid()).double()])
def test_the_gradient_is_that_of_the_stand_in(defence: nn.Module, smooth: nn.Module | None) -> None:
    model = Net(defence)
    logits, g = gradient(model, X, {"defence": smooth or "identity"})
    with torch.no_grad():
        assert torch.equal(logits, model(X))
    hidden = model.first(X).detach().requires_grad_()
    instead = hidden if smooth is None else smooth(hidden)
    (at_hidden,) = torch.autograd.grad(instead, hidden, 2 * logits @ model.last.weight)  # dL/dy through W
    torch.testing.assert_close(g, at_hidden @ model.first.weight)
    assert float(g.abs().min()) > 0


@pytest.mark.parametrize("key", ["name", "class", "object"])
def test_a_module_by_name_by_class_or_itself(key: str) -> None:
    model = Net(Round())
    by = {"name": "defence", "class": Round, "object": model.defence}[key]
    assert float(gradient(model, X, {})[1].abs().max()) == 0
    assert torch.equal(gradient(model, X, {by: "identity"})[1], gradient(model, X, {"defence": "identity"})[1])


def test_a_module_with_several_inputs() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.joined = Joined()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.joined(x, x + 1, scale=2.0)
            return out

    def smooth(x: Tensor, y: Tensor, *, scale: float) -> Tensor:
        return scale * x * y

    logits, g = gradient(Two(), X, {"joined": smooth})
    torch.testing.assert_close(g, 2 * logits * 2 * (2 * X + 1))


def test_the_model_is_as_before_also_after_an_exception() -> None:
    model = Net(Round())
    with pytest.raises(ZeroDivisionError), replace_gradients(model, {Round: "identity"}):
        raise ZeroDivisionError
    assert "forward" not in vars(model.defence)
    own = model.defence.__dict__["forward"] = lambda x: x * 2  # a forward of the user's own
    with replace_gradients(model, {"defence": "identity"}) as calls:
        assert torch.equal(model.defence(X), 2 * X)
        assert calls == {"defence": 1}
    assert vars(model.defence)["forward"] is own


def test_an_attack_within_the_block_uses_the_stand_in() -> None:
    model = Net(Round())
    y = model(X).argmax(1)
    attack = PGD(eps=0.5, bounds=None, steps=10)
    plain = attack.run(model, X, y)
    with replace_gradients(model, {"defence": "identity"}):
        found = attack.run(model, X, y)
    assert int(found.broken.sum()) > int(plain.broken.sum())
    assert torch.equal(model(found.x_adv).argmax(1), found.prediction)  # judged by the model itself


class TwoOutputs(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


class InPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.relu_()


class Unused(Net):
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.first(x))
        return logits


@pytest.mark.parametrize(
    ("model", "bpda", "code", "values"),
    [
        (Net(Round()), {"defense": "identity"}, "bpda-module", {"module": "defense"}),
        (Net(Round()), {nn.Dropout: "identity"}, "bpda-module", {"module": "Dropout"}),
        (Net(Round()), {Round(): "identity"}, "bpda-module", {"module": "this Round"}),
        (Net(Round()), {"defence": "identical"}, "bpda-replacement", {"replacement": "identical"}),
        (Net(Round()), {"defence": 3}, "bpda-replacement", {"replacement": "a int"}),
        (Net(Round()), ["defence"], "bpda-type", {"type": "list"}),
        (Net(Round()), {"defence": "identity", Round: "identity"}, "bpda-twice", {"module": "defence"}),
        (Net(Round()), {"last": "identity"}, "bpda-shape", {"found": (4, 5), "shape": (4, 3)}),
        (Net(Round()), {"defence": torch.Tensor.detach}, "bpda-no-gradient", {"module": "defence"}),
        (Net(TwoOutputs()), {"defence": "identity"}, "bpda-output", {"type": "tuple"}),
        (Net(InPlace()), {"defence": "identity"}, "bpda-in-place", {"module": "defence"}),
        (Unused(Round()), {"defence": "identity"}, "bpda-not-called", {"module": "defence"}),
        (Net(Round()), {"defence": "nowhere.py:g"}, "user-code-import", {"kind": "replacement"}),
    ],
)
def test_what_cannot_be_replaced(model: nn.Module, bpda: Bpda, code: str, values: dict[str, object]) -> None:
    with refused(code, **values):
        check_stand_ins(model, bpda, X)


def test_an_unknown_module_lists_the_choices() -> None:
    with refused("bpda-module") as caught:
        check_stand_ins(Net(Round()), {"defense": "identity"}, X)
    assert "first (Linear), defence (Round), last (Linear)" in str(caught.value)


def test_a_compiled_model_is_refused() -> None:
    model = torch.compile(Net(Round()), backend="eager")
    assert isinstance(model, nn.Module)
    with refused("bpda-compiled"):
        check_stand_ins(model, {Round: "identity"}, X)


def test_a_function_by_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def soft(x):\n    return x.tanh()\n\n\ndef wrong(x):\n    return x.nothing\n", encoding="utf-8")
    model = Net(Round())
    found = gradient(model, X, {"defence": f"{file}:soft"})[1]
    assert torch.equal(found, gradient(model, X, {"defence": torch.tanh})[1])
    with refused("user-code-failed", lineno=6):
        gradient(model, X, {"defence": f"{file}:wrong"})
