"""A random defence holds against plain attacks and falls to EoT; its verdicts are votes, which records keep."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sihg.report.read.evaluations import collect_evaluations, read_records
from sihg.report.tables.training_tables import evaluation_table
from sihg.robust.evaluation.evaluate import evaluate, robust_curve
from sihg.robust.evaluation.findings import Evaluation
from sihg.robust.evaluation.progress import EvaluationProgress
from sihg.robust.evaluation.task import make_task
from sihg.robust.threat import Ball
from tests.refused import refused
from tests.robust.planted import Defended, Ripple, digits, healthy, tripped

EPS = 0.15


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 0.2 * torch.randn_like(x)


def random_model() -> nn.Module:
    return Defended(Noisy())


@pytest.mark.parametrize("attacks", ["natural,pgd-20", "natural,apgd-ce-20"])
def test_eot_breaks_what_plain_attacks_do_not(attacks: str) -> None:
    model = Defended(Ripple())
    plain = evaluate(model, digits(), eps=EPS, attacks=attacks, samples=100)
    found = evaluate(model, digits(), eps=EPS, attacks=attacks, samples=100, eot=20)
    assert plain.accuracy > 0.75
    assert found.accuracy < 0.5
    assert "eot=20" in tripped(plain)["repeatable"]
    assert "votes" not in tripped(plain)["repeatable"]
    assert "repeatable" not in tripped(found)
    assert found.outcomes[1].passes % 20 == 0


def test_votes_are_worst_mean_and_k_of_n(tmp_path: Path) -> None:
    found = evaluate(random_model(), digits(), eps=EPS, attacks="natural,pgd-5", samples=100, eot=3)
    assert found.header.votes == 10
    for outcome, row in zip(found.outcomes, found.rows(), strict=False):
        assert outcome.wrong is not None
        assert torch.equal(outcome.broken, 2 * outcome.wrong >= 10)
        assert row.mean == pytest.approx(1 - float(outcome.wrong.double().mean()) / 10)
        assert row.worst == float((outcome.wrong == 0).double().mean())
        assert row.worst <= (row.mean or 0)
    worst = torch.stack([outcome.wrong for outcome in found.outcomes if outcome.wrong is not None]).amax(0)
    together = found.rows()[-1]
    assert (together.attack, together.votes) == ("all", 10)
    assert together.mean == pytest.approx(1 - float(worst.double().mean()) / 10)
    path = found.save(tmp_path)
    record = json.loads(path.read_text(encoding="utf-8"))
    assert (record["eot"], record["votes"]) == (3, 10)
    assert [row["mean"] for row in record["attacks"]] == [row.mean for row in found.rows()]
    with np.load(path.with_suffix(".npz")) as file:
        assert file["wrong"].tolist() == [
            outcome.wrong.tolist() for outcome in found.outcomes if outcome.wrong is not None
        ]
    text = str(found)
    assert "mean %  worst %" in text
    assert "note: gradients are means over 3 draws" in text
    assert "note: broken if at least half of 10 draws are wrong" in text


def test_the_page_shows_votes(tmp_path: Path) -> None:
    found = evaluate(random_model(), digits(), eps=EPS, attacks="natural,pgd-2", samples=60)
    found.save(tmp_path)
    curve = robust_curve(random_model(), digits(), radii=[0, EPS], attacks="pgd-2", samples=60)
    curve.save(tmp_path)
    read = collect_evaluations(read_records(tmp_path / "evaluation"), {})
    how = {one.attack: one.how for one in read.attacks}
    row = found.rows()[1]
    assert row.mean is not None
    assert f"mean {100 * row.mean:.2f} %" in how["pgd-2"]
    assert "broken if at least half of 10 draws are wrong" in how["natural"]
    assert any("(worst)" in remark.text for remark in read.remarks)
    assert any("mean" in str(cell) for line in evaluation_table([("run", read.attacks)]).rows for cell in line)


def test_a_fixed_model_has_no_votes(tmp_path: Path) -> None:
    found = evaluate(healthy(), digits(), eps=EPS, attacks="natural,pgd-2", samples=60)
    assert found.header.votes == 1
    assert [(outcome.votes, outcome.wrong) for outcome in found.outcomes] == [(1, None)] * 2
    record = json.loads(found.save(tmp_path).read_text(encoding="utf-8"))
    assert not {"votes", "mean", "worst"} & record["attacks"][0].keys()
    assert "mean" not in str(found)
    with np.load(tmp_path / "evaluation" / f"{found.name}.npz") as file:
        assert "wrong" not in file.files


def test_votes_that_the_user_chose() -> None:
    one = evaluate(random_model(), digits(), eps=EPS, attacks="natural", samples=60, votes=1, eot=2)
    assert one.header.votes == 1
    assert "votes=10" in tripped(one)["repeatable"]
    assert "eot" not in tripped(one)["repeatable"].partition(":")[2]
    three = evaluate(healthy(), digits(), eps=EPS, attacks="natural", samples=60, votes=3)
    assert three.outcomes[0].wrong is not None
    assert sorted(three.outcomes[0].wrong.unique().tolist()) == [0, 3]
    with refused("count-range", setting="votes", value=0):
        evaluate(healthy(), digits(), eps=EPS, votes=0)
    with refused("count-range", setting="eot", value=0):
        evaluate(healthy(), digits(), eps=EPS, eot=0)


def same(first: Evaluation, second: Evaluation) -> bool:
    pairs = zip(first.outcomes, second.outcomes, strict=True)
    names = ("broken", "prediction", "margin", "wrong")
    return all(
        torch.equal(getattr(a, name).nan_to_num(), getattr(b, name).nan_to_num()) for a, b in pairs for name in names
    )


def test_the_same_command_gives_the_same_result_and_leaves_the_users_generator() -> None:
    arguments: dict[str, Any] = {"eps": EPS, "attacks": "natural,standard", "samples": 20, "eot": 2}
    cheap = {"natural": "natural", "pgd": "pgd-3", "apgd": "apgd-t-3", "fab": "fab-t-2", "square": "square-20"}
    arguments["attacks"] = cheap
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = evaluate(random_model(), digits(), **arguments)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    second = evaluate(random_model(), digits(), **arguments)
    assert same(first, second)
    assert first.checks == second.checks
    assert not same(first, evaluate(random_model(), digits(), **arguments, seed=1))


def test_a_resumed_evaluation_gives_the_verdicts_of_an_uninterrupted_one(tmp_path: Path) -> None:
    def stop(event: EvaluationProgress) -> None:
        if (event.stage, event.done) == ("pgd-3", 64):
            raise KeyboardInterrupt

    arguments: dict[str, Any] = {"eps": EPS, "attacks": "natural,pgd-3", "samples": 150, "eot": 2, "batch_size": 64}
    with pytest.raises(KeyboardInterrupt):
        evaluate(random_model(), digits(), **arguments, resume=tmp_path, progress=stop)
    seen: list[EvaluationProgress] = []
    found = evaluate(random_model(), digits(), **arguments, resume=tmp_path, progress=seen.append)
    assert {event.resumed for event in seen if event.stage == "pgd-3"} == {64}
    assert same(found, evaluate(random_model(), digits(), **arguments))


def test_a_cascade_keeps_the_worst_point_of_each_sample() -> None:
    plan = robust_curve(random_model(), digits(), radii=[0, 0.05, EPS], attacks="pgd-3", samples=100)
    (outcome,) = plan.outcomes
    wrong = [stage.wrong for stage in outcome.stages if stage.wrong is not None]
    assert len(wrong) == 3
    assert all(bool((a <= b).all()) for a, b in pairwise(wrong))
    (row,) = plan.rows()
    assert (row.votes, len(row.mean), len(row.worst)) == (10, 3, 3)
    assert list(row.mean) == sorted(row.mean, reverse=True)
    assert "(worst)" in str(plan)


def test_eot_and_votes_are_part_of_the_identity() -> None:
    def task(**how: Any) -> tuple[str, str]:
        made = make_task(healthy(), digits(), "pgd-2", Ball(EPS), (), 10, 0, None, last_iterate=False, **how)
        return made.name, json.dumps(made.identity())

    kinds = [task(), task(eot=2), task(eot=3), task(votes=1), task(votes=5), task(eot=2, votes=5)]
    names, identities = zip(*kinds, strict=True)
    assert len(set(names)) == len(set(identities)) == len(kinds)
