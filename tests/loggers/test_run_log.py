"""A run and its loggers: everything once, a failing logger stops nothing, the first process alone."""

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sihg
from sihg.cli.main import main
from sihg.errors import InputError
from sihg.loggers import LOGGERS, LoggedRun, Logger, LoggerWarning, registry, run_log
from sihg.robust.training.events import Event, StepDone
from sihg.robust.training.fit import resume_run
from sihg.robust.training.training_loggers import TrainingLoggers
from sihg.store.run_folder import RunFolder
from sihg.store.tables import read_json_lines, read_table
from sihg.store.trust import OWNER
from tests.refused import refused
from tests.robust.small import digits, records

SMALL: dict[str, Any] = {"method": "pgd", "eps": 0.1, "epochs": 3, "steps": 2, "batch_size": 32, "validation": 20}


class Recorder(Logger):
    """Keeps what it gets, by the id of its run; fails at the call with the number `fail_at`."""

    kept: dict[str, list[tuple[Any, ...]]]
    begun: list[Mapping[str, str] | None]
    fail_at = 0
    calls = 0

    def begin(self, run: LoggedRun, known: Mapping[str, str] | None) -> dict[str, str]:
        self.begun.append(known)
        self.id = known["id"] if known else f"run-{len(self.begun)}"
        self.kept.setdefault(self.id, []).append(("begin", run.name, dict(run.config)))
        return {"id": self.id}

    def _keep(self, *what: Any) -> None:
        type(self).calls += 1
        if self.calls == self.fail_at:
            raise ConnectionError("no route\nto host")
        self.kept[self.id].append(what)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._keep("live" if "step/loss" in values else "row", step, dict(values))

    def note(self, title: str, text: str, step: int) -> None:
        self._keep("note", title, text, step)

    def results(self, values: Mapping[str, float], step: int) -> None:
        self._keep("results", dict(values), step)

    def end(self, *, finished: bool) -> None:
        self.kept[self.id].append(("end", finished))


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> dict[str, type[Recorder]]:
    """Two loggers, `first` and `second`."""
    made = {name: type(name, (Recorder,), {"kept": {}, "begun": []}) for name in ("first", "second")}
    for module in (registry, run_log):
        monkeypatch.setattr(module, "make_logger", lambda name: made[name]())
        monkeypatch.setattr(module, "check_names", lambda _names: None)
    monkeypatch.setattr("sihg.robust.training.training_loggers.check_names", lambda _names: None)
    return made


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def of_kind(kept: list[tuple[Any, ...]], kind: str) -> list[tuple[Any, ...]]:
    return [what[1:] for what in kept if what[0] == kind]


def rows(run: Path) -> list[tuple[int, dict[str, float]]]:
    cells = [{name: float(text) for name, text in row.items() if text} for row in read_table(run / "metrics.csv")]
    return [(int(row.pop("step")), row) for row in cells]


