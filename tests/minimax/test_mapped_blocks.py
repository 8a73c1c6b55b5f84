"""Blocks in a file that is mapped into memory are solved as blocks in RAM, without a copy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sihg.minimax import LinearMap, Problem, SquaredL2, solve
from sihg.minimax.bilinear import BilinearCoupling
from tests.refused import refused

SHAPE = (6, 20, 5)  # blocks, rows, features
SETTINGS: dict[str, Any] = {"sigma": 0.1, "tau": 0.1, "iterations": 50}


def values() -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))


def mapped(kind: str, folder: Path) -> Tensor:
    path = folder / "blocks.bin"
    values().numpy().tofile(path)
    if kind == "torch.from_file":
        return torch.from_file(str(path), size=values().numel(), dtype=torch.float32).view(SHAPE)
    return torch.from_numpy(np.memmap(path, np.float32, "c", shape=SHAPE))


@pytest.mark.parametrize("kind", ["torch.from_file", "np.memmap"])
@pytest.mark.parametrize("as_maps", [False, True])
def test_mapped_blocks_give_the_same_iterates_without_a_copy(kind: str, as_maps: bool, tmp_path: Path) -> None:
    blocks = mapped(kind, tmp_path)
    f, g = SquaredL2(0.1), SquaredL2(1.0, 0.5)
    if as_maps:
        starts = torch.zeros(SHAPE[2]), torch.zeros(SHAPE[:2])
        problem = Problem.bilinear([LinearMap.of(block) for block in blocks], *starts, f=f, g=g)
    else:
        problem = Problem.bilinear(blocks, f=f, g=g)
    coupling = problem.coupling
    assert isinstance(coupling, BilinearCoupling)
    for block, linear in zip(blocks, coupling.maps, strict=True):
        for function in (linear.forward, linear.adjoint):
            assert function.__self__.data_ptr() == block.data_ptr()  # type: ignore[union-attr]
    in_ram = Problem.bilinear(values(), f=f, g=g)
    ours, expected = (solve(p, "ssi-hg", **SETTINGS) for p in (problem, in_ram))
    torch.testing.assert_close(ours.state.inner.w, expected.state.inner.w, rtol=0, atol=1e-6)
    torch.testing.assert_close(ours.state.inner.delta, expected.state.inner.delta, rtol=0, atol=1e-6)
    assert float(expected.state.inner.w.abs().max()) > 1e-2


def test_nan_in_the_file_is_found_when_the_problem_is_built(tmp_path: Path) -> None:
    blocks = mapped("np.memmap", tmp_path)
    blocks[4, 3, 2] = torch.nan
    with refused("coupling-not-finite", block=4):
        Problem.bilinear(blocks)
