"""No wait for the device inside an ascent, one per step of the optimiser outside it, and the CPU's results."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sihg.core.processes import Processes
from sihg.errors import InputError, NotFiniteError
from sihg.robust import models
from sihg.robust.attacks import _hyperplane
from sihg.robust.attacks.apgd import APGD
from sihg.robust.attacks.outcome import Outcome
from sihg.robust.attacks.random_models import Draws
from sihg.robust.attacks.registry import build_plan
from sihg.robust.attacks.runner import run_attacks
from sihg.robust.data.samples import Samples, as_samples
from sihg.robust.memory import PerturbationMemory
from sihg.robust.methods.base import Log, log
from sihg.robust.threat import Ball
from sihg.robust.training.config import Settings
from sihg.robust.training.events import StepDone
from sihg.robust.training.fit import new_folder
from sihg.robust.training.lanes import LaneSum
from sihg.robust.training.preflight import preflight
from sihg.robust.training.trainer import Trainer
from sihg.robust.waits import reading_once, refuse_if
from sihg.store.schema import MetricsRow
from tests.robust.device import DEVICE, DeviceTensor, Waits

SHAPE, CLASSES, STEPS = (3, 8, 8), 4, 3  # per epoch


@dataclass
class Counts:
    """What one step between two others of its epoch did."""

    in_ascent: int
    outside: int
    up: int
    down: int


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[Waits]:
    """The device, and what it is waited for."""
    counter = Waits()
    with counter.counted(monkeypatch):
        yield counter


def images(n: int = 80) -> Samples:
    """Random images."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (n, *SHAPE), generator=draw, dtype=torch.uint8)
    return as_samples((x, torch.randint(0, CLASSES, (n,), generator=draw)))


def trainer(values: dict[str, Any], device: str, path: Path | None = None) -> Trainer:
    """A trainer of two epochs; three channels, since the first layer of others is computed in another way on a CPU."""
    small = {"epochs": 2, "batch_size": 32, "eps": "8/255", "width": 1 / 8, "model": "preact-resnet8", "device": device}
    settings = Settings().with_values({**small, **values})
    model = models.build(settings.model, SHAPE, CLASSES, width=settings.width, seed=0)
    folder = None if path is None else new_folder(path, settings, threads=torch.get_num_threads())
    return Trainer(preflight(model, images(), settings), folder)


def train(trained: Trainer, waits: Waits | None = None) -> tuple[list[MetricsRow], list[Counts]]:
    """Train; return the rows of all steps, and what those did that follow another one in their epoch."""
    rows, counts = [], []
    for event in trained.events():
        if isinstance(event, StepDone):
            rows.append(event.row)
            if waits is not None and len(rows) % STEPS != 1:
                numbers = waits.waits(in_ascent=True), waits.waits(in_ascent=False)
                counts.append(Counts(*numbers, waits.copies("up"), waits.copies("down")))
        if waits is not None:
            waits.clear()
    return rows, counts


def tensors(trained: Trainer) -> dict[str, Tensor]:
    """All weights, and what the method keeps, on the CPU."""
    found = dict(trained.optimizer.evaluated.state_dict())
    for lane, method in trained.methods.items():
        found |= {f"{lane}/{name}": value for name, value in method.state(epoch=1).items()}
    return {name: value.cpu().clone() for name, value in found.items()}


def numbers(row: MetricsRow) -> dict[str, object]:
    """The row without times."""
    return {name: value for name, value in row.cells().items() if "seconds" not in name and name != "passes"}


def check_equal(ours: Trainer, theirs: Trainer, tolerance: float = 0.0) -> None:
    """Compare weights and memory."""
    for (name, a), b in zip(tensors(ours).items(), tensors(theirs).values(), strict=True):
        assert torch.equal(a, b) if not tolerance else torch.allclose(a, b, atol=tolerance, rtol=0), name


