"""The AutoAttack drop-in: what it returns, its log, its settings, a state that is resumed, and what is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sihg
from sihg.robust.attacks.registry import STANDARD
from sihg.robust.attacks.runner import attack_parts
from sihg.robust.evaluation import autoattack
from sihg.robust.evaluation.partial import EvaluationWarning
from tests.refused import refused
from tests.robust.planted import EPS, Planted, digits, healthy

N = 60


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    return digits().floats(slice(N)), digits().y[:N]


def short(model: Any = None, **settings: Any) -> sihg.AutoAttack:
    """The standard version with small budgets, silent unless asked."""
    settings = {"eps": 2 * EPS, "verbose": False, **settings}
    adversary = sihg.AutoAttack(healthy() if model is None else model, **settings)
    adversary.apgd.n_iter = adversary.apgd_targeted.n_iter = adversary.fab.n_iter = 8
    adversary.apgd_targeted.n_target_classes = adversary.fab.n_target_classes = 2
    adversary.square.n_queries = 30
    return adversary


@pytest.mark.parametrize("norm", ["Linf", "L2", "L1"])
def test_points_of_broken_samples_and_the_samples_that_hold(norm: str, batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    adversary = short(norm=norm, eps={"Linf": 0.1, "L2": 0.6, "L1": 2.5}[norm])
    x_adv, y_adv = adversary.run_standard_evaluation(x, y, bs=25, return_labels=True)
    with torch.no_grad():
        assert torch.equal(healthy()(x_adv).argmax(1), y_adv)
        clean = healthy()(x).argmax(1)
    broken = y_adv != y
    assert 0 < int(broken.sum()) < N
    assert torch.equal(x_adv[~broken], x[~broken])
    assert torch.equal(x_adv[clean != y], x[clean != y])
    assert (x_adv.dtype, x_adv.shape, y_adv.dtype) == (x.dtype, x.shape, y.dtype)
    order = {"Linf": float("inf"), "L2": 2.0, "L1": 1.0}[norm]
    assert (
        float(torch.linalg.vector_norm((x_adv - x).flatten(1), ord=order, dim=1).max()) <= adversary.epsilon * 1.00001
    )
    larger = adversary.run_standard_evaluation(x, y)  # in larger batches, which round otherwise: the same draws
    assert torch.allclose(larger, x_adv, atol=1e-4)


def test_it_is_evaluate(batch: tuple[Tensor, Tensor]) -> None:
    """With the same budgets both give the same verdicts."""
    x, y = batch[0][:20], batch[1][:20]
    adversary = sihg.AutoAttack(healthy(), eps=0.1, verbose=False)
    adversary.square.n_queries = 50
    adversary.fab.n_iter = adversary.apgd_targeted.n_iter = 20
    y_adv = adversary.run_standard_evaluation(x, y, return_labels=True)[1]
    cascade = {name: name for name in ("natural", "apgd-ce", "apgd-t-20", "fab-t-20", "square-50")}
    evaluation = sihg.evaluate(healthy(), (x, y), eps=0.1, attacks={"all four": cascade})
    assert torch.equal(evaluation["all four"].broken, y_adv != y)
    assert [stage.attack for stage in evaluation["all four"].stages] == list(cascade)


def test_individually(batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    adversary = short()
    found = adversary.run_standard_evaluation_individual(x, y, bs=25, return_labels=True)
    assert list(found) == list(STANDARD) == adversary.attacks_to_run
    for name, (x_adv, y_adv) in found.items():
        adversary.attacks_to_run = [name]
        assert torch.equal(adversary.run_standard_evaluation(x, y, bs=25), x_adv)
        assert torch.equal(healthy()(x_adv).argmax(1), y_adv)
    points = short().run_standard_evaluation_individual(x, y, bs=25)
    assert all(torch.equal(points[name], found[name][0]) for name in STANDARD)


def test_the_log(batch: tuple[Tensor, Tensor], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (x, y), path = batch, tmp_path / "log.txt"
    path.write_text("before\n")
    adversary = short(verbose=True, log_path=path)
    y_adv = adversary.run_standard_evaluation(x, y, bs=25, return_labels=True)[1]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "setting parameters for standard version"
    assert lines[1] == "using standard version including apgd-ce, apgd-t, fab-t, square."
    right = int((healthy()(x).argmax(1) == y).sum())
    assert lines[2] == f"initial accuracy: {right / N:.2%}"
    lost = [int(line.split(" - ")[2].split()[0]) for line in lines if line.startswith("apgd-ce - ")]
    assert [line for line in lines if line.startswith("apgd-ce - 3/3")] == [
        f"apgd-ce - 3/3 - {lost[2]} out of {right - 50} successfully perturbed"
    ]
    after = next(line for line in lines if line.startswith("robust accuracy after APGD-CE: "))
    assert after.startswith(f"robust accuracy after APGD-CE: {(right - sum(lost)) / N:.2%} (total time ")
    assert lines[-2] == "max Linf perturbation: 0.10000, nan in tensor: 0, max: 1.00000, min: 0.00000"
    assert lines[-1] == f"robust accuracy: {float((y_adv == y).double().mean()):.2%}"
    assert path.read_text().splitlines() == ["before", *lines[1:]]
    adversary.run_standard_evaluation_individual(x, y)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "using standard version including apgd-ce, apgd-t, fab-t, square"
    assert [line.split(" \t ")[0] for line in lines[1:]] == [f"robust accuracy by {name.upper()}" for name in STANDARD]
    assert adversary.clean_accuracy(x, y, bs=7) == right / N
    assert capsys.readouterr().out == f"clean accuracy: {right / N:.2%}\n"


def test_no_attack_where_nothing_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    adversary = short(nn.Flatten(), eps=0.6, verbose=True)
    adversary.run_standard_evaluation(torch.eye(4), torch.arange(4))
    assert "APGD-T" not in capsys.readouterr().out


def test_checks_warn_after_the_log(batch: tuple[Tensor, Tensor], capsys: pytest.CaptureFixture[str]) -> None:
    adversary = short(Planted(behind=lambda logits: logits.softmax(1)), verbose=True)
    adversary.run_standard_evaluation(*batch)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("robust accuracy: ")
    assert lines[-1].startswith("Warning: the outputs look like probabilities")
    assert [check.name for check in adversary.checks if check.result == "warning"] == ["logits"]


def test_settings_are_those_of_the_attacks(batch: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def note(model: nn.Module, samples: Any, plans: Any, **settings: Any) -> Iterator[Any]:
        seen.update(plans["autoattack"])
        return attack_parts(model, samples, {"autoattack": {"natural": seen["natural"]}}, **settings)

    monkeypatch.setattr(autoattack, "attack_parts", note)
    monkeypatch.setattr(autoattack, "join_outcomes", lambda _, found: [next(iter(found.values()))])
    monkeypatch.setattr(autoattack, "inspect_outcomes", lambda *_: [])
    adversary = sihg.AutoAttack(healthy(), eps=0.1, verbose=False)
    adversary.run_standard_evaluation(*batch)
    counts = {name: (attack.restarts, getattr(attack, "targets", None)) for name, attack in list(seen.items())[1:]}
    assert counts == {"apgd-ce": (1, 9), "apgd-t": (1, 9), "fab-t": (1, 9), "square": (1, None)}
    assert [attack.steps for attack in list(seen.values())[1:4]] == [100, 100, 100]
    assert seen["square"].queries == 5000
    adversary = sihg.AutoAttack(healthy(), eps=0.1, version="custom", attacks_to_run=["apgd-ce"], verbose=False)
    assert adversary.apgd.n_restarts == 5
    adversary.attacks_to_run = ["square", "apgd-ce"]
    adversary.apgd.n_restarts, adversary.square.n_queries = 2, 7
    seen.clear()
    adversary.run_standard_evaluation(*batch)
    assert list(seen) == ["natural", "square", "apgd-ce"]
    assert (seen["apgd-ce"].restarts, seen["square"].queries) == (2, 7)
    adversary.attacks_to_run, adversary.fab.n_restarts = ["fab", "fab-t"], 3
    adversary.run_standard_evaluation(*batch)
    assert (seen["fab"].restarts, seen["fab"].targeted) == (3, False)
    assert (seen["fab-t"].restarts, seen["fab-t"].targeted) == (1, True)
    with pytest.raises(AttributeError):
        adversary.apgd.rho = 0.5  # type: ignore[attr-defined]


def test_a_state_is_resumed(
    batch: tuple[Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = short().run_standard_evaluation(*batch, bs=20)

    def interrupted(*args: Any, **settings: Any) -> Iterator[Any]:
        for part in attack_parts(*args, **settings):
            yield part
            if part.key == "autoattack: apgd-t" and part.verdict is not None:
                raise KeyboardInterrupt

    monkeypatch.setattr(autoattack, "attack_parts", interrupted)
    with pytest.raises(KeyboardInterrupt):
        short(verbose=True).run_standard_evaluation(*batch, bs=20, state_path=tmp_path / "state.json")
    monkeypatch.undo()
    assert f"Created state in {tmp_path / 'state.json'}" in capsys.readouterr().out
    resumed = short(verbose=True).run_standard_evaluation(*batch, bs=20, state_path=str(tmp_path / "state.json"))
    lines = capsys.readouterr().out.splitlines()
    assert torch.equal(resumed, whole)
    assert lines[1] == f"Restored state from {tmp_path / 'state.json'}"
    assert lines[2] == "using standard version including apgd-t, fab-t, square."
    assert lines[3] == "apgd-ce was/were already run."
    assert lines[4].startswith("initial clean accuracy: ")
    assert lines[5].startswith("robust accuracy at the time of restoring the state: ")
    assert not any("APGD-CE" in line for line in lines)
    again = short(verbose=True).run_standard_evaluation(*batch, state_path=tmp_path / "state.json")
    assert torch.equal(again, whole)
    assert "square was/were already run." in capsys.readouterr().out


def test_under_no_grad_in_training_mode_and_as_a_function(batch: tuple[Tensor, Tensor]) -> None:
    expected = short().run_standard_evaluation(*batch)
    model = nn.Sequential(healthy(), nn.Dropout(0.5))
    with torch.no_grad():
        assert torch.equal(short(model).run_standard_evaluation(*batch), expected)
    assert model[1].training
    assert torch.equal(short(lambda x: healthy()(x), device="cpu").run_standard_evaluation(*batch), expected)


def test_what_is_refused(batch: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    x, y = batch
    with refused("autoattack-tensorflow"):
        short(is_tf_model=True)
    with refused("unknown-norm", name="L3"):
        short(norm="L3")
    with refused("unknown-version", name="fast"):
        short(version="fast")
    with refused("unknown-version", name="fast"):
        short().set_version("fast")
    with refused("autoattack-overridden", attacks="apgd-ce"):
        short(attacks_to_run=["apgd-ce"])
    with refused("autoattack-nothing"):
        short(version="custom").run_standard_evaluation(x, y)
    with refused("unknown-attack", name="apgd"):
        short(version="custom", attacks_to_run=["apgd"]).run_standard_evaluation(x, y)
    with refused("count-range", setting="bs"):
        short().run_standard_evaluation(x, y, bs=0)
    with refused("batch-type"):
        short().run_standard_evaluation((255 * x).to(torch.uint8), y)
    with refused("not-a-module", type="str"):
        short("model").run_standard_evaluation(x, y)
    with refused("autoattack-state-function"):
        short(lambda x: healthy()(x)).run_standard_evaluation(x, y, state_path=tmp_path / "state")
    with refused("autoattack-device", own=torch.device("cpu")):
        short(device="meta").run_standard_evaluation(x, y)
    with refused("cannot-write-file"):
        short(verbose=True, log_path=tmp_path).run_standard_evaluation(x, y)
    adversary = short()
    adversary.apgd.eot_iter = 0
    adversary.apgd_targeted.eot_iter = 0
    adversary.attacks_to_run = ["apgd-ce"]
    with refused("count-range", setting="eot", value=0):
        adversary.run_standard_evaluation(x, y)


@pytest.mark.parametrize(
    ("version", "norm", "names", "apgd", "targets", "fab"),
    [
        ("standard", "Linf", STANDARD, 1, 9, 1),
        ("standard", "L1", STANDARD, 5, 5, 1),
        ("plus", "L2", ("apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t"), 5, 9, 5),
        ("rand", "L2", ("apgd-ce", "apgd-dlr"), 1, 9, 5),
    ],
)
def test_versions(version: str, norm: str, names: tuple[str, ...], apgd: int, targets: int, fab: int) -> None:
    adversary = sihg.AutoAttack(healthy(), norm=norm, version=version, verbose=False)
    assert adversary.attacks_to_run == list(names)
    assert (adversary.apgd.n_restarts, adversary.apgd_targeted.n_target_classes) == (apgd, targets)
    assert (adversary.fab.n_restarts, adversary.square.n_queries) == (fab, 5000)
    assert adversary.apgd.eot_iter == (20 if version == "rand" else 1)


def test_all_attacks_of_plus(batch: tuple[Tensor, Tensor]) -> None:
    adversary = short(version="plus")
    adversary.fab.n_restarts = adversary.apgd.n_restarts = 1
    found = adversary.run_standard_evaluation_individual(*batch, return_labels=True)
    held = {name: int((y_adv == batch[1]).sum()) for name, (_, y_adv) in found.items()}
    together = adversary.run_standard_evaluation(*batch, return_labels=True)[1]
    assert int((together == batch[1]).sum()) <= min(held.values())
    assert max(held.values()) < int((healthy()(batch[0]).argmax(1) == batch[1]).sum())


def test_a_random_model(batch: tuple[Tensor, Tensor]) -> None:
    """Averaged gradients break more; one draw per pass is told by a check."""
    model = Planted(before=lambda x: x + 0.1 * torch.randn_like(x))
    adversary = short(model, version="rand")
    y_adv = adversary.run_standard_evaluation(*batch, return_labels=True)[1]
    assert 0 < int((y_adv == batch[1]).sum()) < N
    assert torch.equal(adversary.run_standard_evaluation(*batch, return_labels=True)[1], y_adv)  # the same draws
    assert not [check for check in adversary.checks if check.name == "repeatable" and check.result == "warning"]
    once = short(model)
    once.run_standard_evaluation(*batch)
    (check,) = (check for check in once.checks if check.name == "repeatable")
    assert check.result == "warning"
    assert check.message.endswith(': take version="rand"')


def test_a_state_of_one_vote_is_not_that_of_several(batch: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    """Version rand differs from its attacks in version custom by the draws that judge a point."""
    several = short(version="rand")
    once = short(version="custom", attacks_to_run=several.attacks_to_run)
    once.apgd = several.apgd
    several.apgd.eot_iter = 2
    once.run_standard_evaluation(*batch, state_path=tmp_path / "state")
    with pytest.warns(EvaluationWarning, match="is not used"):
        several.run_standard_evaluation(*batch, state_path=tmp_path / "state")
