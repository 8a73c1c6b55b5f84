"""What a checkpoint promises: the best weights by robust accuracy, and mapped files on the disk before its manifest."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sihg.robust.training import trainer as trainer_module
from sihg.store import checkpoint as checkpoint_module
from tests.robust.small import STEPS, settings
from tests.robust.training.trainers import trainer


@pytest.mark.parametrize(
    ("accuracies", "best"),
    [
        ([(0.9, 0.3), (0.5, 0.4), (0.95, 0.35)], 2),  # robust accuracy decides
        ([(0.8, 0.4), (0.9, 0.4), (0.85, 0.4)], 2),  # natural accuracy breaks ties
        ([(0.8, 0.4), (0.8, 0.4), (0.8, 0.4)], 1),  # the first of equals
    ],
)
def test_the_best_checkpoint_is_chosen_by_robust_accuracy_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accuracies: list[tuple[float, float]], best: int
) -> None:
    found = iter(accuracies)
    outcomes = lambda *_args, **_options: [SimpleNamespace(accuracy=share) for share in next(found)]  # noqa: E731
    monkeypatch.setattr(trainer_module, "run_attacks", outcomes)
    run = trainer(settings(method="natural", epochs=3, validation=20), tmp_path)
    trained = run.run()
    assert trained.best is not None
    assert trained.best.epoch == best
    steps = run.prepared.steps
    assert [p.name for p in (tmp_path / "checkpoints").glob("best-*")] == [f"best-{best * steps:08d}"]


def test_mapped_files_are_flushed_before_the_manifest_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    flush, write, save = np.memmap.flush, checkpoint_module._write_durably, checkpoint_module.write_checkpoint

    def spy_on_flush(chunk: Any) -> None:
        calls.append(Path(str(chunk.filename)).name)
        flush(chunk)

    def spy_on_write(path: Path, *rest: Any) -> Any:
        calls.append(path.name)
        return write(path, *rest)

    def spy_on_save(folder: Path, name: str, *rest: Any, **options: Any) -> Path:
        calls.append(name)
        return save(folder, name, *rest, **options)

    monkeypatch.setattr(np.memmap, "flush", spy_on_flush)
    monkeypatch.setattr(checkpoint_module, "_write_durably", spy_on_write)
    monkeypatch.setattr("sihg.robust.training.state.write_checkpoint", spy_on_save)
    trainer(settings(steps=1, epochs=2, memory_files=True, checkpoint_minutes=0), tmp_path).run()
    maps = {"generation0-0000.bin", "generation1-0000.bin"}
    saved = [number for number, call in enumerate(calls) if call.startswith("last-")]
    assert len(saved) > 4
    twins = [call for call in calls if call.startswith("twin-")]
    assert twins == [f"twin-{step:08d}" for step in (0, STEPS, 2 * STEPS)]  # at the ends of epochs
    written = [call for call in calls if "-" in call and call not in maps]
    assert all(written[written.index(twin) - 1] == twin.replace("twin", "last") for twin in twins)
    for before, number in zip([-1, *saved], saved, strict=False):
        assert maps <= set(calls[before + 1 : number])  # since the checkpoint before
        assert "manifest.json" in calls[number:]
