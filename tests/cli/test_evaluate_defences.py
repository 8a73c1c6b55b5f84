"""`sihg evaluate` on defences that hide their gradient or are random: a model of the user's own."""

import json
from pathlib import Path

import pytest
from safetensors.torch import save_file

from sihg.cli.main import main
from tests.refused import refused
from tests.robust.planted import healthy

MODEL = """
import torch
from torch import nn


class Quantise(nn.Module):
    def forward(self, x):
        return (15 * x).round() / 15


def smooth(x):
    return x * 1.0


class Ripple(nn.Module):
    def forward(self, x):
        return x + 0.02 * torch.sin(300 * x + 6.28 * torch.rand_like(x))


def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


class Defended(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.defence, self.net = Quantise(), net()

    def forward(self, x):
        return self.net(self.defence(x))


class Random(Defended):
    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.defence = Ripple()
"""


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """The command for the healthy network behind a defence."""
    (tmp_path / "mine.py").write_text(MODEL, encoding="utf-8")
    save_file({f"net.{name}": value for name, value in healthy().state_dict().items()}, tmp_path / "w.safetensors")
    found = ["evaluate", str(tmp_path / "w.safetensors"), "--model", f"{tmp_path / 'mine.py'}:Defended"]
    found += ["--data", "digits", "--eps", "0.2", "--attacks", "pgd-10", "--samples", "100"]
    return [*found, "--out", str(tmp_path / "out")]


def test_bpda_breaks_the_defence(words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*words, "--json"]) == 0
    captured = capsys.readouterr()
    plain = json.loads(captured.out)
    assert "give --bpda defence=identity" in captured.err
    assert plain["bpda"] == {}
    replacements = ["identity", f"{tmp_path / 'mine.py'}:smooth"]
    for replacement in replacements:
        assert main([*words, "--bpda", f"defence={replacement}", "--json"]) == 0
        captured = capsys.readouterr()
        found = json.loads(captured.out)
        assert found["bpda"] == {"defence": replacement}
        assert found["attacks"][0]["accuracy"] < 0.4 < 0.8 < plain["attacks"][0]["accuracy"]
        assert "bpda" not in captured.err.replace(str(tmp_path), "").partition("record: ")[0]  # no advice
    assert len(list((tmp_path / "out").glob("*.json"))) == 3
    assert main([*words, "--bpda", "defence=identity"]) == 0
    assert "gradient of defence: identity" in capsys.readouterr().out.replace("\n", " ")


def test_eot_breaks_the_random_defence(words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = [word.replace("mine.py:Defended", "mine.py:Random") for word in words]
    assert main([*words, "--json"]) == 0
    captured = capsys.readouterr()
    plain = json.loads(captured.out)
    assert "average gradients over draws, --eot 20 (" in captured.err
    assert main([*words, "--eot", "20", "--votes", "5", "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert (plain["eot"], plain["votes"], found["eot"], found["votes"]) == (1, 10, 20, 5)
    row = found["attacks"][0]
    assert row["accuracy"] < 0.5 < 0.7 < plain["attacks"][0]["accuracy"]
    assert row["votes"] == 5
    assert row["worst"] <= row["mean"] <= 1
    assert "--eot" not in captured.err
    assert main([*words, "--eot", "20"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "gradients are means over 20 draws; broken if at least half of 10 draws are wrong" in text
    assert all(heading in text for heading in ("mean %", "worst %"))
    at = words.index("--eps")  # a curve has its own radii
    assert main([*words[:at], *words[at + 2 :], "--eot", "2", "--curve", "0:0.2:2"]) == 0
    assert "(worst)" in capsys.readouterr().err
    assert len(list((tmp_path / "out").glob("*.json"))) == 4


@pytest.mark.parametrize(("flag", "setting"), [("--eot", "eot"), ("--votes", "votes")])
def test_no_draws(words: list[str], flag: str, setting: str) -> None:
    from sihg.cli.evaluate import run
    from sihg.cli.main import build_parser

    with refused("count-range", setting=setting, value=0):
        run(build_parser("evaluate").parse_args([*words, flag, "0"]))


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (["defence"], "bpda-form"),
        (["defence=identity", "defence=identity"], "bpda-twice"),
        (["nothing=identity"], "bpda-module"),
        (["defence=other"], "bpda-replacement"),
        (["defence=none.py:g"], "user-code-import"),
    ],
)
def test_mistakes(words: list[str], given: list[str], code: str) -> None:
    from sihg.cli.evaluate import run
    from sihg.cli.main import build_parser

    args = build_parser("evaluate").parse_args([*words, *(word for text in given for word in ("--bpda", text))])
    with refused(code):
        run(args)
