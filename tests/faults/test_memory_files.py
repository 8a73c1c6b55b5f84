"""Damage the memory files of an interrupted run: a resume is refused, or ends with bit by bit the same weights."""

import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sihg
from sihg.errors import SihgError
from sihg.robust.training.events import CheckpointSaved, Event, OnEvent, StepDone
from tests.refused import refused

N, SHAPE, CLASSES = 40, (1, 3, 3), 2  # nine values: a row has three bytes of padding
STEPS, EPOCHS = 5, 6  # five batches of eight per epoch
VALUES, PADDING, SAMPLE, EPOCH, CHECKSUM = range(9), range(9, 12), range(12, 16), range(16, 20), range(20, 24)
ROW_BYTES = 24
GENERATIONS = ("generation0-0000.bin", "generation1-0000.bin")

Damage = Callable[[Path], None]  # of the folder RUN/memory


class KilledError(Exception):
    """Stands for a kill: nobody catches it, nothing is tidied up."""


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def data() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    return torch.rand(N, *SHAPE, generator=draw), torch.randint(CLASSES, (N,), generator=draw)


def train(path: Path, on_event: OnEvent | None = None, **options: Any) -> list[bytes]:
    """Train, and return the weights."""
    usual = {"eps": 0.2, "steps": 1, "lr": 0.1, "epochs": EPOCHS, "batch_size": N // STEPS, "memory_files": True}
    trained = model()
    sihg.fit(trained, data(), out=path, on_event=on_event, **{**usual, "checkpoint_minutes": 60, **options})
    return [tensor.numpy().tobytes() for tensor in trained.state_dict().values()]


@dataclass(frozen=True)
class Moment:
    """When a run ends: on request, with a checkpoint, or by a kill, with rows written after the last checkpoint."""

    step: int
    kill: bool
    epoch: int  # of the last checkpoint
    written: int  # how many samples this epoch had written at the checkpoint


MOMENTS = {
    "middle": Moment(step=17, kill=False, epoch=3, written=16),
    "end": Moment(step=20, kill=False, epoch=4, written=0),
    "killed": Moment(step=18, kill=True, epoch=3, written=0),
    "killed in the first epoch": Moment(step=2, kill=True, epoch=0, written=0),
}


def interrupt(moment: Moment) -> OnEvent:
    def on_event(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == moment.step:
            if moment.kill:
                raise KilledError
            signal.raise_signal(signal.SIGINT)

    return on_event


def interrupted(path: Path, moment: Moment, **options: Any) -> None:
    try:
        train(path, interrupt(moment), **options)
        assert not moment.kill
    except KilledError:
        assert moment.kill


class Runs:
    """The interrupted runs, another run with the same data at the same moments, and the memory after each epoch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.after: dict[int, list[bytes]] = {}  # the generations, by the number of complete epochs
        self.weights = train(folder / "whole", self._keep_generations)
        for name, moment in MOMENTS.items():
            interrupted(folder / name, moment)
            interrupted(folder / f"{name}, other seed", moment, seed=1)
            interrupted(folder / f"{name}, same seed", moment)

    def _keep_generations(self, event: Event) -> None:
        if isinstance(event, CheckpointSaved):
            memory = self.folder / "whole" / "memory"
            self.after[event.step // STEPS] = [(memory / name).read_bytes() for name in GENERATIONS]

    def resume(self, name: str, damage: Damage) -> str:
        """Damage a copy of a run and resume it; return the code of the error, or whether the weights are the same."""
        copy = self.folder / "copy"
        shutil.copytree(self.folder / name, copy)
        try:
            damage(copy / "memory")
            before = content(copy / "memory")
            code = self._resume(copy)
            assert "weights" in code or content(copy / "memory") == before, "an error comes before any change"
            return code
        finally:
            shutil.rmtree(copy)

    def _resume(self, path: Path) -> str:
        try:
            return "same weights" if train(path, resume=True) == self.weights else "OTHER WEIGHTS"
        except SihgError as error:
            return "advises to delete files" if "delete" in str(error) else error.code


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _handle: None)  # slow, and no test here loses power
        yield Runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(autouse=True)
def _a_quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _handle: None)


# ---- damage


def rows_of(file: Path) -> Any:
    """Return the rows of a file, to be changed in place."""
    return np.memmap(file, np.uint8, "r+", shape=(N, ROW_BYTES))


def zero_generation(generation: int) -> Damage:
    return lambda memory: rows_of(memory / GENERATIONS[generation]).fill(0)


def zero_row(generation: int, sample: int) -> Damage:
    return lambda memory: rows_of(memory / GENERATIONS[generation])[sample].fill(0)


def put_generation(generation: int, data: bytes) -> Damage:
    def damage(memory: Path) -> None:
        (memory / GENERATIONS[generation]).write_bytes(data)

    return damage


def put_rows(generation: int, data: bytes, samples: list[int]) -> Damage:
    def damage(memory: Path) -> None:
        old = np.frombuffer(data, np.uint8).reshape(N, ROW_BYTES)
        rows_of(memory / GENERATIONS[generation])[samples] = old[samples]

    return damage


def flip(file: str, place: int, bit: int) -> Damage:
    def damage(memory: Path) -> None:
        whole = bytearray((memory / file).read_bytes())
        whole[place] ^= 1 << bit
        (memory / file).write_bytes(whole)

    return damage


def remove(name: str) -> Damage:
    return lambda memory: (memory / name).unlink()


def cut(name: str, size: int) -> Damage:
    def damage(memory: Path) -> None:
        whole = (memory / name).read_bytes()
        (memory / name).write_bytes(whole[:size] if size < len(whole) else whole + bytes(size - len(whole)))

    return damage


def replace_by(other: Path, names: tuple[str, ...]) -> Damage:
    def damage(memory: Path) -> None:
        for name in names:
            shutil.copy(other / "memory" / name, memory / name)

    return damage


def empty(memory: Path) -> None:
    shutil.rmtree(memory)
    memory.mkdir()


def link_to_a_copy(memory: Path) -> None:
    memory.rename(memory.with_name("moved"))
    memory.symlink_to("moved")


def nothing(_memory: Path) -> None:
    pass


def samples_of(runs: Runs, name: str, generation: int, epoch: int) -> list[int]:
    """Return the samples whose row in a file is of this epoch."""
    tags = rows_of(runs.folder / name / "memory" / GENERATIONS[generation])[:, EPOCH.start : EPOCH.stop]
    return [int(i) for i in np.flatnonzero(tags.copy().view("<u4")[:, 0] == epoch + 1)]


def damages(runs: Runs, name: str) -> Iterator[tuple[str, Damage]]:
    """Yield damages that a resume must refuse."""
    moment = MOMENTS[name]
    before, now = (moment.epoch - 1) % 2, moment.epoch % 2  # generations
    written = samples_of(runs, name, now, moment.epoch) if moment.written else []
    old = [samples_of(runs, name, before, moment.epoch - 1)[i] for i in (0, 7, 39)]
    yield "generation before zeroed", zero_generation(before)
    yield "generation now zeroed", zero_generation(now)
    for sample in (*old, *written[:2]):
        yield f"row {sample} zeroed", zero_row(now if sample in written[:2] else before, sample)
    stale = runs.after[moment.epoch - 2]  # complete epochs: its newest is of epoch - 3
    other_ids = {  # the whole run has another id: also put its newest generation
        "two epochs old": stale[before],
        "of the whole run": runs.after[moment.epoch][before],
    }
    for what, data in other_ids.items():
        yield f"generation before {what}", put_generation(before, data)
        yield f"three rows {what}", put_rows(before, data, old)
    for which in ("other seed", "same seed"):
        other = runs.folder / f"{name}, {which}"
        for names in (
            (GENERATIONS[0],),
            (GENERATIONS[1],),
            GENERATIONS,
            (*GENERATIONS, "memory.json"),
            ("memory.json",),
        ):
            yield f"{names} of a run with the {which}", replace_by(other, names)
    for region in (VALUES, PADDING, SAMPLE, EPOCH, CHECKSUM):
        for byte in (region[0], region[-1]):
            for bit in (0, 1, 7):
                yield f"bit {bit} of byte {byte} flipped", flip(GENERATIONS[before], old[1] * ROW_BYTES + byte, bit)
                if written:
                    place = written[0] * ROW_BYTES + byte
                    yield f"bit {bit} of byte {byte} flipped, written row", flip(GENERATIONS[now], place, bit)
    yield "folder removed", shutil.rmtree
    yield "folder emptied", empty
    yield "folder linked", link_to_a_copy
    yield "file linked", lambda memory: os.link(memory / GENERATIONS[before], memory.parent / "second name")
    for file in (*GENERATIONS, "memory.json"):
        yield f"{file} removed", remove(file)
    for file in GENERATIONS:
        for size in (0, N * ROW_BYTES - 1, N * ROW_BYTES + 1):
            yield f"{file} of {size} bytes", cut(file, size)


@pytest.mark.parametrize("name", ["middle", "end"])
def test_damage_is_refused_before_training(runs: Runs, name: str) -> None:
    cases = dict(damages(runs, name))
    outcomes = {what: runs.resume(name, damage) for what, damage in cases.items()}
    silent = [what for what, outcome in outcomes.items() if "weights" in outcome]
    assert silent == []
    assert len(outcomes) >= 60
    assert outcomes.pop("folder linked") == "linked-folder"  # found when the run is opened
    found = Counter(outcomes.values())
    assert found["memory-row-damaged"] > 30
    assert found.keys() == {
        "memory-row-damaged",
        "memory-files-other",
        "memory-folder-missing",
        "memory-file-link",
        "memory-file-size",
        "memory-file-unreadable",
    }


def test_generations_of_this_very_run_two_epochs_old(runs: Runs, tmp_path: Path) -> None:
    kept: dict[int, list[bytes]] = {}
    path = tmp_path / "run"

    def keep(event: Event) -> None:
        interrupt(MOMENTS["end"])(event)
        if isinstance(event, CheckpointSaved):
            kept[event.step // STEPS] = [(path / "memory" / name).read_bytes() for name in GENERATIONS]

    train(path, keep)
    newest, older = kept[4], kept[2]
    for what, damage in {
        "both": [older[0], older[1]],  # epochs 0 and 1 in the place of 2 and 3
        "newest": [newest[0], older[1]],
        "oldest": [older[0], newest[1]],
        "swapped": newest[::-1],
    }.items():
        copy = tmp_path / what
        shutil.copytree(path, copy)
        for generation in range(2):
            put_generation(generation, damage[generation])(copy / "memory")
        with refused("memory-row-damaged", damage="stale"):
            train(copy, resume=True)
    copy = tmp_path / "rows"
    shutil.copytree(path, copy)
    put_rows(1, older[1], [3, 17, 30])(copy / "memory")
    with refused("memory-row-damaged", sample=3, what="holds epoch 1 instead of epoch 3"):
        train(copy, resume=True)
    assert train(path, resume=True) == runs.weights


@pytest.mark.parametrize("name", MOMENTS)
def test_undamaged_files_give_the_same_weights(runs: Runs, name: str) -> None:
    assert runs.resume(name, nothing) == "same weights"
    assert runs.resume(f"{name}, same seed", nothing) == "same weights"


def test_every_byte_of_the_manifest_counts(runs: Runs) -> None:
    whole = (runs.folder / "end" / "memory" / "memory.json").read_bytes()
    outcomes = Counter(runs.resume("end", flip("memory.json", i, i % 8)) for i in range(len(whole)))
    assert outcomes == {"memory-seal": len(whole)}


@pytest.mark.parametrize("name", ["middle", "killed", "killed in the first epoch"])
def test_rows_that_the_epoch_writes_again_may_be_torn(runs: Runs, name: str) -> None:
    """A kill or a power cut may stop the writing of any row after the checkpoint, at any byte."""
    moment = MOMENTS[name]
    file = GENERATIONS[moment.epoch % 2]
    written = samples_of(runs, name, moment.epoch % 2, moment.epoch)
    later = written[0] if moment.kill else next(i for i in range(N) if i not in written)
    for first, last in ((0, 4), (3, 12), (0, 16), (0, 9)):

        def tear(memory: Path, first: int = first, last: int = last) -> None:
            rows_of(memory / file)[later, first:last] ^= 255

        assert runs.resume(name, tear) == "same weights"


def test_files_of_a_run_without_a_checkpoint_start_at_zero(runs: Runs, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(runs.folder / "killed in the first epoch", path)
    shutil.rmtree(path / "checkpoints")
    assert any(any(data) for name, data in content(path / "memory").items() if name in GENERATIONS)
    assert train(path, resume=True) == runs.weights


def test_a_failed_resume_leaves_files_whose_checkpoints_are_gone_for_now(runs: Runs, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(runs.folder / "end", path)
    (path / "checkpoints").rename(tmp_path / "gone")
    before = content(path / "memory")
    with pytest.raises(SihgError):
        train(path, resume=True)
    assert content(path / "memory") == before
    (tmp_path / "gone").rename(path / "checkpoints")
    assert train(path, resume=True) == runs.weights
