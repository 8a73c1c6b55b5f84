"""Methods in a user's own loop on two processes, with DDP and FSDP2, compared with one process in float64."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from tests.robust.methods import two_processes as cases

Weights = dict[str, Tensor]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Weights]]:
    """Return the weights of each case, per process."""
    folder: Path = tmp_path_factory.mktemp("two")
    spawn(cases.work, (str(folder),), nprocs=cases.WORLD)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(cases.WORLD)]


def distance(a: Weights, b: Weights) -> float:
    return max(float((a[key].double() - b[key].double()).abs().max()) for key in b if key.endswith(("weight", "bias")))


@pytest.mark.parametrize("name", [name for name in cases.METHODS if name != "free"])
def test_ddp_takes_the_steps_of_one_process(found: list[dict[str, Weights]], name: str) -> None:
    expected = cases.one_process(name)
    for rank in range(cases.WORLD):
        assert distance(found[rank][f"ddp, {name}"], expected) < 1e-9
    assert distance(cases.build().state_dict(), expected) > 0.01


def test_ddp_with_our_sampler_equals_a_loop_that_knows_no_processes(found: list[dict[str, Weights]]) -> None:
    assert distance(found[0]["ddp, msi-hg"], cases.whole_batches("msi-hg")) < 1e-7


def test_ddp_with_batch_normalisation(found: list[dict[str, Weights]]) -> None:
    assert distance(found[0]["ddp, norm, msi-hg"], cases.one_process("msi-hg", norm=True)) < 1e-9


@pytest.mark.parametrize("name", ["ddp, free", "ddp, norm, trades"])
def test_processes_end_with_the_same_weights(found: list[dict[str, Weights]], name: str) -> None:
    assert distance(found[0][name], found[1][name]) == 0
    assert distance(cases.build(norm="norm" in name).state_dict(), found[0][name]) > 0.01


def test_a_batch_without_the_global_size_counts_as_in_ddp(found: list[dict[str, Weights]]) -> None:
    """Gradients are the mean of both processes' means."""
    assert distance(found[0]["ddp, unsized, msi-hg"], cases.one_process("msi-hg", of_means=True)) < 1e-9
    assert distance(found[0]["ddp, unsized, msi-hg"], found[0]["ddp, msi-hg"]) > 1e-3


@pytest.mark.skipif(not cases.HAS_FSDP2, reason="FSDP2 of this torch does not work on CPUs")
@pytest.mark.parametrize("name", ["msi-hg", "trades", "pgd"])
@pytest.mark.parametrize("parts", [False, True])
def test_fsdp2_takes_the_steps_of_one_process(found: list[dict[str, Weights]], name: str, parts: bool) -> None:
    for rank in range(cases.WORLD):
        assert distance(found[rank][f"fsdp, {parts}, {name}"], cases.one_process(name)) < 1e-9
