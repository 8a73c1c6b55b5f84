"""A user's own method with state, and a user's own logger, each in one file: trained, killed, resumed bitwise."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sihg
from sihg.cli.main import main
from sihg.robust.methods import AdversarialMethod
from sihg.robust.training.events import EpochDone, Event, StepDone
from sihg.store.checkpoint import read_checkpoint
from sihg.store.tables import read_table
from tests.refused import refused
from tests.robust.small import digits, records

METHOD = '''
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from sihg.robust.gradients import inner_mode, slope
from sihg.robust.memory import PerturbationMemory
from sihg.robust.methods import AdversarialMethod, Log, Optimizer
from sihg.robust.methods.settings import setting


@dataclass(kw_only=True)
class Momentum(AdversarialMethod):
    """One step per visit along the gradient averaged over the visits, from where the last visit ended."""

    decay: float = setting(0.5, "of the averaged gradient", least=0, below=1)
    columns: ClassVar[tuple[str, ...]] = ("gradient_norm",)

    def bind(self, samples, *, dtype="int8", folder=None, resuming=False, lane=0, lanes=1):
        self.average = torch.zeros(len(samples), *samples.shape)  # one row per training sample
        where = {"folder": folder, "existing": resuming, "rank": lane, "world_size": lanes}
        self.memory = PerturbationMemory(len(samples), samples.shape, self.eps, dtype=dtype, **where)

    def step(self, model: nn.Module, batch, optimizer: Optimizer) -> Log:
        if os.environ.get("KILL_AT") == str(batch.step):
            os.kill(os.getpid(), signal.SIGKILL)
        feasible, eps = self.ball(batch)
        delta = feasible.project_(self.memory.read(batch.index, batch.epoch))
        with inner_mode(model, "batch"):
            gradient = slope(model, batch.x, batch.y)(delta)
        average = self.average[batch.index].mul_(self.decay).add_(gradient)
        self.average[batch.index] = average
        feasible.climb_(delta, average, eps / 2)
        self.memory.write(batch.index, batch.epoch, delta)
        log = self.train_on(model, batch, batch.x + delta, optimizer, passes=len(delta))
        return replace(log, extra={"gradient_norm": float(average.norm())})

    def state(self, epoch: int) -> dict[str, Tensor]:
        return {"average": self.average, **self.memory.state(epoch)}

    def load_state(self, state: Mapping[str, Tensor], epoch: int) -> None:
        self.average.copy_(state["average"])
        self.memory.load_state(state)
'''
LOGGER = '''
from pathlib import Path

from sihg.robust.training.events import EpochDone, StepDone


class Steps:
    """Counts steps, and writes the loss of each epoch to a file."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, event) -> None:
        if isinstance(event, StepDone):
            self.steps += 1
        if isinstance(event, EpochDone):
            with Path("losses.txt").open("a") as file:
                file.write(f"{self.steps} {event.row.loss}\\n")
