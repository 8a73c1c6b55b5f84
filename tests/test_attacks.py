"""Attacks with the model first: their points, draws, devices and types, and what is refused."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sihg
import sihg.attacks
from tests.refused import refused
from tests.robust.planted import digits, healthy

N = 40
SHORT: dict[str, dict[str, Any]] = {name: {} for name in sihg.attacks.__all__ if name != "ModelAttack"}
SHORT |= {"Square": {"n_queries": 100, "eps": 0.1}, "FAB": {"n_classes": 4}, "APGDT": {"n_classes": 4}}
LAST = ("FGSM", "BIM", "PGD", "PGDL2", "MIFGSM")


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    return digits().floats(slice(N)), digits().y[:N]


@pytest.mark.parametrize("name", [name for name in SHORT if name != "AutoAttack"])
def test_images_of_the_same_type_that_break_more(name: str, batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    attack = getattr(sihg.attacks, name)(healthy(), **SHORT[name])
    found = attack(x, y)
    assert (found.shape, found.dtype) == (x.shape, x.dtype)
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1
    wrong = [int((healthy()(points).argmax(1) != y).sum()) for points in (x, found)]
    assert wrong[1] > wrong[0]
    double = attack(x.double(), y)
    assert double.dtype == torch.float64
    if name not in ("PGD", "PGDL2"):  # which draw anew
        assert torch.equal(double.float(), found)


@pytest.mark.parametrize("name", LAST)
def test_the_last_point_or_the_first_misclassified_one(name: str, batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    kind, clean = getattr(sihg.attacks, name), healthy()(x).argmax(1) != y
    assert bool(clean.any())
    torch.manual_seed(0)
    last = kind(healthy())(x, y)
    torch.manual_seed(0)
    first = kind(healthy(), last_iterate=False)(x, y)
    assert not torch.equal(last[clean], x[clean])
    if name not in ("PGD", "PGDL2"):  # which begin elsewhere
        assert torch.equal(first[clean], x[clean])
    broken = [healthy()(points).argmax(1) != y for points in (last, first)]
    assert bool((broken[1] | ~broken[0]).all())


def test_targets_of_ones_own(batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    targets = (y + 1) % 10
    found = sihg.attacks.BIM(healthy(), eps=0.2)(x, y, targets=targets)
    before, after = (healthy()(points).gather(1, targets[:, None]).mean() for points in (x, found))
    assert after > before + 1
    with refused("attack-without-targets", name="Square"):
        sihg.attacks.Square(healthy(), n_queries=2)(x, y, targets=targets)


def test_the_generator_of_torch_decides_starts(batch: tuple[Tensor, Tensor]) -> None:
    attack = sihg.attacks.PGD(healthy())
    torch.manual_seed(1)
    first, second = attack(*batch), attack(*batch)
    torch.manual_seed(1)
    assert torch.equal(attack(*batch), first)
    assert not torch.equal(first, second)


def test_autoattack(batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch[0][:8], batch[1][:8]
    found = sihg.attacks.AutoAttack(healthy(), eps=0.1, n_classes=3)(x, y)
    adversary = sihg.AutoAttack(healthy(), eps=0.1, verbose=False)
    adversary.apgd_targeted.n_target_classes = adversary.fab.n_target_classes = 2
    assert torch.equal(found, adversary.run_standard_evaluation(x, y))


def test_the_model_in_the_wrong_place(batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    with refused("model-first", name="PGD", type="Tensor"):
        sihg.attacks.PGD(x)  # type: ignore[arg-type]
    with refused("model-given", name="PGD", type="Linear"):
        sihg.attacks.PGD(healthy())(nn.Linear(2, 3), x, y)  # type: ignore[arg-type]
    with refused("attack-without-model", name="PGD"):
        sihg.PGD(eps=0.1)(x, y)  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="it has APGD, "):
        sihg.attacks.TIFGSM  # noqa: B018


def test_found_without_an_import_of_its_own() -> None:
    code = "import sihg, sys; assert 'torch' not in sys.modules; print(sihg.attacks.PGD.__module__)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "sihg.attacks\n"
