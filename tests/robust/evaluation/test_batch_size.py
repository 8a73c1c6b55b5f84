"""`batch_size` bounds the rows of a pass, and decides no draw."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from sihg.cli.main import main
from sihg.robust.attacks.chunk_size import limit_rows, rows_per_chunk
from sihg.robust.data.samples import Samples
from sihg.robust.evaluation import evaluate, robust_curve
from tests.refused import refused
from tests.robust.planted import EPS, digits, healthy

ATTACKS = "natural,pgd-3-2,apgd-ce-5,square-20,noise-2"


def few() -> Samples:
    return digits().take(slice(150))


def test_rows_of_a_pass_and_the_same_verdicts() -> None:
    seen = []
    model = nn.Sequential(healthy())
    model.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    whole = evaluate(model, few(), eps=2 * EPS, attacks=ATTACKS)
    assert max(seen) == 150
    seen.clear()
    parts = evaluate(model, few(), eps=2 * EPS, attacks=ATTACKS, batch_size=20)
    assert max(seen) == 20
    for ours, theirs in zip(parts.outcomes, whole.outcomes, strict=True):
        assert torch.equal(ours.broken, theirs.broken)
        assert torch.allclose(ours.margin, theirs.margin, atol=1e-3)
    seen.clear()
    curve = robust_curve(model, few(), radii=[0, EPS], attacks="pgd-2", batch_size=20)
    assert max(seen) == 20
    assert curve.accuracy("pgd-2") == robust_curve(model, few(), radii=[0, EPS], attacks="pgd-2").accuracy("pgd-2")


def test_a_limit_never_raises_the_number() -> None:
    usual = rows_per_chunk((3, 32, 32))
    with limit_rows(10_000):
        assert rows_per_chunk((3, 32, 32)) == usual
    with limit_rows(5):
        assert rows_per_chunk((3, 32, 32)) == 5
    assert rows_per_chunk((3, 32, 32)) == usual


@pytest.mark.parametrize("value", [0, -3, 2.5, True])
def test_a_wrong_number_is_refused(value: object) -> None:
    with refused("count-range", setting="batch_size", value=value):
        evaluate(healthy(), few(), eps=EPS, attacks="natural", batch_size=value)  # type: ignore[arg-type]


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = ("--epochs", "1", "--samples", "200", "--validation", "20", "--steps", "2", "--width", "1/4")
    assert main(["train", "--out", str(tmp_path / "run"), *tiny]) == 0
    capsys.readouterr()
    found = []
    for out, more in (("a", ()), ("b", ("--batch-size", "7"))):
        words = ("evaluate", str(tmp_path / "run"), "--json", "--samples", "40", "--out", str(tmp_path / out))
        assert main([*words, *more]) == 0
        found.append([row["accuracy"] for row in json.loads(capsys.readouterr().out)["attacks"]])
    assert found[0] == found[1]
    assert main([*words, "--batch-size", "0"]) == 2
