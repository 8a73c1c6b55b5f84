"""The README's Python runs as it stands, and so do the examples."""

import re
import runpy
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import nn

from sihg.cli.main import main
from sihg.robust.models import Threshold

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS, ids=range(len(BLOCKS)))
def test_readme_code_runs(code: str) -> None:
    exec(compile(code, "README.md", "exec"), {})


def test_readme_has_an_example_for_each_part() -> None:
    assert len(BLOCKS) >= 2


def test_links_of_the_readme_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / "README.md").read_text(encoding="utf-8")):
        assert (ROOT / target).exists(), target


def test_robust_logistic_example(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "robust_logistic.py"), run_name="__main__")
    assert "ssi-hg" in capsys.readouterr().out


def test_denoise_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["denoise.py", str(tmp_path / "out.png")])
    runpy.run_path(str(ROOT / "examples" / "denoise.py"), run_name="__main__")
    assert (tmp_path / "out.png").stat().st_size > 1000


def test_robust_network_example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["robust_network.py", "--iterations", "20"])
    names = runpy.run_path(str(ROOT / "examples" / "robust_network.py"), run_name="__main__")
    norms = [float(norm) for norm in re.findall(r"K +(?:0|10|20) +least \|F\|\^2 (\S+)", capsys.readouterr().out)]
    assert len(norms) == 6  # three for each theta
    assert norms[0] == norms[3]
    for start, early, late in (norms[:3], norms[3:]):
        assert start > 1.2 * early > 1.4 * late
    assert norms[2] != norms[5]
    assert names["rate"]([(k, 3 / k**1.5) for k in range(1, 200)]) == pytest.approx(1.5)


def test_adaptive_attack_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["--preset", "digits", "--model", "threshold-cnn", "--width", "0.5", "--epochs", "2", "--samples", "300"]
    assert main(["train", *run, "--out", str(tmp_path / "run")]) == 0
    monkeypatch.setattr(
        "sys.argv", ["adaptive_attack.py", str(tmp_path / "run"), "--attacks", "natural", "--samples", "60"]
    )
    names = runpy.run_path(str(ROOT / "examples" / "adaptive_attack.py"), run_name="__main__")
    found = {
        name: float(left)
        for name, left in re.findall(r"^(natural|on the ramp) +(\S+)", capsys.readouterr().out, re.MULTILINE)
    }
    assert found["on the ramp"] < found["natural"]
    for wrong, why in ((["--attacks", "pdg-20"], "unknown attack 'pdg-20'"), (["--samples", "0"], "samples")):
        monkeypatch.setattr("sys.argv", ["adaptive_attack.py", str(tmp_path / "run"), *wrong])
        with pytest.raises(SystemExit) as caught:
            names["main"]()
        assert caught.value.code == 2
        assert why in capsys.readouterr().err
    torch.manual_seed(0)
    model = nn.Sequential(OrderedDict(stem=Threshold(), body=nn.Sequential(nn.Flatten(), nn.Linear(9, 3))))
    x, y = torch.rand(40, 1, 3, 3), torch.arange(40) % 3
    moved = names["on_the_ramp"](model, 0.25)(x, y)
    low, high = Threshold().passed((x - 0.25).clamp(min=0), (x + 0.25).clamp(max=1))
    assert bool((moved >= low).all())
    assert bool((moved <= high).all())
    weight = model.body[1].weight  # type: ignore[union-attr, index]
    corners = torch.where(weight[(y + 1) % 3] > weight[y], 0.25, -0.25).view_as(x)
    worst = model((x + corners).clamp(0, 1))
    lost = (worst.gather(1, ((y + 1) % 3)[:, None]) > worst.gather(1, y[:, None])).flatten()  # a linear matter
    assert int((lost & (model(x).argmax(1) == y)).sum()) >= 5
    assert bool((model(moved).argmax(1) != y)[lost].all())
