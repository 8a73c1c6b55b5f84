"""`evaluate_run` does for Python what `sihg evaluate` does for the shell."""

import shutil
from pathlib import Path

import pytest

import sihg
from sihg.cli.main import main
from sihg.robust.attacks import runner
from sihg.robust.attacks.registry import plan_attacks
from sihg.robust.evaluation import partial
from sihg.robust.evaluation.evaluate_run import find_targets, prepare
from sihg.robust.threat import Ball
from sihg.store.schema import CurveRecord, read_evaluation
from tests.refused import refused
from tests.robust.evaluation.heard import by_part
from tests.store.edits import edit_config

REQUEST = sihg.EvaluationRequest(attacks=("natural", "pgd-2"), samples=60)
NAME = "last_test_natural+pgd-2_n60"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    words = ("--method", "natural", "--epochs", "1", "--samples", "200", "--validation", "0", "--width", "1/4")
    assert main(["train", "--out", str(out), *words]) == 0
    return out


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A run that was not evaluated yet."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_a_run_is_evaluated_as_by_the_command(run: Path, tmp_path: Path) -> None:
    found = sihg.evaluate_run(run, REQUEST)
    assert found.name == NAME
    files = sorted(path.name for path in (run / "evaluation").iterdir())
    assert files == [f"{NAME}.json", f"{NAME}.npz"]
    assert (run / "gallery.npz").is_file()
    record = read_evaluation(run / "evaluation" / f"{NAME}.json")
    assert (record.checkpoint, record.split, record.data, record.samples) == ("last", "test", "digits", 60)
    assert main(["evaluate", str(run), "--attacks", "natural,pgd-2", "--samples", "60", "--out", str(tmp_path)]) == 0
    command = read_evaluation(tmp_path / f"run_{NAME}.json")
    assert not isinstance(record, CurveRecord)
    assert not isinstance(command, CurveRecord)
    assert [row.broken for row in command.attacks] == [row.broken for row in record.attacks]
    assert (command.sha256, command.eps) == (record.sha256, record.eps)


def test_a_run_that_was_moved_gets_no_record(run: Path, tmp_path: Path) -> None:
    (target,) = find_targets([run], REQUEST)
    prepared = prepare(target)
    result = prepared.run()
    run.rename(tmp_path / "moved")
    with refused("folder-moved", path=run):
        prepared.save(result)
    assert not run.exists()
    assert not (tmp_path / "moved" / "evaluation").exists()


def test_settings_that_are_not_the_checkpoints_are_refused(run: Path) -> None:
    edit_config(run, {"eps": 0.01})
    with refused("config-not-of-checkpoint") as caught:
        sihg.evaluate_run(run, REQUEST)
    assert list(caught.value.values["differences"]) == ["eps"]  # type: ignore[call-overload]
    assert not (run / "evaluation").exists()


def test_an_interrupted_run_continues(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial, "SECONDS_BETWEEN_WRITES", 3600.0)
    monkeypatch.setattr(runner, "rows_per_chunk", lambda _shape: 20)

    def interrupt(attack: str, done: int, _total: int) -> None:
        if (attack, done) == ("pgd-2", 20):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sihg.evaluate_run(run, REQUEST, progress=by_part(interrupt))
    assert [path.name for path in (run / "evaluation").iterdir()] == [f"{NAME}.partial.npz"]
    heard: list[tuple[str, int, int]] = []
    sihg.evaluate_run(run, REQUEST, progress=by_part(lambda *part: heard.append(part)))
    assert heard[:2] == [("natural", 60, 60), ("pgd-2", 20, 60)]
    assert not (run / "evaluation" / f"{NAME}.partial.npz").exists()


def test_verdicts_are_kept_if_the_gallery_cannot_be(run: Path) -> None:
    (run / "gallery.npz").mkdir()
    with refused("cannot-write-file", path=run / "gallery.npz"):
        sihg.evaluate_run(run, REQUEST)
    assert [path.name for path in (run / "evaluation").iterdir()] == [f"{NAME}.partial.npz"]
    (run / "gallery.npz").rmdir()
    heard: list[tuple[str, int, int]] = []
    sihg.evaluate_run(run, REQUEST, progress=by_part(lambda *part: heard.append(part)))
    assert heard == [("natural", 60, 60), ("pgd-2", 60, 60)]  # nothing is attacked again
    assert (run / "evaluation" / f"{NAME}.json").is_file()
    assert (run / "gallery.npz").is_file()


def test_a_curve_of_a_run(run: Path) -> None:
    found = sihg.evaluate_run(run, sihg.EvaluationRequest(attacks=("pgd-2",), curve="0:0.2:3", samples=60))
    assert isinstance(found, sihg.RadiusCurve)
    assert found.radii == (0.0, 0.1, 0.2)
    assert isinstance(read_evaluation(run / "evaluation" / f"{found.name}.json"), CurveRecord)
    assert not (run / "gallery.npz").exists()


@pytest.mark.parametrize("last_iterate", [True, False])
def test_the_rule_holds_at_every_radius(last_iterate: bool) -> None:
    plan = plan_attacks("pgd-3", Ball(0.2), [0.1, 0.2], last_iterate=last_iterate)["pgd-3"]
    assert [getattr(attack, "last_iterate", None) for attack in plan.values()] == [last_iterate] * 2
    assert [attack.ball.eps for attack in plan.values()] == [0.1, 0.2]


def test_requests_that_are_refused(run: Path, tmp_path: Path) -> None:
    with refused("no-attack"):
        sihg.EvaluationRequest(attacks=())
    for curve in ("0:1", "0:a:3", "0:1:2:3", ""):
        with refused("curve-form", curve=curve):
            sihg.EvaluationRequest(curve=curve)
    for curve in ("0.5:0.1:3", "-0.1:0.1:3", "0:0.1:1", "0:inf:3", "nan:1:3"):
        with refused("curve-range", curve=curve):
            sihg.EvaluationRequest(curve=curve)
    with refused("no-weights", path=tmp_path / "none"):
        sihg.evaluate_run(tmp_path / "none")
    with refused("curve-and-eps", curve="0:0.1:2", eps="0.1"):
        sihg.evaluate_run(run, sihg.EvaluationRequest(curve="0:0.1:2", changes={"eps": "0.1"}))
    assert sihg.EvaluationRequest(changes={"norm": "Linf"}) == sihg.EvaluationRequest(changes={"norm": "linf"})
    with refused("unknown-norm", name="l7"):
        sihg.EvaluationRequest(changes={"norm": "l7"})
    with refused("norm-without-eps", norm="l2", trained="linf"):
        sihg.evaluate_run(run, sihg.EvaluationRequest(changes={"norm": "L2"}))
    weights = tmp_path / "w.pt"
    weights.write_bytes(b"")
    with refused("weights-without-settings", missing="--model, --data"):
        sihg.evaluate_run(weights, sihg.EvaluationRequest(changes={"eps": "0.1"}))
    with refused("checkpoint-of-file", checkpoint="best"):
        sihg.evaluate_run(weights, sihg.EvaluationRequest(checkpoint="best"))
    other = shutil.copytree(run, tmp_path / "other" / "run")
    with refused("same-record-twice", name=f"run_{NAME}"):
        find_targets([run, other], REQUEST, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
