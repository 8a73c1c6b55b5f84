"""One damaged checkpoint never loses a run: the one before takes its place, with the memory in RAM or in files."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sihg
from sihg.robust.training.events import CheckpointSaved, Event, StepDone
from sihg.robust.training.weights import CheckpointWarning

X, Y = torch.linspace(0, 1, 40 * 9).view(40, 1, 3, 3), torch.arange(40) % 2


def fit(out: Path, **more: Any) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 2))
    settings: dict[str, Any] = {"epochs": 3, "batch_size": 10, "checkpoint_minutes": 0.0, "steps": 1, **more}
    sihg.fit(model, (X, Y), method="msi-hg", eps=0.1, tau=0.05, out=out, **settings)
    return model.state_dict()


@pytest.mark.parametrize("in_files", [False, True])
def test_the_one_before_takes_its_place(tmp_path: Path, *, in_files: bool) -> None:
    copies: list[Path] = []

    def keep_copy(_event: Event) -> None:  # as a kill at each event, also in the middle of the next epoch, leaves it
        if any((tmp_path / "run" / "checkpoints").glob("last-*")):
            copies.append(tmp_path / f"copy-{len(copies)}")
            shutil.copytree(tmp_path / "run", copies[-1])

    wanted = fit(tmp_path / "run", on_event=keep_copy, memory_files=in_files)
    for copy in copies:
        newest = max((copy / "checkpoints").glob("last-*"))
        (newest / "manifest.json").write_bytes((newest / "manifest.json").read_bytes()[:-9])
        if len(list((copy / "checkpoints").glob("*-*"))) == 1:
            continue  # the first checkpoint of all has none before it
        with pytest.warns(CheckpointWarning, match="skipped damaged checkpoint"):
            found = fit(copy, resume=True, memory_files=in_files)
        assert all(torch.equal(found[name], wanted[name]) for name in wanted), copy
    assert len(copies) > 20


def test_a_second_copy_that_is_missing_is_written_before_the_run_goes_on(tmp_path: Path) -> None:
    """A kill may come between the two copies; then the next epoch overwrites what older checkpoints need."""
    copies: list[Path] = []

    def keep_copy(event: Event) -> None:
        if isinstance(event, CheckpointSaved) and event.step == 4:
            shutil.copytree(tmp_path / "run", tmp_path / "killed")
            shutil.rmtree(tmp_path / "killed" / "checkpoints" / "twin-00000004")

    def damage(event: Event) -> None:
        if not copies and isinstance(event, StepDone) and event.step == 6:
            copies.append(tmp_path / "damaged")
            shutil.copytree(tmp_path / "killed", copies[0])
            shutil.rmtree(copies[0] / "checkpoints" / "last-00000004")

    wanted = fit(tmp_path / "run", on_event=keep_copy, memory_files=True, checkpoint_minutes=9.0)
    fit(tmp_path / "killed", on_event=damage, resume=True, memory_files=True, checkpoint_minutes=9.0)
    found = fit(copies[0], resume=True, memory_files=True, checkpoint_minutes=9.0)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_the_second_copy_is_kept_only_where_it_is_needed(tmp_path: Path) -> None:
    saved: list[list[str]] = []

    def look(event: Event) -> None:
        if isinstance(event, CheckpointSaved):
            saved.append(sorted(path.name for path in event.path.parent.iterdir()))

    fit(tmp_path / "files", on_event=look, memory_files=True, checkpoint_minutes=9.0)
    assert saved == [
        ["last-00000000", "twin-00000000"],
        ["last-00000000", "last-00000004", "twin-00000004"],
        ["last-00000004", "last-00000008", "twin-00000008"],
        ["last-00000008", "last-00000012", "twin-00000012"],
    ]
    fit(tmp_path / "ram")
    assert not list((tmp_path / "ram" / "checkpoints").glob("twin-*"))
