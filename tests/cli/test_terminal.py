"""Tables on terminals of any width; progress without a terminal."""

import ast
import re
from pathlib import Path

import pytest

from sihg.cli import terminal
from sihg.cli.terminal import format_table, one_line, printable

HEADINGS = ["run", "watched %", "pgd-50-10 %"]
ROWS = [["some-long-name-s0", "94.80 / 72.40", "64.86"], ["some-long-name-s1", "95.07 / 71.39", "62.37"]]


@pytest.mark.parametrize("columns", [20, 44, 80, 200])
def test_no_word_is_cut(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm")
    made = re.sub(r"\x1b\[[\d;]*m", "", format_table("about", HEADINGS, ROWS))
    assert "…" not in made
    for row in ROWS:
        assert all(word in made for cell in row for word in cell.split())
    lines = made.splitlines()[1:]
    assert len({len(line) for line in lines}) == 1
    assert len(lines[0]) <= max(columns, 44)  # what the longest words need


def test_names_are_shown_as_they_are() -> None:
    made = format_table("a [red]line[/red] :smile:", ["run :smile:", "x"], [["m:smile:[red]", "1"]])
    assert "a [red]line[/red] :smile:" in made
    assert "m:smile:[red]" in made
    assert "run :smile:" in made


def test_a_long_path_above_a_table_stays_in_one_line() -> None:
    path = "a/" * 200
    assert path in format_table(f"about {path}", ["x"], []).splitlines()[0]


def test_lines_without_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    monkeypatch.setattr("sihg.cli.terminal.time.monotonic", lambda: now)
    with terminal.Bar("gda", 8) as bar:
        bar.update(1, "")
        now = terminal.SECONDS_BETWEEN_LINES
        bar.update(2, "|F|^2 3")
        bar.update(3, "|F|^2 2")
        now *= 2
        bar.update(4, "")
    assert capsys.readouterr().err == "gda: 2 of 8 iterations, |F|^2 3\ngda: 4 of 8 iterations\n"


def test_control_characters_are_escaped() -> None:
    assert printable("a\tb\nc ± \N{NO-BREAK SPACE}\N{GRINNING FACE}") == "a\tb\nc ± \N{NO-BREAK SPACE}\N{GRINNING FACE}"
    assert (
        printable("\x00\r\x1b[2J\x7f\x85\u2028\u202e\u2066\udcff") == r"\x00\r\x1b[2J\x7f\x85\u2028\u202e\u2066\udcff"
    )
    assert one_line("a\nb") == r"a\nb"


def test_commands_print_only_with_show_and_say() -> None:
    folder = Path(terminal.__file__).parent
    for path in folder.glob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        printing = [call.lineno for call in calls if ast.unparse(call.func) == "print"]
        assert len(printing) == (2 if path.name == "terminal.py" else 0), f"{path}: lines {printing}"
