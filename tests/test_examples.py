"""The examples run, and the whole method in one file takes the steps of the library."""

import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sihg.core.hybrid import HybridGradient
from sihg.robust.data.batches import batches
from sihg.robust.memory import PerturbationMemory
from sihg.robust.methods import MSIHG
from sihg.user_code import load_callable

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def example(name: str, attribute: str = "main") -> Callable[..., Any]:
    return load_callable("example", f"{EXAMPLES / name}:{attribute}")


def test_the_method_in_one_file_is_the_librarys() -> None:
    """Two epochs with the same noise; the library's memory rounds to float32, so the second is less exact."""
    plain_class = example("msi_hg_in_60_lines.py", "MSIHG")
    settings = sys.modules[plain_class.__module__]
    eps, lr, momentum = settings.EPS, settings.LR, settings.MOMENTUM
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(24, 1, 4, 4, generator=draw, dtype=torch.float64)
    y = torch.randint(3, (24,), generator=draw)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 3)).double()
    twin = deepcopy(model)
    plain = plain_class(twin, x)
    memory = PerturbationMemory(24, (1, 4, 4), eps, dtype="fp32")
    method = MSIHG(eps=eps, tau=settings.TAU, steps=settings.STEPS, memory=memory)
    optimizer = HybridGradient(torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum), settings.THETA)
    before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    for batch in batches((x, y), size=8, epochs=2, seed=3):
        noise = 2 * torch.rand(batch.x.shape, generator=batch.draw("start"), dtype=batch.x.dtype) - 1
        method.step(model, batch, optimizer)
        plain.step(batch.x, batch.y, batch.index, noise)
        atol = 1e-12 if batch.epoch == 0 else 1e-6
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)
        stored = memory.read(batch.index, batch.epoch + 1).double()
        torch.testing.assert_close(stored, plain.memory[batch.index], rtol=0, atol=1e-6)
    assert float((nn.utils.parameters_to_vector(model.parameters()).detach() - before).abs().max()) > 0.01


def test_the_method_in_one_file_has_at_most_60_lines_of_code() -> None:
    lines = (EXAMPLES / "msi_hg_in_60_lines.py").read_text(encoding="utf-8").splitlines()
    code = [line for line in lines[4:] if line.strip() and not line.strip().startswith(("#", '"""'))]
    assert len(code) <= 60


def test_the_method_in_one_file_learns(capsys: pytest.CaptureFixture[str]) -> None:
    with torch.random.fork_rng():
        natural, robust = example("msi_hg_in_60_lines.py")(epochs=4)
    assert natural > 0.4
    assert robust > 0.1
    assert capsys.readouterr().out.count("robust accuracy") == 4


def test_denoising(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example("denoise.py")(str(tmp_path / "denoised.png"))
    assert f"written: {tmp_path}" in capsys.readouterr().out
    assert (tmp_path / "denoised.png").stat().st_size > 0


def test_robust_logistic_regression(capsys: pytest.CaptureFixture[str]) -> None:
    example("robust_logistic.py")()
    apart = {line.split()[0]: float(line.split()[-4]) for line in capsys.readouterr().out.splitlines()}
    assert apart["ssi-hg"] < 1e-3
