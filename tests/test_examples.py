"""The examples run, and the whole method in one file takes the steps of the library."""

import os
import re
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sihg.cli.main import main as sihg
from sihg.core.hybrid import HybridGradient
from sihg.robust.data.batches import batches
from sihg.robust.memory import PerturbationMemory
from sihg.robust.methods import MSIHG
from sihg.robust.models import Threshold
from sihg.user_code import load_callable

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def example(name: str, attribute: str = "main") -> Callable[..., Any]:
    return load_callable("example", f"{EXAMPLES / name}:{attribute}")


def test_the_method_in_one_file_equals_the_library() -> None:
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
        noise = 2 * batch.uniform("start") - 1
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
    assert (tmp_path / "denoised.png").stat().st_size > 1000


def test_robust_logistic_regression(capsys: pytest.CaptureFixture[str]) -> None:
    example("robust_logistic.py")()
    distances = {line.split()[0]: float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()}
    assert distances["ssi-hg"] < 1e-3


def test_robust_network(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["robust_network.py", "--iterations", "20"])
    example("robust_network.py")()
    norms = [float(norm) for norm in re.findall(r"K +(?:0|10|20) +smallest \|F\|\^2 (\S+)", capsys.readouterr().out)]
    assert len(norms) == 6  # three for each theta
    assert norms[0] == norms[3]
    for start, early, late in (norms[:3], norms[3:]):
        assert start > 1.2 * early > 1.4 * late
    assert norms[2] != norms[5]


def test_robust_network_fits_a_rate() -> None:
    fit_rate = example("robust_network.py", "fit_rate")
    assert fit_rate([(k, 3 / k**1.5) for k in range(1, 200)]) == pytest.approx(1.5)


def test_adaptive_attack_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["--preset", "digits", "--model", "threshold-cnn", "--width", "0.5", "--epochs", "2", "--samples", "300"]
    assert sihg(["train", *run, "--out", str(tmp_path / "run")]) == 0
    main = example("adaptive_attack.py")
    monkeypatch.setattr(
        "sys.argv", ["adaptive_attack.py", str(tmp_path / "run"), "--attacks", "natural", "--samples", "60"]
    )
    main()
    rows = re.findall(r"^(natural|on the ramp) +(\S+)", capsys.readouterr().out, re.MULTILINE)
    accuracy = {name: float(percent) for name, percent in rows}
    assert accuracy["on the ramp"] < accuracy["natural"]
    for wrong, message in ((["--attacks", "pdg-20"], "unknown attack 'pdg-20'"), (["--samples", "0"], "samples")):
        monkeypatch.setattr("sys.argv", ["adaptive_attack.py", str(tmp_path / "run"), *wrong])
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code == 2
        assert message in capsys.readouterr().err


def test_adaptive_attack_breaks_a_linear_model_behind_a_threshold() -> None:
    """The corners of the ball show which samples can be broken; the attack breaks all of them."""
    torch.manual_seed(0)
    model = nn.Sequential(OrderedDict(stem=Threshold(), body=nn.Sequential(nn.Flatten(), nn.Linear(9, 3))))
    x, y = torch.rand(40, 1, 3, 3), torch.arange(40) % 3
    points = example("adaptive_attack.py", "make_ramp_attack")(model, 0.25)(x, y)
    low, high = Threshold().passed((x - 0.25).clamp(min=0), (x + 0.25).clamp(max=1))
    assert bool((points >= low).all())
    assert bool((points <= high).all())
    weight = model.body[1].weight  # type: ignore[union-attr, index]
    corners = torch.where(weight[(y + 1) % 3] > weight[y], 0.25, -0.25).view_as(x)
    worst = model((x + corners).clamp(0, 1))
    breakable = (worst.gather(1, ((y + 1) % 3)[:, None]) > worst.gather(1, y[:, None])).flatten()
    assert int((breakable & (model(x).argmax(1) == y)).sum()) >= 5
    assert bool((model(points).argmax(1) != y)[breakable].all())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp.py", "fsdp2.py", "accelerate_loop.py"])
def test_loops_on_two_processes_find_every_perturbation(name: str) -> None:
    if name == "accelerate_loop.py":
        pytest.importorskip("accelerate", reason="accelerate is not installed")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(EXAMPLES / name)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    # Threads of gloo that FSDP2's mesh keeps can abort Python's exit on a busy machine, after the work is done.
    assert done.returncode == 0 or "terminate called without an active exception" in done.stderr, done.stderr
    found = re.findall(r"perturbations found: (\S+)%, accuracy: (\S+)%", done.stdout)
    assert len(found) == 1  # from one process
    assert float(found[0][0]) == 100
    assert float(found[0][1]) > 70
