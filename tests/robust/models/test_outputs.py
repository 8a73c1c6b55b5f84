"""Logits in a tuple, a dict or an object are found; an evaluation of such a model is that of its logits."""

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from sihg.errors import InputError
from sihg.robust.evaluation.evaluate import evaluate
from sihg.robust.models.outputs import find_logits, unwrap_outputs
from tests.refused import refused
from tests.robust.planted import EPS, digits, healthy

FORMS: dict[str, Callable[[Tensor], object]] = {
    "[0]": lambda z: (z, z[:, :3]),
    "[1]": lambda z: [z.new_zeros(len(z), 64), z],
    "['logits']": lambda z: {"logits": z, "out": -z},
    "['out']": lambda z: {"aux": -z, "out": z},
    "['scores']": lambda z: {"scores": z, "loss": z.mean()},
    ".logits": lambda z: Named(aux=-z, logits=z),
}


class Named(NamedTuple):
    aux: Tensor
    logits: Tensor


class Returning(nn.Module):
    def __init__(self, form: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.net, self.form = healthy(), form

    def forward(self, x: Tensor) -> object:
        return self.form(self.net(x))


class Rounding(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (255 * x).round() / 255


@pytest.mark.parametrize("place", FORMS)
def test_an_evaluation_finds_the_logits(place: str) -> None:
    found = evaluate(Returning(FORMS[place]), digits(), eps=EPS, attacks="natural,pgd-2", samples=50)
    plain = evaluate(healthy(), digits(), eps=EPS, attacks="natural,pgd-2", samples=50)
    assert torch.equal(found["pgd-2"].margin, plain["pgd-2"].margin)
    (note,) = found.record.notes
    assert note.endswith(f"the logits are taken: output{place}")
    assert f"note: {note}" in str(found)
    assert found.header.checkpoint == "Returning"
    assert plain.record.notes == ()


def test_a_module_keeps_its_name_for_other_gradients() -> None:
    """Of a rounded input, the gradient is that of the identity, with the logits in a tuple or alone."""
    found = []
    for form in (FORMS["[0]"], lambda z: z):
        model = Returning(form)
        model.net = nn.Sequential(OrderedDict(rounding=Rounding(), net=healthy()))
        kept = evaluate(model, digits(), eps=EPS, attacks="pgd-3", samples=50, bpda={"rounding": "identity"})
        found.append(kept["pgd-3"].margin)
    assert torch.equal(*found)


def test_the_modes_of_the_model_stay() -> None:
    model = Returning(FORMS["[0]"])
    model.train()
    model.net.eval()
    wrapped, note = unwrap_outputs(model, (1, 8, 8), 10)
    assert note
    assert (wrapped.training, model.training, model.net.training) == (True, True, False)


@pytest.mark.parametrize(
    "output", [None, (), {"a": 1}, (torch.zeros(1, 3),), {"a": torch.zeros(1, 12), "b": torch.zeros(1, 11)}]
)
def test_no_logits(output: object) -> None:
    assert find_logits(output, 10) is None
    with refused("no-logits", classes=10):
        evaluate(Returning(lambda _: output), digits(), eps=EPS, attacks="natural")


def test_a_model_that_fails_says_why() -> None:
    def fail(_: Tensor) -> object:
        raise ValueError("images must have 224 x 224 pixels")

    with pytest.raises(InputError, match="224 x 224"):
        evaluate(Returning(fail), digits(), eps=EPS, attacks="natural")
