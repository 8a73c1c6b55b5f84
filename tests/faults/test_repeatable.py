"""Equal evaluations give equal records, seconds aside: on a busy machine, by any clock, and after an interruption."""

import itertools
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sihg.cli.main import main
from sihg.robust.attacks import runner
from sihg.robust.evaluation import EvaluationRequest, evaluate_run
from tests.robust.evaluation.heard import by_part

ATTACKS, SAMPLES, EPS = "natural,pgd-20,apgd-ce,square-20", 150, "0.05"
REATTACKING = {"one step", "radius", "steps", "runs"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    words = ("--epochs", "2", "--samples", "300", "--validation", "0", "--steps", "2", "--width", "1/4")
    assert main(["train", "--out", str(out), *words]) == 0
    return out


def words(trained: Path, out: Path) -> list[str]:
    command = ["evaluate", str(trained), "--attacks", ATTACKS, "--samples", str(SAMPLES), "--eps", EPS]
    return [*command, "--threads", "1", "--out", str(out)]


def without_seconds(value: Any) -> Any:
    """Leave out seconds, and the sums of files that hold them."""
    if isinstance(value, dict):
        return {name: without_seconds(item) for name, item in value.items() if not name.endswith("seconds")}
    return [without_seconds(item) for item in value] if isinstance(value, list) else value


def record(out: Path) -> str:
    """The only record in a folder, in the order of its fields."""
    (path,) = out.glob("*.json")
    return json.dumps(without_seconds(json.loads(path.read_text())), indent=1)


def evaluated_here(trained: Path, out: Path) -> str:
    assert main(words(trained, out)) == 0
    return record(out)


def evaluated_in_a_process(trained: Path, out: Path) -> str:
    subprocess.run([sys.executable, "-m", "sihg", *words(trained, out)], check=True, capture_output=True)
    return record(out)


@pytest.fixture(scope="module")
def usual(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return evaluated_here(trained, tmp_path_factory.mktemp("usual"))


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep processes busy that do nothing of use."""
    idle = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in idle:
            process.kill()
            process.wait()


def test_one_process(trained: Path, usual: str, tmp_path: Path) -> None:
    assert evaluated_here(trained, tmp_path) == usual
    results = {check["name"]: check["result"] for check in json.loads(usual)["checks"]}
    assert "not run" not in {results[name] for name in REATTACKING}


@pytest.mark.parametrize("pace", [1e-9, 1e4])
def test_clocks_that_jump(
    pace: float, trained: Path, usual: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(0)
    for name in ("perf_counter", "monotonic"):
        monkeypatch.setattr(time, name, lambda: pace * draw.uniform(-1, 1))
    assert evaluated_here(trained, tmp_path) == usual


def test_fresh_processes_and_a_busy_core(trained: Path, usual: str, tmp_path: Path) -> None:
    assert evaluated_in_a_process(trained, tmp_path / "quiet") == usual
    with busy(2):
        assert evaluated_in_a_process(trained, tmp_path / "busy") == usual


@pytest.mark.slow
def test_twelve_processes(trained: Path, usual: str, tmp_path: Path) -> None:
    with busy(2):
        assert {evaluated_in_a_process(trained, tmp_path / str(i)) for i in range(12)} == {usual}


class CutError(Exception):
    """The end of an evaluation, for which nobody asked."""


def test_an_interruption_anywhere(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "rows_per_chunk", lambda _shape: 64)  # several parts for each attack
    request = EvaluationRequest(attacks=ATTACKS, samples=SAMPLES, changes={"eps": EPS})
    evaluate_run(trained, request, out=tmp_path / "whole")
    for parts in itertools.count(2, 3):
        out, calls = tmp_path / str(parts), itertools.count(1)

        def progress(*_: object, calls: Iterator[int] = calls, last: int = parts) -> None:
            if next(calls) == last:
                raise CutError

        try:
            evaluate_run(trained, request, out=out, progress=by_part(progress))
        except CutError:
            evaluate_run(trained, request, out=out)
        else:
            break
        assert record(out) == record(tmp_path / "whole")
    assert parts > 12