def stop_at(step: int) -> Any:
    def stop(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    return stop


def test_a_resumed_run_continues_the_same_logger_run(recorders: dict[str, type[Recorder]], tmp_path: Path) -> None:
    run, first = tmp_path / "run", recorders["first"]
    trained = sihg.fit(model(), digits(), log="first", out=run, on_event=stop_at(5), **SMALL)
    assert not trained.finished
    sihg.fit(model(), digits(), out=run, resume=True, **SMALL)
    assert first.begun == [None, {"id": "run-1"}]
    kept = first.kept["run-1"]
    assert of_kind(kept, "row") == rows(run)
    assert [step for step, _ in of_kind(kept, "live")] == list(range(1, 10))
    assert of_kind(kept, "end") == [(False,), (True,)]
    name, config = of_kind(kept, "begin")[0]
    assert (name, config["eps"], config["method.name"], config["method.steps"]) == ("run", 0.1, "pgd", 2)


def test_steps_that_are_trained_again_are_not_sent_again(recorders: dict[str, type[Recorder]], tmp_path: Path) -> None:
    """A killed run goes back to its newest checkpoint."""
    run, first = tmp_path / "run", recorders["first"]

    def kill(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == 8:
            raise RuntimeError("as if killed")

    with pytest.raises(RuntimeError):
        sihg.fit(model(), digits(), log="first", out=run, on_event=kill, **SMALL)
    sihg.fit(model(), digits(), out=run, resume=True, **SMALL)
    kept = first.kept["run-1"]
    assert [step for step, _ in of_kind(kept, "live")] == list(range(1, 10))
    assert of_kind(kept, "row") == rows(run)


def test_a_logger_that_fails_stops_neither_the_training_nor_the_others(
    recorders: dict[str, type[Recorder]], tmp_path: Path
) -> None:
    run, first, second = tmp_path / "run", recorders["first"], recorders["second"]
    sihg.fit(model(), digits(), out=tmp_path / "plain", **SMALL)
    first.fail_at = 5
    with pytest.warns(LoggerWarning) as caught:
        sihg.fit(model(), digits(), log=("first", "second"), out=run, **SMALL)
    assert [str(warning.message) for warning in caught] == [
        "the logger first failed (ConnectionError: no route) and gets nothing more of this run; the work goes on"
    ]
    assert records(run) == records(tmp_path / "plain")
    assert of_kind(second.kept["run-1"], "row") == rows(run)
    assert len(of_kind(first.kept["run-1"], "row")) == 1
    run_log.replay(RunFolder(run), ["first"])  # what it lacks
    assert of_kind(first.kept["run-1"], "row") == rows(run)
    assert first.begun == [None, {"id": "run-1"}]


def test_a_logger_that_cannot_begin_is_an_error_only_for_who_asks(
    recorders: dict[str, type[Recorder]], tmp_path: Path
) -> None:
    run, first = tmp_path / "run", recorders["first"]
    sihg.fit(model(), digits(), log="first", out=run, on_event=stop_at(5), **SMALL)

    def fail(*_: object) -> dict[str, str]:
        raise PermissionError("no key")

    first.begin = fail  # type: ignore[method-assign, assignment]
    with refused("logger-failed", name="first"):
        sihg.fit(model(), digits(), log="first", out=tmp_path / "other", **SMALL)
    assert not (tmp_path / "other").exists()
    with pytest.warns(LoggerWarning, match="the logger first failed"):
        assert sihg.fit(model(), digits(), out=run, resume=True, **SMALL).finished


def test_evaluations_go_to_the_same_logger_run(recorders: dict[str, type[Recorder]], tmp_path: Path) -> None:
    run, first = tmp_path / "run", recorders["first"]
    words = ["--data", "digits", "--method", "fgsm", "--epochs", "1", "--samples", "200", "--width", "0.25"]
    assert main(["train", *words, "--log", "first", "--out", str(run)]) == 0
    for _ in range(2):  # the second time the record is only shown
        evaluation = sihg.evaluate_run(run, sihg.EvaluationRequest("natural,fgsm", samples=50))
    ((values, step),) = of_kind(first.kept["run-1"], "results")
    assert step == rows(run)[-1][0]
    place = "evaluation/last_test_natural+fgsm_n50/all"
    (row,) = (row for row in evaluation.record.attacks if row.attack == "all")  # type: ignore[union-attr]
    assert (values[place], values[f"{place}/low"], values[f"{place}/high"]) == (row.accuracy, row.low, row.high)
    notes = [text for title, text, _ in of_kind(first.kept["run-1"], "note") if title.startswith("evaluation/")]
    found = [check for check in evaluation.checks if check.result in ("warning", "error")]
    assert notes == [f"{check.name}: {check.message}" for check in found] != []
    sihg.evaluate_run(run, sihg.EvaluationRequest("natural", samples=50), out=tmp_path / "elsewhere")
    assert len(of_kind(first.kept["run-1"], "results")) == 1


def test_a_foreign_folder_does_not_say_where_results_go(recorders: dict[str, type[Recorder]], tmp_path: Path) -> None:
    run, first = tmp_path / "run", recorders["first"]
    words = ["--data", "digits", "--method", "fgsm", "--epochs", "1", "--samples", "200", "--width", "0.25"]
    assert main(["train", *words, "--log", "first", "--out", str(run)]) == 0
    (run / OWNER).unlink()
    sihg.evaluate_run(run, sihg.EvaluationRequest("natural", samples=50))
    assert first.begun == [None]
    sihg.evaluate_run(run, sihg.EvaluationRequest("natural", samples=40, trust=True))
    assert first.begun == [None, {"id": "run-1"}]


def test_without_a_folder(recorders: dict[str, type[Recorder]]) -> None:
    trained = sihg.fit(model(), digits(), log="first", **SMALL)
    kept = recorders["first"].kept["run-1"]
    assert [step for step, _ in of_kind(kept, "row")] == [row.step for row in trained.history]
    assert of_kind(kept, "begin")[0][0] == "pgd"
    with refused("logger-without-folder", name="tensorboard"):
        recorders["first"].begin = _needs_folder  # type: ignore[method-assign, assignment]
        sihg.fit(model(), digits(), log="first", **SMALL)


def _needs_folder(*_: object) -> dict[str, str]:
    raise InputError("logger-without-folder", name="tensorboard")


def test_only_the_first_process_logs() -> None:
    assert TrainingLoggers("nonsense,gone.py:Nothing", is_first=False).names == ()


def test_unknown_and_missing_loggers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with refused("unknown-logger", name="tensorbord"):
        sihg.fit(model(), digits(), log="tensorbord", **SMALL)
    monkeypatch.setattr(registry, "find_spec", lambda _name: None)
    for name, entry in LOGGERS.items():
        with refused("logger-missing", name=name, package=entry.package) as caught:
            sihg.fit(model(), digits(), log=name, out=tmp_path / "run", **SMALL)
        assert f"pip install 'sihg[{name}]'" in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_no_package_of_a_logger_is_imported_unless_asked_for() -> None:
    before = {entry.package for entry in LOGGERS.values()} & sys.modules.keys()
    sihg.fit(model(), digits(), **SMALL)
    assert {entry.package for entry in LOGGERS.values()} & sys.modules.keys() == before


def test_a_long_run_sends_few_points(recorders: dict[str, type[Recorder]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_log, "LIVE_POINTS", 4)  # of 9 steps
    sihg.fit(model(), digits(), log="first", **SMALL)
    kept = recorders["first"].kept["run-1"]
    assert [step for step, _ in of_kind(kept, "live")] == [3, 6, 9]
    assert len(of_kind(kept, "row")) == 3


def test_a_damaged_list_is_named(recorders: dict[str, type[Recorder]], tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ["--data", "digits", "--method", "fgsm", "--epochs", "2", "--samples", "200", "--width", "0.25"]
    assert main(["train", *words, "--log", "first", "--out", str(run)]) == 0
    path = run / "loggers.jsonl"
    assert read_json_lines(path, sealed=True)[0] == {"to": ["first"], "known": {"id": "run-1"}}
    path.write_text(path.read_text().replace("run-1", "run-2"))
    assert main(["check", str(run)]) == 1
    with refused("table-line", path=path):
        resume_run(run)
    with pytest.warns(LoggerWarning):  # the evaluation itself is kept
        sihg.evaluate_run(run, sihg.EvaluationRequest("natural", samples=50))
    assert recorders["first"].begun == [None]


def test_a_new_run_in_the_folder_begins_a_new_logger_run(recorders: dict[str, type[Recorder]], tmp_path: Path) -> None:
    run = tmp_path / "run"
    for _ in range(2):
        sihg.fit(model(), digits(), log="first", out=run, overwrite=True, **SMALL)
    assert recorders["first"].begun == [None, None]
    assert of_kind(recorders["first"].kept["run-2"], "row") == rows(run)
