"""Methods by name, and the settings they refuse."""

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from sihg.errors import InputError
from sihg.robust.gradients import STATISTICS
from sihg.robust.methods import METHODS, PGDAT, build_method, method_fields
from sihg.robust.methods.registry import method_class
from tests.refused import refused
from tests.robust.methods.nets import net, one_batch, sgd, weights

WITH_MEMORY = ("atta", "fgsm-pgi", "msi-hg")


@pytest.mark.parametrize("name", [name for name in METHODS if name != "ibp"])  # which is for linf, without such layers
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_method_trains_any_norm_without_bounds_and_repeats(name: str, norm: str, dtype: torch.dtype) -> None:
    settings: dict[str, Any] = {} if name == "natural" else {"eps": 0.1, "norm": norm, "bounds": None}
    batch, results = one_batch(dtype=dtype), []
    for _ in range(2):
        model = net("bn", dtype=dtype)
        log = build_method(name, **settings).step(model, batch, sgd(model))
        results.append(weights(model))
        assert model.training
        assert all(m.training for m in model.modules())
        assert log.samples == len(batch.x)
        assert log.loss > 0
        assert 0 <= log.accuracy <= 1
        assert int(log.predicted.sum()) == log.samples
    assert torch.equal(*results)
    assert not torch.equal(results[0], weights(net("bn", dtype=dtype)))


@pytest.mark.parametrize("name", METHODS)
def test_every_hyperparameter_has_a_default_and_a_help_text(name: str) -> None:
    known = method_fields(name)
    assert all(item.metadata["help"] for item in known.values())
    method = build_method(name, **({"eps": 0.1} if known else {}))
    assert {f.name for f in fields(method)} >= known.keys()
    assert all(getattr(method, key) == item.default for key, item in known.items() if key != "eps")


def test_the_ball_of_tables() -> None:
    """Every method takes samples that are no images."""
    for name in METHODS:
        model, batch = net("table"), one_batch(12, (6,))
        build_method(name, **({} if name == "natural" else {"eps": 0.1})).step(model, batch, sgd(model))
        assert not torch.equal(weights(model), weights(net("table")))


@pytest.mark.parametrize(
    ("name", "settings", "code"),
    [
        ("pgd", {"eps": "eight"}, "not-a-number"),
        ("pgd", {"steps": 0}, "setting-value"),
        ("pgd", {"steps": 2.0}, "setting-value"),
        ("pgd", {"steps": True}, "setting-value"),
        ("pgd", {"step_size": 0.0}, "setting-value"),
        ("pgd", {"step_size": math.inf}, "setting-value"),
        ("pgd", {"ramp": -1.0}, "setting-value"),
        ("pgd", {"ramp": math.inf}, "setting-value"),
        ("pgd", {"statistics": "x"}, "setting-value"),
        ("msi-hg", {"statistics": "x"}, "setting-value"),
        ("fast", {"alpha": math.nan}, "setting-value"),
        ("n-fgsm", {"k": -1.0}, "setting-value"),
        ("n-fgsm", {"alpha": 0.0}, "setting-value"),
        ("free", {"replays": 0}, "setting-value"),
        ("dat", {"fosc_max": math.nan}, "setting-value"),
        ("dat", {"control_epochs": 0}, "setting-value"),
        ("dat", {"fosc": "x"}, "setting-value"),
        ("yopo", {"outer": 0}, "setting-value"),
        ("yopo", {"inner": -1}, "setting-value"),
        ("yopo", {"stem_gradient": "x"}, "setting-value"),
        ("trades", {"beta": -1.0}, "setting-value"),
        ("mart", {"beta": -1.0}, "setting-value"),
        ("mart", {"steps": 0}, "setting-value"),
        ("atta", {"steps": 0}, "setting-value"),
        ("atta", {"reset": -1}, "setting-value"),
        ("atta", {"noise": -0.1}, "setting-value"),
        ("atta", {"eps": 0.0}, "eps-zero"),
        ("fgsm-pgi", {"alpha": 0.0}, "setting-value"),
        ("fgsm-pgi", {"momentum_decay": -0.1}, "setting-value"),
        ("fgsm-pgi", {"momentum_decay": 1.5}, "setting-value"),
        ("fgsm-pgi", {"regularization": -1.0}, "setting-value"),
        ("fgsm-pgi", {"augment_delta": "x"}, "setting-value"),
        ("pgd", {"label_smoothing": 1.0}, "setting-value"),
        ("trades", {"label_smoothing": -0.1}, "setting-value"),
        ("free", {"awp_gamma": -1.0}, "setting-value"),
        ("yopo", {"awp_warmup": -1.0}, "setting-value"),
        ("ibp", {"interval": 1.5}, "setting-value"),
        ("ibp", {"norm": "l2"}, "interval-loss-norm"),
        ("msi-hg", {"eps": 0.0}, "eps-zero"),
        ("msi-hg", {"tau": 0.0}, "setting-value"),
        ("msi-hg", {"noise": -0.1}, "setting-value"),
        ("msi-hg", {"fresh": 1.1}, "setting-value"),
        ("msi-hg", {"reset": -1}, "setting-value"),
        ("msi-hg", {"implicit": "x"}, "setting-value"),
        ("msi-hg", {"search": "x"}, "setting-value"),
        ("msi-hg", {"search": "threshold", "implicit": "proximal"}, "threshold-search-norm"),
        ("msi-hg", {"augment_delta": "x"}, "setting-value"),
    ],
)
def test_settings_that_are_refused(name: str, settings: dict[str, Any], code: str) -> None:
    with refused(code) as caught:
        build_method(name, **{"eps": 0.1, **settings})
    if code.startswith("setting-"):
        assert caught.value.values["setting"] in settings


