"""Evaluations with targets: what accuracy means, which samples count, records, reports and the command line."""

import json
from pathlib import Path

import pytest
import torch

import sihg
from sihg.cli.main import main
from sihg.report.read.evaluations import collect_evaluations, read_records
from sihg.robust.attacks import PGD
from sihg.store.schema import EvaluationRecord, read_evaluation
from tests.refused import refused
from tests.robust.planted import EPS, digits, healthy


def test_accuracy_is_the_share_that_is_not_its_target(tmp_path: Path) -> None:
    samples = digits().take(slice(120))
    targets = (samples.y + 1) % 10
    found = sihg.evaluate(healthy(), samples, eps=2 * EPS, attacks="natural,pgd-5,apgd-t-10", targets=targets)
    predicted = healthy()(samples.floats()).argmax(1)
    assert torch.equal(found["natural"].broken, predicted == targets)
    verdict = PGD(eps=2 * EPS, steps=5).run(healthy(), samples.floats(), samples.y, targets=targets)
    assert torch.equal(found["pgd-5"].broken, verdict.broken)
    assert 0 < int(verdict.broken.sum()) < 120
    plain = sihg.evaluate(healthy(), samples, eps=2 * EPS, attacks="natural,pgd-5")
    assert found["pgd-5"].accuracy > plain["pgd-5"].accuracy
    assert "targeted at own classes" in str(found)
    assert {check.name for check in found.checks}.isdisjoint({"weak attacks", "few steps", "no black box"})
    assert "targeted at own classes" in repr(found)
    record = read_evaluation(found.save(tmp_path))
    assert isinstance(record, EvaluationRecord)
    assert record.target.startswith("own classes ")
    assert record.rule == f"any iterate, targeted at {record.target}"
    plain.save(tmp_path)
    read = collect_evaluations(read_records(tmp_path / "evaluation"), {})
    assert {one.is_result for one in read.attacks if "targeted" in one.rule} == {False}
    assert {one.is_result for one in read.attacks if "targeted" not in one.rule} == {True}


def test_one_class_leaves_out_its_own_samples() -> None:
    samples = digits().take(slice(120))
    rest = samples.take((samples.y != 3).nonzero().flatten())
    found = sihg.evaluate(healthy(), samples, eps=EPS, attacks="pgd-5", targets=3)
    assert torch.equal(found.labels, rest.y)
    assert torch.equal(found.index, (samples.y != 3).nonzero().flatten())
    assert (found.header.target, found.header.samples, found.header.of) == ("class 3", len(rest), len(rest))
    same = sihg.evaluate(healthy(), rest, eps=EPS, attacks="pgd-5", targets=torch.full_like(rest.y, 3))
    assert torch.equal(found["pgd-5"].broken, same["pgd-5"].broken)
    few = sihg.evaluate(healthy(), samples, eps=EPS, attacks="pgd-5", targets=3, samples=30)
    assert not bool((few.labels == 3).any())
    assert len(few.labels) == 30


def test_a_resumed_evaluation_knows_its_targets(tmp_path: Path) -> None:
    samples = digits().take(slice(60))
    names = {
        sihg.evaluate(healthy(), samples, eps=EPS, attacks="natural", targets=t, resume=tmp_path).name for t in (1, 2)
    }
    assert len(names) == 2


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"attacks": "standard"}, "attack-without-targets"),
        ({"attacks": "square"}, "attack-without-targets"),
        ({"attacks": {"mine": lambda x, _y: x}}, "attack-without-targets"),
        ({"targets": 10}, "targets-range"),
        ({"targets": -1}, "no-samples-for-target"),
        ({"targets": torch.zeros(3)}, "targets-type"),
        ({"targets": torch.zeros(3, dtype=torch.int64)}, "targets-shape"),
        ({"targets": "three"}, "targets-type"),
        ({"precision": "bfloat16"}, "targets-precision"),
        ({"votes": 5}, "targets-votes"),
    ],
)
def test_what_is_refused(changes: dict[str, object], code: str) -> None:
    with refused(code):
        sihg.evaluate(healthy(), digits().take(slice(20)), **{"eps": EPS, "attacks": "pgd-2", "targets": 3, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["standard", "square"])
def test_an_attack_without_targets_is_named_as_the_user_does(name: str) -> None:
    with refused("attack-without-targets", name=name):
        sihg.evaluate(healthy(), digits().take(slice(20)), eps=EPS, attacks=name, targets=3)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    words = ("--method", "pgd", "--steps", "1", "--eps", "0.2", "--epochs", "2", "--samples", "200", "--width", "1/4")
    assert main(["train", "--out", str(out), *words, "--validation", "20"]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(out), "--target", "3", "--attacks", "natural,pgd-3"]) == 0
    shown = capsys.readouterr().out
    assert "targeted at class 3" in shown
    assert "not target %" in shown
    kept = json.loads((out / "evaluation" / "last_test_natural+pgd-3_target-3.json").read_text())
    assert (kept["target"], kept["samples"]) == ("class 3", kept["of"])
    assert not (out / "gallery.npz").exists()
    assert main(["report", str(out)]) == 0
    shown = (out / "report" / "evaluations.md").read_text(encoding="utf-8")
    assert shown.count("any iterate, targeted at class 3") == 3  # natural, pgd-3 and all
    for radii in (("--curve", "0:0.2:3"), ("--minimum", "0.3")):
        assert main(["evaluate", str(out), "--target", "3", *radii]) == 2
        assert "[targets-and-radii]" in capsys.readouterr().err
