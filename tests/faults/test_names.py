"""Names that a terminal, a table, a page or a file system could obey: they are shown as they are, or refused."""

import csv
import io
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from sihg.cli import terminal
from sihg.cli.main import main
from sihg.cli.terminal import Bar, format_table, printable
from sihg.parse import MAX_NAME_BYTES, expand_home, file_name
from sihg.robust.data.locations import data_folder
from sihg.store.files import from_toml
from tests.refused import refused

NOT_TEXT = os.fsdecode(b"\xff\xfe")
NAMES = {
    "line-separator": "a\u2028b",
    "next-line": "a\x85b",
    "newline": "a\nb",
    "return": "a\rb",
    "clear-screen": "\x1b[2J\x1b[31mred",
    "eight-bit-escape": "\x9b31mred",
    "bell": "a\x07\x08\x7f",
    "markup": "[/b]",
    "open-markup": "[red]",
    "emoji-code": ":smile:",
    "formula": "=cmd|'C calc'!A0",
    "flag": "-rf",
    "spaces": "  a  b  ",
    "quotes": "'a\"b`c`$(d)",
    "mathtext": "$x$",
    "percent": "%s%n",
    "braces": "{}{0.__class__}",
    "script": "<script>alert(1)<",
    "reversed": "\u202egnp.exe",
    "home": "~nobody",
    "underscore": "_x",
    "long": "\N{GRINNING FACE}" * 60,
    "not-text": NOT_TEXT,
}
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
TINY = (
    *("--method", "natural", "--eps", "0.1", "--samples", "40", "--epochs", "1", "--validation", "0"),
    *("--batch-size", "20", "--width", "0.2"),
)


