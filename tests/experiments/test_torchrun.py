"""Processes of torchrun: which cells are whose, and what the process of a cell gets to see."""

from pathlib import Path

import pytest
import torch

from sihg.core.processes import Processes
from sihg.experiments.grid_run import GridRun, build_grid
from sihg.experiments.torchrun import environment_of_a_cell, joined_processes
from tests.refused import refused


def test_without_torchrun_there_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for variables in ({}, {"WORLD_SIZE": "4"}, {"RANK": "0", "WORLD_SIZE": "1"}):  # of Slurm, too
        for name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with joined_processes() as processes:
            assert (processes.is_first, processes.size, processes.gather("a")) == (True, 1, ["a"])


def test_the_process_of_a_cell_is_no_part_of_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "SIHG_DATA"):
        monkeypatch.setenv(name, "1")
    found = environment_of_a_cell()
    assert found["SIHG_DATA"] == "1"
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"} & found.keys()


@pytest.mark.parametrize(
    ("visible", "rank", "expected"),
    [(None, 1, "1"), (None, 5, "1"), ("4,6,7,8", 2, "7"), ("4,6", 3, "6")],
)
def test_each_process_has_a_gpu(visible: str | None, rank: int, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 4 if visible is None else len(visible.split(","))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setenv("RANK", "9")
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    assert environment_of_a_cell()["CUDA_VISIBLE_DEVICES"] == expected


def test_slurm_jobs_are_not_submitted_by_several_processes(tmp_path: Path) -> None:
    with refused("launcher-in-torchrun", size=2):
        GridRun(build_grid("digits", out=tmp_path / "g"), launcher="slurm", processes=Processes(0, 2))