def test_the_error_of_a_range_says_what_to_do() -> None:
    with pytest.raises(InputError, match=r"^steps must be an integer >= 1, got 0: leave it out for the default$"):
        build_method("pgd", eps=0.1, steps=0)
    with pytest.raises(InputError, match=r"^fresh must be a finite number >= 0 and <= 1, got 2: "):
        build_method("msi-hg", eps=0.1, fresh=2)
    with pytest.raises(InputError, match=r"^tau must be a finite number > 0, got 0: "):
        build_method("msi-hg", eps=0.1, tau=0)


def test_unknown_methods_and_settings() -> None:
    with refused("unknown-method", name="msihg", choices=tuple(METHODS)):
        build_method("msihg")
    with refused("option-unknown", option="tau"):
        build_method("pgd", eps=0.1, tau=0.1)
    with refused("option-unknown", option="memory"):
        build_method("pgd", eps=0.1, memory=None)
    with refused("option-unknown", option="eps"):
        build_method("natural", eps=0.1)
    with refused("option-missing", option="eps"):
        build_method("pgd")


def test_eps_may_be_a_fraction_in_text() -> None:
    assert PGDAT(eps="8/255").eps == 8 / 255  # type: ignore[arg-type]


def test_every_method_has_its_settings_and_adds_none() -> None:
    for name, entry in METHODS.items():
        kind = method_class(name)
        assert issubclass(kind, entry.settings)
        added = {f.name for f in fields(kind) if f.init} - method_fields(name).keys()
        assert added == ({"memory"} if name in WITH_MEMORY else set())
    assert method_fields("pgd")["statistics"].metadata["choices"] == tuple(STATISTICS)


OWN = """
from dataclasses import dataclass
from sihg.robust.methods import PGDAT

@dataclass(kw_only=True)
class Mine(PGDAT):
    strength: float = 0.5

@dataclass
class Needy:
    power: float
    def step(self, model, batch, optimizer): ...

def function(): ...
"""


def test_a_users_own_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    method = build_method(f"{tmp_path / 'mine.py'}:Mine", eps=0.1, strength=2.0)
    assert (method.strength, method.eps) == (2.0, 0.1)
    model = net("plain")
    method.step(model, one_batch(), sgd(model))
    assert not torch.equal(weights(model), weights(net("plain")))
    monkeypatch.chdir(tmp_path)
    assert type(build_method("mine.py:Mine", eps=0.1)) is type(method)
    with refused("method-class"):
        build_method("mine.py:function")
    with refused("option-unknown", option="tau"):
        build_method("mine.py:Mine", eps=0.1, tau=1.0)
    with refused("option-missing", option="power"):
        build_method("mine.py:Needy")


@pytest.mark.parametrize("name", [name for name in METHODS if name != "msi-hg"])  # whose memory refuses it before
def test_an_image_that_is_not_finite_never_reaches_the_weights(name: str) -> None:
    model, batch = net("plain"), one_batch()
    batch.x[3, 0, 2, 2] = torch.nan
    with refused("loss-not-finite", rows=(3,)):
        build_method(name, **({} if name == "natural" else {"eps": 0.1})).step(model, batch, sgd(model))
    assert torch.equal(weights(model), weights(net("plain")))