class Command:
    """Runs `sihg` here, and checks what it prints."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *words: object, code: int = 0) -> str:
        self.capsys.readouterr()
        assert main([str(word) for word in words]) == code, self.capsys.readouterr().err
        output = self.capsys.readouterr()
        assert not RAW.search(output.out + output.err)
        assert "Traceback" not in output.err
        return output.out if code == 0 else output.err


@pytest.fixture
def sihg(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def write_data(path: Path) -> Path:
    draw = np.random.default_rng(0)
    x, y = draw.random((60, 1, 8, 8), dtype=np.float32), np.arange(60) % 3
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, x=x[:40], y=y[:40], x_test=x[40:], y_test=y[40:])
    return path


@pytest.mark.parametrize("kind", NAMES)
def test_every_command(kind: str, tmp_path: Path, sihg: Command) -> None:
    run = tmp_path / "runs" / NAMES[kind]
    data = (
        "digits" if kind == "not-text" else f"npz:{write_data(tmp_path / 'data' / NAMES[kind] / 'own.npz').resolve()}"
    )
    trained = json.loads(sihg("train", "--data", data, *TINY, "--out", run, "--json"))
    assert trained["run"] == str(run)
    assert trained["data"] == from_toml(run / "config.toml")["data"] == data
    sihg("resume", run)
    assert json.loads(sihg("evaluate", run, "--attacks", "natural", "--json"))["attacks"][0]["attack"] == "natural"
    sihg("evaluate", run, "--attacks", "natural", "--out", tmp_path / "records" / NAMES[kind])
    compared = json.loads(sihg("compare", run, "--json"))
    assert [row["folder"] for row in compared["runs"]] == [str(run)]
    sihg("compare", run)


def test_names_that_no_file_can_have(tmp_path: Path, sihg: Command) -> None:
    for name in ("\N{GRINNING FACE}" * 80, "a" * 300, "a\0b"):
        sihg("train", *TINY, "--data", "digits", "--out", tmp_path / name, code=2)
        sihg("resume", tmp_path / name, code=2)
        sihg("evaluate", tmp_path / name, code=2)
        sihg("compare", tmp_path / name, "--json", code=2)
        sihg("report", tmp_path / name, code=2)
    sihg(
        "train", *TINY, "--data", f"npz:{write_data(tmp_path / NOT_TEXT / 'data.npz')}", "--out", tmp_path / "r", code=2
    )


@pytest.mark.parametrize("kind", NAMES)
def test_messages_name_them_escaped(kind: str, sihg: Command) -> None:
    name = NAMES[kind]
    for words in (
        ["resume", name],
        ["report", name],
        ["train", "--out", "x", "--data", name],
        [name],
        ["data", "get", name],
    ):
        said = sihg(*words, code=2)
        assert said.startswith("sihg: error: ")


def test_a_report_on_all_of_them(tmp_path: Path, sihg: Command) -> None:
    sihg("train", "--data", "digits", *TINY, "--epochs", "2", "--out", tmp_path / "run")
    for name in NAMES.values():
        shutil.copytree(tmp_path / "run", tmp_path / "runs" / name)
    sihg("report", tmp_path / "runs")
    page = (tmp_path / "runs" / "index.html").read_text(encoding="utf-8")
    assert page.count("<script") == 1  # the script of the page itself
    assert "&lt;script&gt;alert(1)&lt;" in page
    with (tmp_path / "runs" / "report" / "table.csv").open(encoding="utf-8", newline="") as file:
        entries = [row["entry"] for row in csv.DictReader(file)]
    assert "'=cmd|'C calc'!A0" in entries
    assert "'-rf" in entries
    assert not [entry for entry in entries if entry[0] in "=+-@\t\r"]
    figures = [path.read_text(encoding="utf-8") for path in (tmp_path / "runs" / "report").glob("*.svg")]
    assert [figure for figure in figures if "$x$" in figure]  # not a formula


def test_tables_show_names_as_they_are() -> None:
    for name in NAMES.values():
        table = format_table(name, [name, "x"], [[name, "1"]])
        assert not RAW.search(table)
        assert table.count(printable(name).replace("\n", "\\n")) == 3 or name.startswith(" ")


def test_bars_show_names_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES.values():
        screen = io.StringIO()
        console = Console(file=screen, force_terminal=True, color_system=None, width=400)
        monkeypatch.setattr(terminal, "error_console", lambda console=console: console)
        with Bar(name, 3) as bar:
            bar.update(1, name)
        shown = re.sub(r"\x1b\[\??[\d;]*[A-Za-z]", "", screen.getvalue()).replace("\r", "")
        assert not RAW.search(shown)
        assert printable(name).replace("\n", "\\n").strip() in shown


def test_names_of_files_are_limited_in_bytes() -> None:
    for text in (*NAMES.values(), "\N{CJK UNIFIED IDEOGRAPH-4E00}" * 200, "\N{MATHEMATICAL BOLD SMALL A}" * 100):
        for name in (file_name(text), file_name(text, hashed=True), file_name("last", text)):
            assert len(name.encode()) <= MAX_NAME_BYTES + len("_01234567")
            assert re.fullmatch(r"[\w.+-]*", name)
    assert file_name("\N{CJK UNIFIED IDEOGRAPH-4E00}" * 200) != file_name("\N{CJK UNIFIED IDEOGRAPH-4E00}" * 201)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_terminals_with_few_characters(encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = {name: io.TextIOWrapper(io.BytesIO(), encoding=encoding) for name in ("stdout", "stderr")}
    for name, stream in streams.items():
        monkeypatch.setattr(f"sys.{name}", stream)
    for name in NAMES.values():
        assert main(["resume", str(tmp_path / name)]) == 2
    assert main(["solve", "--list"]) == 0
    assert main(["data", "list", "--json", "--data-dir", "\N{GREEK SMALL LETTER ALPHA}"]) == 0
    assert rb"\u2028" in streams["stderr"].buffer.getvalue()


def test_no_home(monkeypatch: pytest.MonkeyPatch, sihg: Command) -> None:
    def unknown(path: str) -> str:
        return path

    for name in ("SIHG_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", unknown)  # as without HOME and without an entry of the user
    with refused("no-data-folder"):
        data_folder()
    with refused("no-home", path="~/data"):
        data_folder("~/data")
    with refused("no-home", path="~nobody-here/x"):
        expand_home("~nobody-here/x")
    sihg("data", "list", code=2)
    sihg("train", "--data", "npz:~/mine.npz", "--eps", "1", "--out", "x", code=2)
    sihg("train", "--data", "digits", "--method", "~/mine.py:M", "--out", "x", code=2)
