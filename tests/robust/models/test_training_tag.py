"""A model knows which method trained it, whatever users do with it, until it has other weights."""

import copy
import io
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import sihg
from sihg.robust.models.training_tag import read_tag, tag_model
from tests.robust.planted import EPS, digits, healthy, tripped


def small() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))


def data() -> tuple[Tensor, Tensor]:
    return digits().floats()[:80], digits().y[:80]


def tagged() -> nn.Module:
    model = small()
    tag_model(model, "pgd")
    return model


def pickled(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)  # type: ignore[no-any-return]


class Wrapper(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


@pytest.mark.parametrize(
    "use",
    [
        lambda model: model.eval().train().eval(),
        lambda model: model.to("cpu", torch.float64),
        lambda model: model.half().float(),
        lambda model: model.requires_grad_(requires_grad=False),
        copy.deepcopy,
        copy.copy,
        pickled,
        lambda model: nn.Sequential(nn.Identity(), model),
        Wrapper,
        nn.DataParallel,
        lambda model: torch.compile(model, backend="eager"),
        lambda model: [model, model.train()(data()[0])][0],  # which moves the running statistics
    ],
)
def test_the_tag_survives_what_users_do(use: Callable[[nn.Module], nn.Module]) -> None:
    assert read_tag(use(tagged())) == "pgd"


def test_the_tag_is_not_in_the_state() -> None:
    model = tagged()
    assert model.state_dict().keys() == small().state_dict().keys()
    other = small()
    other.load_state_dict(model.state_dict())
    assert read_tag(other) is None
    assert repr(model) == repr(small())


def test_other_weights_have_no_tag() -> None:
    model, other = tagged(), small()
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(0.01)
    before = copy.deepcopy(model.state_dict())
    model.load_state_dict(other.state_dict())
    assert read_tag(model) is None
    model.load_state_dict(before)
    assert read_tag(model) == "pgd"
    with torch.no_grad():
        next(model.parameters())[0, 0] += 0.01
    assert read_tag(model) is None


def test_several_models_in_one() -> None:
    """Of one method, or of none."""
    assert read_tag(nn.ModuleList([tagged(), tagged()])) == "pgd"
    other = tagged()
    tag_model(other, "natural")
    assert read_tag(nn.ModuleList([tagged(), other])) is None
    assert read_tag(nn.ModuleList([tagged(), small()])) == "pgd"


def test_fit_tags_the_model(tmp_path: Path) -> None:
    """Also with averaged weights, in the model that was given, and after `load`."""
    for ema in (0.0, 0.5):
        model, out = small(), tmp_path / str(ema)
        settings = {"eps": EPS, "epochs": 1, "steps": 1, "validation": 0, "ema": ema, "batch_size": 40}
        found = sihg.fit(model, data(), method="pgd", out=out, **settings)  # type: ignore[arg-type]
        assert (found.model is model) == (ema == 0)
        assert read_tag(found.model) == read_tag(model) == "pgd"
        loaded = sihg.load(out, model=small())
        assert read_tag(loaded) == "pgd"
        for trained in (found.model, model, loaded):
            assert "other attacks" in tripped(sihg.evaluate(trained, data(), eps=0.01, attacks="pgd-2"))
        sihg.fit(found.model, data(), method="natural", eps=EPS, epochs=1, validation=0)
        assert read_tag(found.model) == "natural"


def test_an_argument_comes_first() -> None:
    for trained_with, expected in ((None, "pgd trains"), ("trades", "trades trains"), ("natural", None)):
        found = sihg.evaluate(healthy(), data(), eps=EPS, attacks="pgd-2", trained_with=trained_with)
        message = tripped(found).get("other attacks")
        assert message is None if expected is None else str(message).startswith(expected)