CASES: dict[str, dict[str, Any]] = {
    **{name: {"method": name} for name in ("msi-hg", "pgd", "dat", "trades", "fast", "fgsm", "natural")},
    **{name: {"method": name} for name in ("atta", "fgsm-pgi", "n-fgsm", "mart")},
    "yopo": {"method": "yopo", "outer": 2, "inner": 2},
    "free": {"method": "free", "replays": 3},
    "ibp": {"method": "ibp", "model": "small-cnn"},
    "msi-hg l2": {"norm": "l2", "eps": 0.5, "memory": "fp16"},
    "msi-hg l1": {"norm": "l1", "eps": 2.0, "memory": "fp16"},
    "dat l1": {"method": "dat", "norm": "l1", "eps": 2.0},
    "atta l2": {"method": "atta", "norm": "l2", "eps": 0.5, "memory": "fp16", "reset": 1, "noise": 0.5},
    "fgsm-pgi l2": {"method": "fgsm-pgi", "norm": "l2", "eps": 0.5, "memory": "fp16"},
    "fgsm-pgi augmented": {"method": "fgsm-pgi", "flip": True, "crop": 1, "reset": 1},
    "fgsm-pgi lanes": {"method": "fgsm-pgi", "lanes": 2},
    "n-fgsm l1": {"method": "n-fgsm", "norm": "l1", "eps": 2.0},
    "pgd awp": {"method": "pgd", "awp_gamma": 0.01, "label_smoothing": 0.1},
    "free awp": {"method": "free", "replays": 2, "awp_gamma": 0.01, "label_smoothing": 0.1},
    "yopo awp": {"method": "yopo", "outer": 2, "inner": 2, "awp_gamma": 0.01, "label_smoothing": 0.1},
    "msi-hg augmented": {"flip": True, "crop": 1, "memory": "fp32"},
    "msi-hg averaged": {"ema": 0.9, "clip": 1.0, "fresh": 0.5, "optimizer": "adam"},
    "msi-hg other bounds": {"bounds": (-0.1, 1.3)},
    "msi-hg lanes": {"lanes": 2},
    "free lanes": {"method": "free", "replays": 2, "lanes": 2},
}


@pytest.mark.parametrize("case", CASES)
def test_a_step_waits_once_and_its_ascent_never(case: str, waits: Waits) -> None:
    """Free takes several steps of the optimiser per batch; copies to the device are asynchronous."""
    values = CASES[case]
    theirs = trainer(values, "cpu")
    expected, _ = train(theirs)
    ours = trainer(values, DEVICE)
    rows, counts = train(ours, waits)
    assert [count.in_ascent for count in counts] == [0] * 4, waits.places
    assert [count.outside for count in counts] == [ours.method.optimizer_steps] * 4
    assert [numbers(row) for row in rows] == [numbers(row) for row in expected]
    check_equal(ours, theirs, tolerance=1e-6 if case == "ibp" else 0)  # ibp: one product for all labels


