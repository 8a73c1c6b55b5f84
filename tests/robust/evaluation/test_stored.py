"""A finished evaluation is not made again, unless it is another one, or its record cannot be believed."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

import sihg
from sihg.cli.main import main
from sihg.robust.evaluation import EvaluationProgress, EvaluationRequest, diagnostics, evaluate_run, stored
from sihg.robust.evaluation.findings import Evaluation, Findings, RadiusCurve
from sihg.robust.evaluation.task import make_task
from sihg.store.arrays import read_arrays, write_arrays
from sihg.store.files import sha256_of_file
from sihg.store.run_folder import describe_environment
from sihg.store.schema import Check, read_json, write_json
from tests.robust.planted import EPS, digits, healthy

TRAIN = "--data digits --method natural --samples 60 --validation 10 --epochs 1 --batch-size 20 --width 0.25"
REQUEST = EvaluationRequest("natural,pgd-2,noise-1", samples=40)
NAME = "last_test_natural+pgd-2+noise-1_n40"
WORDS = ("--attacks", "natural,pgd-2,noise-1", "--samples", "40")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    assert main(["train", *TRAIN.split(), "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def evaluated(run: Path, request: EvaluationRequest = REQUEST, **options: Any) -> tuple[Any, int]:
    """Evaluate; return the result, and how many events said that something was attacked."""
    events: list[EvaluationProgress] = []
    return evaluate_run(run, request, progress=events.append, **options), len(events)


def content(found: Findings) -> dict[str, Any]:
    """All that an evaluation says, with the seconds."""
    outcomes = [stage for outcome in found.outcomes for stage in (outcome, *outcome.stages)]
    tensors = [[getattr(stage, name).tolist() for name in ("attacked", "broken", "prediction")] for stage in outcomes]
    margins = [[str(value) for value in (*stage.margin.tolist(), *stage.distance.tolist())] for stage in outcomes]
    scalars = [(stage.attack, stage.passes, stage.forwards, stage.seconds, stage.remark) for stage in outcomes]
    return {"tensors": tensors, "margins": margins, "scalars": scalars, "text": str(found), "record": found.record}


@pytest.mark.parametrize("request_", [REQUEST, EvaluationRequest("pgd-2", samples=40, curve="0:0.2:3")])
def test_the_same_evaluation_is_read_from_its_record(run: Path, request_: EvaluationRequest) -> None:
    first, attacked = evaluated(run, request_)
    assert attacked
    assert first.stored is None
    before = {path: path.stat().st_mtime_ns for path in (run / "evaluation").iterdir()}
    second, attacked = evaluated(run, request_)
    assert not attacked
    assert second.stored == run / "evaluation" / f"{first.name}.json"
    assert type(second) is type(first)
    assert content(second) == content(first)
    assert {path: path.stat().st_mtime_ns for path in (run / "evaluation").iterdir()} == before
    third, attacked = evaluated(run, request_, again=True)
    assert attacked
    assert third.stored is None


def test_the_command_shows_the_record_and_says_so(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", str(run), *WORDS]
    assert main(words) == 0
    first = capsys.readouterr()
    os.utime(run / "evaluation" / f"{NAME}.json", (0, 0))
    assert main(words) == 0
    second = capsys.readouterr()
    assert second.out == first.out
    said = second.err.splitlines()
    assert f"the record {run / 'evaluation' / NAME}.json is of 1970-01-0" in said[0] or "1969-12-31" in said[0]
    assert "--again makes it anew" in said[0]
    assert said[1:] == first.err.splitlines()
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["attacks"][-1]["attack"] == "all"
    assert main([*words, "--again"]) == 0
    assert "not evaluated again" not in capsys.readouterr().err


def test_errors_of_checks_have_the_exit_code_that_they_had(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(diagnostics.ModelState, "check", lambda _self: Check("state", "error", "planted"))
    assert main(["evaluate", str(run), *WORDS]) == 2
    monkeypatch.undo()
    assert main(["evaluate", str(run), *WORDS]) == 2
    assert "error: planted" in capsys.readouterr().err


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 1},
        {"samples": 39},
        {"attacks": "natural,pgd-3,noise-1"},
        {"changes": {"eps": "0.2"}},
        {"last_iterate": True},
        {"precision": "bfloat16"},
        {"split": "train"},
    ],
)
def test_another_evaluation_is_made_even_under_the_same_name(
    run: Path, changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EvaluationRequest, "name_of_record", lambda *_, **__: NAME)
    evaluated(run)
    assert evaluated(run, replace(REQUEST, **changed))[1]


def test_other_weights_are_another_evaluation(run: Path, tmp_path: Path) -> None:
    evaluated(run)
    other = tmp_path / "other"
    assert main(["train", *TRAIN.split(), "--seed", "1", "--out", str(other)]) == 0
    shutil.copytree(run / "evaluation", other / "evaluation")
    assert evaluated(other)[1]
    assert not evaluated(run)[1]


@pytest.mark.parametrize("name", ["torch", "processor", "sihg"])
def test_another_version_or_processor_is_another_evaluation(
    run: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated(run)
    here = msgspec.structs.replace(describe_environment(), **{name: "another"})
    for module in ("stored", "evaluate", "task"):
        monkeypatch.setattr(import_module(f"sihg.robust.evaluation.{module}"), "describe_environment", lambda **_: here)
    assert evaluated(run)[1]


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a record and give it the sum that everybody can compute."""
    record = read_json(path, "")
    change(record)
    write_json(path, record)


