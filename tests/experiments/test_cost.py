"""The estimated cost of a run: seconds per step times steps, seconds per step of an attack on a sample times all."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sihg.errors import InputError
from sihg.experiments import _cost as cost
from sihg.experiments._cost import ATTACK_STEPS, FIRST_ROWS, estimate_costs
from sihg.robust.methods.base import Log
from sihg.robust.methods.pgd_at import PGDAT
from sihg.robust.training.events import Event
from sihg.robust.training.preflight import prepare
from sihg.robust.training.trainer import Trainer
from tests.refused import refused
from tests.robust.small import settings

N = 397  # test samples of digits


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A clock that is a second later each time it is read, so that a step or an attack takes one second."""
    ticks = count()
    monkeypatch.setattr(cost, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    monkeypatch.setattr(cost, "MAX_SECONDS", 1e9)
    return ticks


@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize("method", ["natural", "pgd", "msi-hg", "free"])
def test_steps_times_seconds(method: str) -> None:
    chosen = settings(method=method, samples=100, validation=20, batch_size=30, epochs=7, evaluate_every=2)
    found = estimate_costs(chosen, ("natural", "pgd-20", "pgd-50-10"), None)
    looks = 4  # epochs 2, 4, 6 and the last; each attacks the 20 held-out samples, some at once
    assert found.pop("training") == pytest.approx(7 * 3 + looks * (1 + 10 / ATTACK_STEPS))
    steps = {"natural": ATTACK_STEPS, "pgd-20": 20, "pgd-50-10": 500}
    assert found == pytest.approx({name: many / ATTACK_STEPS * N / FIRST_ROWS for name, many in steps.items()})


@pytest.mark.usefixtures("ticking")
def test_fewer_test_samples_and_a_cascade() -> None:
    found = estimate_costs(settings(samples=100), ("standard", "noise-3"), 64)
    assert list(found)[1:4] == ["standard: natural", "standard: certified", "standard: apgd-ce"]
    assert found["standard: square"] == pytest.approx(5000 / ATTACK_STEPS * 64 / FIRST_ROWS)
    assert found["noise-3"] == pytest.approx(64 / FIRST_ROWS)
    assert found["training"] == pytest.approx(3 * 4)


def test_the_estimate_is_the_work_of_a_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    step, work = PGDAT.step, [0]

    def working(self: PGDAT, *arguments: Any) -> Log:
        work[0] += 1
        return step(self, *arguments)

    monkeypatch.setattr(PGDAT, "step", working)
    monkeypatch.setattr(cost, "time", SimpleNamespace(perf_counter=lambda: float(work[0])))  # a clock of steps
    chosen = settings(method="pgd", steps=10, samples=600, epochs=3)
    seconds = estimate_costs(chosen, ("natural",), 10)["training"]
    work[0] = 0
    Trainer(prepare(chosen)).run()
    assert seconds == work[0]


def test_evaluations_while_training_do_not_count_as_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks, evaluate = count(), Trainer._evaluate

    def evaluating(self: Trainer) -> tuple[float, float]:
        for _ in range(100):
            next(ticks)
        return evaluate(self)

    monkeypatch.setattr(Trainer, "_evaluate", evaluating)
    monkeypatch.setattr(cost, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    monkeypatch.setattr(cost, "MAX_SECONDS", 1e9)
    prepared = prepare(settings(method="pgd", samples=100, validation=50, batch_size=50))  # one step per epoch
    assert cost._seconds_per_step(prepared) == 1


def test_missing_data_shows_before_anything_is_run() -> None:
    with pytest.raises(InputError, match="sihg data get mnist"):
        estimate_costs(settings(data="mnist"), ("natural",), data_dir=Path("nowhere"))


@pytest.mark.parametrize(
    ("code", "run"),
    [
        ("unknown-attack", lambda: estimate_costs(settings(), ("pdg-20",))),
        ("samples-range", lambda: estimate_costs(settings(), ("natural",), 398)),
        ("validation-range", lambda: estimate_costs(settings(validation=1000), ("natural",))),
    ],
)
def test_mistakes_show_before_anything_is_run(code: str, run: Callable[[], object]) -> None:
    with refused(code):
        run()


def nothing() -> Iterator[Event]:
    yield from ()


def test_ctrl_c_while_measuring_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "events", lambda _trainer: nothing())  # asked to stop at once
    with pytest.raises(KeyboardInterrupt):
        cost._seconds_per_step(prepare(settings(samples=100)))
