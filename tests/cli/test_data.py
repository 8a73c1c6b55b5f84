"""`sihg data` as people use it."""

import argparse
import json
import sys
from pathlib import Path

import pytest

from sihg.cli import data
from sihg.robust.data import OWN_DATA, download
from tests.robust.data.sets import put, small_mnist, write_mnist


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    data.add_parser(parser.add_subparsers(), "")
    args = parser.parse_args(["data", *words])
    return int(args.run(args))


def test_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    write_mnist(tmp_path / "mnist", small_mnist(monkeypatch))
    put(tmp_path / "svhn" / "train_32x32.mat", b"x")
    put(tmp_path / "cifar10" / "cifar-10-batches-bin" / "test_batch.bin", b"x")
    assert run("list", "--json", "--data-dir", str(tmp_path)) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert {name: row["state"] for name, row in rows.items()} == {
        "digits": "bundled",
        "mnist": "present",
        "fashion-mnist": "absent",
        "svhn": "partial",
        "cifar10": "damaged",
    }
    assert rows["svhn"]["missing"] == ["test_32x32.mat"]
    assert rows["mnist"]["path"] == str(tmp_path / "mnist")
    assert (rows["digits"]["train"], rows["digits"]["shape"]) == (1400, [1, 8, 8])
    monkeypatch.setenv("SIHG_DATA", str(tmp_path))
    assert run("list") == 0
    table = capsys.readouterr().out
    assert "svhn           3x32x32           10   73257   26032  partial " in table
    assert "(without test_32x32.mat)" in table
    assert all(f"{kind}:PATH" in table for kind in OWN_DATA)


def test_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    write_mnist(tmp_path / "mnist", small_mnist(monkeypatch))
    words = ["check", "mnist", "--data-dir", str(tmp_path)]
    assert run(*words) == 0
    out = capsys.readouterr().out
    assert out.count("ok       ") == out.count("(the published values in another packing)") == 4
    path = tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-3])
    assert run(*words) == 2
    line = capsys.readouterr().out.splitlines()[3]
    assert line.startswith(f"damaged  {path} is damaged (gzip: ")
    assert "md5 expected ec29112dd5afa0611ce80d1b7f02629c, found " in line
    path.unlink()
    assert run(*words) == 2
    assert "missing  t10k-labels-idx1-ubyte" in capsys.readouterr().out
    assert run("check", "digits") == 0
    assert capsys.readouterr().out.startswith("ok       ")


def test_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []

    def fake(name: str, data_dir: Path, progress: download.Progress) -> list[Path]:
        said.append(capsys.readouterr().err)
        progress("a.gz", 500_000, 1_000_000)
        progress("a.gz", 1_000_000, 1_000_000)
        return [data_dir / name] if name == "svhn" else []

    monkeypatch.setattr(download, "fetch", fake)
    assert run("get", "svhn", "--data-dir", str(tmp_path)) == 0
    captured = capsys.readouterr()
    assert "non-commercial use only" in said[0]
    assert captured.out == f"{tmp_path / 'svhn'}\n"
    assert captured.err == "a.gz: 1.0 of 1.0 MB\n"
    assert run("get", "mnist") == 0
    assert capsys.readouterr().out == "mnist is already there\n"
    assert said[1] == ""
    assert run("get", "digits") == 0
    assert "comes with the package" in capsys.readouterr().out


def test_the_parser_needs_no_torch() -> None:
    import subprocess

    code = "import sihg.cli.data, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