'''
STEPS, EPOCHS = 4, 3


@pytest.fixture
def method(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(METHOD)
    return f"{tmp_path / 'mine.py'}:Momentum"


def words(method: str, out: Path) -> list[str]:
    sizes = ["--samples", "120", "--validation", "20", "--batch-size", "25", "--epochs", str(EPOCHS), "--width", "1/4"]
    own = ["--method", method, "--eps", "1/10", "--set", "decay=0.9", "--checkpoint-minutes", "0"]
    return ["train", *own, *sizes, "--evaluate-with", "pgd-2", "--threads", "1", "--out", str(out)]


def train_and_kill(method: str, out: Path, step: int) -> None:
    command = [sys.executable, "-m", "sihg", *words(method, out)]
    environment = {**os.environ, "KILL_AT": str(step)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert max(int(p.name[5:]) for p in (out / "checkpoints").glob("last-*")) == step


@pytest.mark.parametrize("killed_at", [2, 2 * STEPS + 3])
def test_a_stateful_method_in_one_file_survives_kill_9(tmp_path: Path, method: str, killed_at: int) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert main(words(method, whole)) == 0
    train_and_kill(method, killed, killed_at)
    assert main(["resume", str(killed)]) == 0
    last = f"last-{STEPS * EPOCHS:08d}"
    ended, expected = (read_checkpoint(run / "checkpoints" / last) for run in (killed, whole))
    assert ended.tensors.keys() == expected.tensors.keys() == {"weights", "optimizer", "method"}
    assert {"average", "values", "tags"} <= ended.tensors["method"].keys()
    for group, tensors in expected.tensors.items():
        assert [name for name, tensor in tensors.items() if not torch.equal(tensor, ended.tensors[group][name])] == []
    assert records(killed) == records(whole)
    norms = [float(row["gradient_norm"]) for row in read_table(killed / "metrics.csv")]
    assert len(norms) == EPOCHS
    assert min(norms) > 0


def test_the_state_of_the_method_matters(tmp_path: Path, method: str) -> None:
    """Without the state the resumed run differs, so that the test above compares something."""
    text = METHOD.replace('self.average.copy_(state["average"])', "pass")
    assert text != METHOD
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert main(words(method, whole)) == 0
    (tmp_path / "forgets.py").write_text(text)
    train_and_kill(f"{tmp_path / 'forgets.py'}:Momentum", killed, 6)
    assert main(["resume", str(killed)]) == 0
    assert read_table(killed / "metrics.csv")[-1]["loss"] != read_table(whole / "metrics.csv")[-1]["loss"]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def test_a_users_logger_receives_the_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    exec(compile(LOGGER, "logger.py", "exec"), namespace)
    trained = sihg.fit(model(), digits(), method="fgsm", eps=0.1, epochs=2, on_event=namespace["Steps"]())
    lines = [line.split() for line in (tmp_path / "losses.txt").read_text().splitlines()]
    assert lines == [["1", str(trained.history[0].loss)], ["2", str(trained.history[1].loss)]]


def test_a_method_object_is_the_same_as_its_name() -> None:
    named, given = model(), model()
    eps: Any = "1/10"
    sihg.fit(named, digits(), method="pgd", eps=eps, steps=3, epochs=2)
    sihg.fit(given, digits(), method=sihg.PGDAT(eps=eps, steps=3), epochs=2)
    assert all(torch.equal(a, b) for a, b in zip(named.parameters(), given.parameters(), strict=True))
    with refused("method-object-setting", name="steps"):
        sihg.fit(model(), digits(), method=sihg.PGDAT(eps=0.1), steps=3)
    with refused("method-object-eps", eps=0.2):
        sihg.fit(model(), digits(), method=sihg.PGDAT(eps=0.1), eps=0.2)
    with refused("eps-missing"):
        sihg.fit(model(), digits(), method="pgd")


def test_an_object_of_a_users_class_trains_and_names_its_file(tmp_path: Path, method: str) -> None:
    from sihg.robust.methods.registry import build_method

    mine: AdversarialMethod = build_method(method, eps=0.1, decay=0.25)
    events: list[Event] = []
    trained = sihg.fit(model(), digits(), method=mine, epochs=1, out=tmp_path / "run", on_event=events.append)
    assert trained.finished
    assert [type(event) for event in events if isinstance(event, StepDone | EpochDone)] == [StepDone, EpochDone]
    config = (tmp_path / "run" / "config.toml").read_text()
    assert f'name = "{method}"' in config
    assert "decay = 0.25" in config


def test_a_class_without_the_base_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "bare.py"
    file.write_text("from dataclasses import dataclass\n@dataclass\nclass Bare:\n    def step(self): ...\n")
    with refused("method-base"):
        sihg.fit(model(), digits(), method=f"{file}:Bare", eps=0.1, epochs=1)


def test_a_class_without_a_step_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.py"
    path.write_text(
        "from dataclasses import dataclass\nfrom sihg.robust.methods import AdversarialMethod\n\n\n"
        "@dataclass(kw_only=True)\nclass Empty(AdversarialMethod):\n    pass\n"
    )
    with refused("method-class", name=f"{path}:Empty"):
        sihg.fit(nn.Flatten(), digits(20), method=f"{path}:Empty", eps=0.1, epochs=1)


@pytest.mark.parametrize("extra", ["{}", "{'drift': float('nan')}"])
def test_a_column_without_a_number_is_refused(tmp_path: Path, extra: str) -> None:
    path = tmp_path / "drifting.py"
    path.write_text(
        "from dataclasses import dataclass, replace\nfrom sihg.robust.methods import AdversarialMethod\n\n\n"
        "@dataclass(kw_only=True)\nclass Drifting(AdversarialMethod):\n"
        "    columns = ('drift',)\n\n    def step(self, model, batch, optimizer):\n"
        f"        return replace(self.train_on(model, batch, batch.x, optimizer, passes=0), extra={extra})\n"
    )
    with refused("method-column", name="drift"):
        sihg.fit(model(), digits(), method=f"{path}:Drifting", eps=0.1, epochs=1)