def flatter(record: dict[str, Any]) -> None:
    record["checks"] = [{**check, "result": "fine"} for check in record["checks"]]
    record["checks"][0]["message"] = "trust me"


def test_a_record_that_was_edited_or_damaged_is_not_believed(run: Path) -> None:
    home = run / "evaluation"
    first = evaluated(run)[0]
    json_path, npz_path = home / f"{NAME}.json", home / f"{NAME}.npz"
    whole = {path: path.read_bytes() for path in (json_path, npz_path)}

    def cut() -> None:
        json_path.write_bytes(whole[json_path][:-40])

    def foreign() -> None:
        edit(json_path, lambda record: record.update(own_seal_with_seconds="0" * 64))

    def none() -> None:
        edit(json_path, lambda record: record.pop("own_seal_with_seconds"))

    def accept() -> None:
        edit(json_path, lambda record: record.update(edited=True))

    def lose() -> None:
        npz_path.unlink()

    def swap() -> None:  # other verdicts, with all sums that need no key
        arrays = read_arrays(npz_path)
        write_arrays(npz_path, {**arrays, "broken": np.zeros_like(arrays["broken"])})
        edit(json_path, lambda record: record["files"].update({npz_path.name: sha256_of_file(npz_path)}))

    def better() -> None:
        edit(json_path, lambda record: record["attacks"][-1].update(accuracy=1.0))

    acts = (cut, foreign, none, accept, lose, swap, better, lambda: edit(json_path, flatter))
    for act in acts:
        for path, data in whole.items():
            path.write_bytes(data)
        assert not evaluated(run)[1]
        act()
        again, attacked = evaluated(run)
        assert attacked, act
        assert [row.accuracy for row in again.rows()] == [row.accuracy for row in first.rows()]