def test_memory_in_files_is_copied_asynchronously(
    waits: Waits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One copy of perturbations up and one down per step, besides the batch, its labels and numbers."""
    monkeypatch.setattr(torch, "Event", Event)
    theirs = trainer({"memory_files": True}, "cpu", tmp_path / "theirs")
    train(theirs)
    ours = trainer({"memory_files": True}, DEVICE, tmp_path / "ours")
    _, counts = train(ours, waits)
    assert counts == [Counts(in_ascent=0, outside=1, up=4, down=1)] * 4
    for epoch in (1, 2):
        index = torch.arange(80)
        memories = [run.method.memory for run in (ours, theirs)]  # type: ignore[attr-defined]
        a, b = (memory.read(index, epoch) for memory in memories)
        assert torch.equal(a, b)


class Event:
    """An event of the device, which has always happened: its copies are immediate."""

    def __init__(self, device: torch.device) -> None:
        assert device.type == DEVICE

    def record(self) -> None:
        """Do nothing."""

    def synchronize(self) -> None:
        """Do nothing."""


@pytest.mark.usefixtures("waits")
@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("method", ["msi-hg", "natural", "yopo"])
def test_a_loss_that_is_not_finite_does_not_reach_the_weights(method: str, lanes: int) -> None:
    """The weights stay as they were before the step, and the error has the date of the training."""
    run = trainer({"method": method, "lanes": lanes}, DEVICE)
    events = run.events()
    next(events)
    with torch.no_grad():
        next(run.model.parameters()).fill_(float("nan"))
    kept = [value.cpu().clone() for value in run.model.parameters()]
    with pytest.raises(NotFiniteError) as caught:
        next(events)
    assert caught.value.code == "training-diverged"
    now = [value.cpu() for value in run.model.parameters()]
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(now, kept, strict=True))


def test_samples_outside_the_bounds_are_refused_when_the_step_is_read(waits: Waits) -> None:
    """Within a step the device is not waited for; elsewhere the check is immediate."""
    x = torch.full((2, 3), 1.5).to(DEVICE)
    with pytest.raises(InputError) as caught:
        Ball(0.1).around(x)
    assert caught.value.code == "data-outside-bounds"

    def step() -> None:
        with reading_once():
            waits.clear()
            Ball(0.1).around(x)
            assert not waits.kinds

    with pytest.raises(InputError) as caught:
        step()
    assert caught.value.code == "data-outside-bounds"


def test_conditions_are_raised_in_their_order(waits: Waits) -> None:
    """The first one that was given is raised, after one wait."""

    def refuse(name: str) -> None:
        raise InputError("no-samples", name=name)

    yes, no = torch.ones((), dtype=torch.bool).to(DEVICE), torch.zeros((), dtype=torch.bool).to(DEVICE)

    def step() -> None:
        with reading_once():
            refuse_if(no, lambda: refuse("first"))
            refuse_if(yes, lambda: refuse("second"))
            refuse_if(yes, lambda: refuse("third"))

    waits.clear()
    with pytest.raises(InputError) as caught:
        step()
    assert caught.value.values["name"] == "second"
    assert waits.waits(in_ascent=False) == 1


def test_numbers_of_a_log_are_read_when_they_are_looked_at(waits: Waits) -> None:
    """In a loop of the user's own too; each once."""
    logits, y = torch.eye(3)[[0, 1, 1]].to(DEVICE), torch.tensor([0, 1, 2]).to(DEVICE)
    waits.clear()
    done = log(torch.tensor(1.5).to(DEVICE), logits, y, passes=3)
    waits.clear()
    assert isinstance(done, Log)
    assert (done.samples, done.moved) == (3, None)
    assert not waits.kinds
    assert (done.loss, done.accuracy) == (0.5, 2 / 3)
    assert done.predicted.tolist() == [1, 2, 0]
    assert (done.loss, done.accuracy) == (0.5, 2 / 3)
    assert waits.waits(in_ascent=False) == 3


# ---- the memory on a device


@pytest.mark.parametrize("dtype", ["int8", "fp16", "fp32"])
def test_a_memory_on_a_device_holds_what_it_would_in_ram(dtype: str, waits: Waits) -> None:
    """Reads, states, and histograms after epochs in which some rows were written, skipped, and read again."""
    there, here = (PerturbationMemory(20, (2, 3), 0.3, dtype=dtype, rank=1, world_size=2) for _ in range(2))
    draw, own = torch.Generator().manual_seed(0), torch.arange(1, 20, 2)
    for epoch, index in enumerate([own, own[:4], own[2:], own[torch.randperm(10, generator=draw)], own[5:]]):
        if epoch == 1:
            there.to(DEVICE).to(DEVICE)
        delta = torch.rand(len(index), 2, 3, generator=draw).mul_(0.6).sub_(0.3)
        assert torch.equal(there.read(index, epoch).cpu(), here.read(index, epoch))
        waits.clear()
        there.write(index, epoch, delta if epoch < 1 else delta.to(DEVICE))
        here.write(index, epoch, delta)
        saved = there.state(epoch)
        assert all(torch.equal(value, here.state(epoch)[name]) for name, value in saved.items())
        assert there.histogram(epoch + 1, "l2", 5) == here.histogram(epoch + 1, "l2", 5)
    with pytest.raises(InputError) as caught:
        there.read(own[5:], 3)
    assert caught.value.code == "memory-overwritten"
    again = PerturbationMemory(20, (2, 3), 0.3, dtype=dtype, rank=1, world_size=2).to(DEVICE)
    again.load_state(here.state(4))
    assert torch.equal(again.read(own, 5).cpu(), here.read(own, 5))
    again.clear()
    assert not again.read(own, 5).cpu().any()


def test_a_memory_on_a_device_is_read_and_written_without_waiting(waits: Waits) -> None:
    """Within a step, where the check of the values is read with all else."""
    memory, index = PerturbationMemory(20, (2,), 0.3).to(DEVICE), torch.tensor([3, 7])
    delta = torch.full((2, 2), 0.3).to(DEVICE)
    with reading_once():
        waits.clear()
        assert isinstance(memory.read(index, 0), DeviceTensor)
        memory.write(index, 0, delta)
        assert waits.waits(in_ascent=False) == 0
    with pytest.raises(NotFiniteError) as caught, reading_once():
        memory.write(index, 1, delta * float("nan"))
    assert (caught.value.code, caught.value.values["sample"]) == ("memory-not-finite", 3)


# ---- processes


class OtherProcess(Processes):
    """Stands for a second process, which has gradients of both parameters and is asked to stop."""

    def sum(self, vector: Tensor) -> Tensor:
        """Add what the other process sends: gradients of two parameters, which of them it has, flags."""
        return vector + torch.tensor([1.0, 2.0, 1.0, 1.0, 1.0, 0.0, 0.0]).to(vector.device)


@pytest.mark.parametrize("device", ["cpu", DEVICE])
def test_gradients_that_only_another_process_has(device: str, waits: Waits) -> None:
    """A device is not asked which parameters have gradients before all is read; then they are corrected."""
    model = nn.ParameterList([torch.zeros(1), torch.zeros(1)]).to(device)
    a, b = model.parameters()
    lanes = LaneSum(model, [a, b], OtherProcess(rank=0, size=2), lanes=2)
    with reading_once():
        lanes.begin()
        lanes.enter(0.5)
        a.grad = torch.full_like(a, 4.0)
        lanes.add()
        waits.clear()
        lanes.set_gradients()
        assert waits.waits(in_ascent=False) == (1 if device == DEVICE else 0)  # the other process's vector
        assert lanes.confirm_gradients() == (device == "cpu")
    assert a.grad is not None
    assert b.grad is not None
    assert (float(a.grad), float(b.grad)) == (5.0, 2.0)
    assert lanes.flags == [True, False]


# ---- evaluations


WAITS_OF_ATTACKS = [
    *(("natural", 0), ("pgd-20", 7), ("pgd-20-2", 13), ("apgd", 8)),
    *(("pgd-20 l1", 7), ("apgd-ce-20-1 l1", 8), ("apgd-dlr-20 l1", 8)),
    *(("mi-fgsm-20", 7), ("deepfool-8", 10), ("cw-4", 38)),
    *(("fab-t-20", 20), ("fab-20", 6), ("fab-t-20 l2", 20), ("fab-t-20 l1", 20)),
]


@pytest.mark.parametrize(("name", "most"), WAITS_OF_ATTACKS)
def test_an_attack_waits_a_few_times_per_run(
    name: str, most: int, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the steps 1, 2, 4, 8, 16, before each run and at its end; and for what depends on the chunk only."""
    if "fab" in name:  # else the CPU would find its steps in another way, which rounds differently
        monkeypatch.setattr(_hyperplane, "_level", _hyperplane._level_by_sorting)
    model = models.build("preact-resnet8", SHAPE, CLASSES, width=1 / 8, seed=0).eval()
    samples = images(40)
    with torch.no_grad():
        samples = as_samples((samples.x, model(samples.floats()).argmax(1)), classes=list("abcd"))
    balls = {"l1": Ball(1.0, "l1"), "l2": Ball(0.3, "l2")}
    ball = Ball(0.3, "l2") if name == "cw-4" else balls.get(name[-2:], Ball(2 / 255))
    plan = {"apgd": APGD(eps=2 / 255, steps=20)} if name == "apgd" else build_plan(name.split()[0], ball)
    plans = {name: plan}
    (expected,) = run_attacks(model, samples, plans)
    model = model.to(DEVICE)
    heard: list[tuple[int, int, int]] = []
    waits.clear()
    (found,) = run_attacks(model, samples, plans, on_pass=lambda *new: heard.append(new))
    assert 0 < int(expected.broken.sum()) < 40 or name == "natural"
    assert [sum(new[i] for new in heard) for i in range(2)] == [found.passes, found.forwards]
    known = [new[2] for new in heard]
    assert known == sorted(known)
    assert known[-1] <= int(found.broken.sum())
    for field in ("broken", "prediction", "margin"):
        assert torch.equal(getattr(found, field), getattr(expected, field)), field
    constant = 13  # reads of a chunk: its checks, numbers, points, distances and results
    assert waits.waits(in_ascent=True) + waits.waits(in_ascent=False) <= constant + most, waits.places
    assert_passes(found, expected)


def test_draws_of_a_gradient_are_not_waited_for(waits: Waits) -> None:
    model = models.build("preact-resnet8", SHAPE, CLASSES, width=1 / 8, seed=0).eval()
    samples, plans = images(40), {"pgd": build_plan("pgd-8", Ball(2 / 255))}
    expected = run_attacks(model, samples, plans, draws=Draws(eot=3))
    model = model.to(DEVICE)
    counts = []
    for eot in (1, 3):
        waits.clear()
        (found,) = run_attacks(model, samples, plans, draws=Draws(eot=eot))
        counts.append(waits.waits(in_ascent=True) + waits.waits(in_ascent=False))
    assert counts[0] == counts[1]
    assert torch.equal(found.broken, expected[0].broken)


def assert_passes(found: Outcome, expected: Outcome) -> None:
    """Rows that stay for a while after they are broken cost a little."""
    assert expected.passes <= found.passes <= 1.15 * expected.passes