def test_another_user_does_not_believe_it(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated(run)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert evaluated(run)[1]
    assert not evaluated(run)[1]


def test_what_is_missing_is_made(run: Path) -> None:
    evaluated(run)
    with_points = replace(REQUEST, points=True)
    first, attacked = evaluated(run, with_points)
    assert attacked  # no points were kept
    second, attacked = evaluated(run, with_points)
    assert not attacked
    assert torch.equal(second.points, first.points)
    (run / "gallery.npz").unlink()
    assert not evaluated(run, with_points)[1]
    assert (run / "gallery.npz").is_file()
    points = run / "evaluation" / f"{NAME}.points.npy"
    points.write_bytes(points.read_bytes()[:-1])
    assert not evaluated(run)[1]  # does not need them
    assert evaluated(run, with_points)[1]


def test_a_users_function_in_a_file_is_read_while_it_stays_the_same(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def darker(model, x, y):\n    return (x - 0.01).clamp(min=0)\n", encoding="utf-8")
    request = EvaluationRequest(f"natural,{file}:darker", samples=40)
    assert evaluated(run, request)[1]
    assert not evaluated(run, request)[1]
    file.write_text("def darker(model, x, y):\n    return (x - 0.02).clamp(min=0)\n", encoding="utf-8")
    assert evaluated(run, request)[1]


def test_a_stand_in_is_another_when_what_it_imports_has_changed(run: Path, tmp_path: Path) -> None:
    """The file of the stand-in itself stays the same."""
    helper, file = tmp_path / "slopes_of_the_stand_in.py", tmp_path / "stand_in.py"
    file.write_text(
        "from slopes_of_the_stand_in import slope\n\ndef smooth(x):\n    return slope(x)\n", encoding="utf-8"
    )
    request = EvaluationRequest("natural,pgd-2", samples=40, bpda={"body.1": f"{file}:smooth"})
    helper.write_text("def slope(x):\n    return x.relu()\n", encoding="utf-8")
    assert evaluated(run, request)[1]
    assert not evaluated(run, request)[1]
    helper.write_text("def slope(x):\n    return 2 * x\n", encoding="utf-8")
    assert evaluated(run, request)[1]


def python(folder: Path, attacks: Any = "natural,pgd-2", **options: Any) -> tuple[Evaluation, int]:
    samples, events = digits().take(slice(60)), list[EvaluationProgress]()
    found = sihg.evaluate(
        *(healthy(), samples), eps=EPS, attacks=attacks, resume=folder, progress=events.append, **options
    )
    return found, len(events)


def test_evaluate_reads_what_was_saved_in_the_folder(tmp_path: Path) -> None:
    first, _ = python(tmp_path, points=True)
    first.save(tmp_path)
    second, attacked = python(tmp_path, points=True)
    assert not attacked
    assert content(second) == content(first)
    assert second.points is not None
    assert first.points is not None
    assert torch.equal(second.points, first.points)
    assert python(tmp_path, trained_with="msi-hg")[1]  # other checks
    path = second.save(tmp_path / "copy")
    assert read_json(path, "")["files"] == read_json(tmp_path / "evaluation" / path.name, "")["files"]
    assert not python(tmp_path / "copy", points=True)[1]


class Scaled(torch.nn.Module):
    """A model whose function depends on what no state dict has."""

    def __init__(self, scale: float, *, as_function: bool = False, as_buffer: bool = False) -> None:
        super().__init__()
        self.model = healthy()
        if as_function:
            self.change: Callable[[torch.Tensor], torch.Tensor] = lambda x: scale * x
        elif as_buffer:
            self.register_buffer("scale", torch.tensor(scale), persistent=False)
        else:
            self.scale = scale

    def forward(self, x: torch.Tensor) -> Any:
        return self.model(self.change(x) if hasattr(self, "change") else self.scale * x)


@pytest.mark.parametrize("how", [{}, {"as_function": True}, {"as_buffer": True}])
def test_a_model_with_other_attributes_is_another_model(tmp_path: Path, how: dict[str, bool]) -> None:
    samples = digits().take(slice(60))
    settings: dict[str, Any] = {"eps": EPS, "attacks": "natural", "resume": tmp_path}
    first = sihg.evaluate(Scaled(1.0, **how), samples, **settings)
    first.save(tmp_path)
    assert sihg.evaluate(Scaled(1.0, **how), samples, **settings).stored is not None
    other = sihg.evaluate(Scaled(-1.0, **how), samples, **settings)
    assert other.stored is None
    assert other.accuracy < first.accuracy


def test_points_of_a_source_with_other_attributes_are_others(tmp_path: Path) -> None:
    def run(scale: float) -> Evaluation:
        return python(tmp_path, {"moved": sihg.Transfer(eps=EPS, source=Scaled(scale), steps=1)})[0]

    run(1.0).save(tmp_path)
    assert run(1.0).stored is not None
    assert run(-1.0).stored is None


def test_a_model_in_no_file_is_known_by_its_methods(tmp_path: Path) -> None:
    """As in a notebook, where a cell is edited and run again."""
    source = "class Sign(torch.nn.Module):\n    def forward(self, x):\n        return {} * x.flatten(1)\n"
    data = 0.9 * torch.eye(4), torch.arange(4)

    def run(sign: str) -> Evaluation:
        names: dict[str, Any] = {"torch": torch, "__name__": "no_such_module"}
        exec(source.format(sign), names)
        return sihg.evaluate(names["Sign"](), data, eps=0.1, attacks="natural", resume=tmp_path)

    run("1").save(tmp_path)
    assert run("1").stored is not None
    assert run("-1").accuracy == 0


def test_a_curve_is_read_too(tmp_path: Path) -> None:
    events: list[EvaluationProgress] = []
    settings: dict[str, Any] = {"radii": [0, EPS], "attacks": "pgd-2", "resume": tmp_path}
    samples = digits().take(slice(60))
    first = sihg.robust_curve(healthy(), samples, **settings)
    first.save(tmp_path)
    second = sihg.robust_curve(healthy(), samples, **settings, progress=events.append)
    assert isinstance(second, RadiusCurve)
    assert not events
    assert content(second) == content(first)


def test_a_random_model_and_smallest_distances_are_read_too(tmp_path: Path) -> None:
    class Noisy(torch.nn.Module):
        """A model with noise at its input."""

        def __init__(self) -> None:
            super().__init__()
            self.model = healthy()

        def forward(self, x: torch.Tensor) -> Any:
            return self.model(x + 0.1 * torch.randn_like(x))

    samples, events = digits().take(slice(40)), list[EvaluationProgress]()
    shared: dict[str, Any] = {"resume": tmp_path, "progress": events.append}
    for make in (
        lambda: sihg.evaluate(Noisy(), samples, eps=EPS, attacks="natural,pgd-2", **shared),
        lambda: sihg.minimum_eps(healthy(), samples, max_eps=EPS, attacks="pgd-2", **shared),
    ):
        first = make()
        first.save(tmp_path)
        events.clear()
        second = make()
        assert not events
        assert type(second) is type(first)
        assert content(second) == content(first)
        wrong = [
            [outcome.wrong is None or outcome.wrong.tolist() for outcome in one.outcomes] for one in (first, second)
        ]
        assert wrong[0] == wrong[1]


def test_all_processes_must_have_found_it(tmp_path: Path) -> None:
    class Two:
        """Two processes, of which the other has found nothing."""

        def gather(self, value: object) -> list[object]:
            return [value, False]

    first, _ = python(tmp_path)
    first.save(tmp_path)
    task = make_task(
        healthy(), digits().take(slice(60)), "natural,pgd-2", first.ball, (), None, 0, None, last_iterate=False
    )
    assert stored.find_stored(task, tmp_path / "evaluation") is not None
    assert stored.find_stored(task, tmp_path / "evaluation", processes=Two()) is None  # type: ignore[arg-type]
