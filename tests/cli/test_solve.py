"""`sihg solve` and `sihg report` as people use them."""

import calendar
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sihg.cli.main import build_parser, main
from sihg.minimax import zoo
from tests.refused import refused

SAVE_OFTEN = (
    "import sihg.minimax.comparison as c, sys; c.SECONDS_BETWEEN_SAVES = 0.1\n"
    "from sihg.cli.main import main; sys.exit(main(sys.argv[1:]))"
)


def wait_for(path: Path, process: "subprocess.Popen[str] | subprocess.Popen[bytes]") -> None:
    """Wait until a process has written a file, or has ended."""
    while not path.exists() and process.poll() is None:
        time.sleep(0.01)


def run(*words: str) -> int:
    return main(list(words))


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("solve", "--list") == 0
    out = capsys.readouterr().out
    assert "weak-mvi-nonlinear" in out
    assert "eg+" in out
    assert run("solve", "--list", "--json") == 0
    listing = json.loads(capsys.readouterr().out)
    assert len(listing["problems"]) == len(zoo.names())
    assert {method["name"] for method in listing["methods"]} >= {
        "ssi-hg",
        "dsi-hg",
        "spdhg",
        "gda",
        "mgda",
        "optimistic",
    }


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "solve",
        "ridge",
        "--set",
        "n=2",
        "--set",
        "samples=20",
        "--method",
        "ssi-hg,gda",
        "--iterations",
        "1e2",
        "--json",
    ]
    assert run(*words) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["problem"], summary["n"], summary["options"]) == ("ridge", 2, {"n": 2, "samples": 20})
    first, second = summary["methods"]
    assert (first["method"], first["iterations"], first["w_gradients"]) == ("ssi-hg", 100, 2 + 99)
    assert first["theta"] < 1
    assert second["theta"] is None
    assert summary["command"].startswith("sihg solve ridge --method ssi-hg,gda --iterations 100 --seed 0")


def test_table_and_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("solve", "weak-mvi", "--iterations", "20", "--sigma", "1/2", "--tau", "3") == 0
    captured = capsys.readouterr()
    assert "│ ssi-hg" in captured.out
    assert "20 iterations done" in captured.out
    assert "warning: ssi-hg: outside the theorem" in captured.err


def test_out_leaves_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    words = ["solve", "weak-mvi", "--method", "ssi-hg,eg+", "--iterations", "50", "--out", str(out)]
    assert run(*words) == 0
    assert f"report: {out / 'index.html'}" in capsys.readouterr().err
    for name in (
        "config.json",
        "summary.json",
        "field.json",
        "convergence.svg",
        "trajectories.png",
        "index.html",
        "table.csv",
    ):
        assert (out / name).stat().st_size > 0
    for name in ("history.json", "history.csv", "state.safetensors", "trajectory.csv"):
        assert (out / "eg+" / name).stat().st_size > 0
    assert len((out / "ssi-hg" / "trajectory.csv").read_text().splitlines()) == 1 + 51
    assert run(*words) == 2
    assert "holds an earlier solve: choose another folder, --overwrite it, or --resume it" in capsys.readouterr().err
    assert run(*words, "--overwrite") == 0
    assert run("report", str(out)) == 0
    assert str(out / "index.html") in capsys.readouterr().out


def columns(folder: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = json.loads((folder / "history.json").read_text())["columns"]
    return {name: values for name, values in found.items() if name != "seconds"}


def same_records(one: Path, other: Path, method: str) -> None:
    from safetensors.numpy import load_file

    assert columns(one / method) == columns(other / method)
    left, right = (load_file(folder / method / "state.safetensors") for folder in (one, other))
    assert left.keys() == right.keys()
    assert all((left[name] == right[name]).all() for name in left)


@pytest.mark.parametrize(("problem", "method"), [("weak-mvi-nonlinear", "ssi-hg"), ("weak-mvi", "optimistic")])
def test_resume_to_more_iterations_equals_one_run(problem: str, method: str, tmp_path: Path) -> None:
    start = ["solve", problem, "--method", method, "--record-every", "7", "--seed", "3"]
    assert run(*start, "--iterations", "60", "--out", str(tmp_path / "whole")) == 0
    assert run(*start, "--iterations", "25", "--out", str(tmp_path / "parts")) == 0
    assert run("solve", "--resume", str(tmp_path / "parts"), "--iterations", "60") == 0
    same_records(tmp_path / "whole", tmp_path / "parts", method)
    if problem == "weak-mvi":
        whole, parts = ((tmp_path / name / method / "trajectory.csv").read_text() for name in ("whole", "parts"))
        assert whole == parts


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_keeps_what_was_reached(how: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["solve", "weak-mvi-nonlinear", "--iterations", "1e7", "--record-every", "50", "--out", str(out)]
    with subprocess.Popen([sys.executable, "-c", SAVE_OFTEN, *words], stderr=subprocess.PIPE, text=True) as process:
        wait_for(out / "ssi-hg" / "state.safetensors", process)
        process.send_signal(how)
        _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert f"to continue: sihg solve --resume {out}" in errors
    summary = json.loads((out / "summary.json").read_text())
    (row,) = summary["methods"]
    assert row["stopped"].startswith("interrupted at iteration ")
    assert 0 < row["iterations"] < 10**7
    assert (out / "index.html").exists()


def test_killed_run_goes_on_from_its_last_save(tmp_path: Path) -> None:
    """kill -9 in the middle; resumed, it ends with the records of a run that was left alone."""
    start = ["solve", "weak-mvi-nonlinear", "--record-every", "50"]
    out = tmp_path / "killed"
    command = [sys.executable, "-c", SAVE_OFTEN, *start, "--iterations", "1e7", "--out", str(out)]
    with subprocess.Popen(command) as process:
        wait_for(out / "ssi-hg" / "state.safetensors", process)
        process.kill()
    from sihg.minimax import SolveState

    total = str(SolveState.load(out / "ssi-hg" / "state.safetensors").iteration + 75)
    assert run("solve", "--resume", str(out), "--iterations", total) == 0
    assert run(*start, "--iterations", total, "--out", str(tmp_path / "whole")) == 0
    same_records(tmp_path / "whole", out, "ssi-hg")


MISTAKES: list[tuple[str, str, dict[str, object]]] = [
    ("", "no-problem", {}),
    ("rigde", "unknown-problem", {"name": "rigde"}),
    ("ridge --method sgd", "unknown-method", {"name": "sgd"}),
    ("ridge --method ,", "no-method", {}),
    ("ridge --method ssi-hg --set n", "set-form", {"text": "n"}),
    ("ridge --set q=1", "unknown-problem-option", {"name": "q"}),
    ("ridge --set n=many", "problem-option-range", {"name": "n"}),
    ("ridge --set n=0", "problem-option-range", {"name": "n"}),
    ("ratio-game --set s=0", "problem-not-built", {"problem": "ratio-game"}),
    ("ridge --sigma -1", "step-size-range", {"name": "sigma", "value": -1.0}),
    ("ridge --record-every 0", "compare-record-every", {"record_every": 0}),
    ("ridge --tolerance -1", "tolerance-range", {"tolerance": -1.0}),
    ("ridge --method gda,mgda --theta 1", "unused-step-size", {"name": "theta"}),
    ("quadratic --method ssi-hg,spdhg", "method-bilinear-only", {"method": "spdhg"}),
    ("no.such.module:make", "user-code-import", {}),
    (":x", "user-code-import", {}),
    ("math:pi", "user-code-not-callable", {}),
    ("math:sqrt", "problem-not-built", {"problem": "math:sqrt"}),
    ("collections:OrderedDict", "problem-type", {"problem": "collections:OrderedDict"}),
    ("--resume /no/such/folder", "record-unreadable", {"path": Path("/no/such/folder/config.json")}),
    ("--resume x ridge", "resume-with-settings", {"name": "problem"}),
    ("weak-mvi --iterations 3 --out /proc/none/here", "cannot-write-folder", {}),
]


@pytest.mark.parametrize(("words", "code", "values"), MISTAKES, ids=[words for words, _, _ in MISTAKES])
def test_mistakes_get_one_line_and_exit_code_2(
    words: str, code: str, values: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("solve", *words.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("sihg: error: ")
    assert len(error.strip().splitlines()) == 1
    assert error.rstrip().endswith(f"[{code}]")
    args = build_parser("solve").parse_args(["solve", *words.split()])
    with refused(code, **values):
        args.run(args)


@pytest.mark.parametrize(
    "words",
    [
        ["solve", "ridge", "--iterations", "2.5"],
        ["solve", "ridge", "--iterations", "inf"],
        ["solve", "ridge", "--tau", "x/y"],
        ["fly"],
    ],
)
def test_values_that_the_parser_refuses(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "sihg: error: " in capsys.readouterr().err


def test_own_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch, sihg\n"
        "def make(a=1.0):\n"
        "    return sihg.Problem(lambda w, d, i: a * (d @ w), torch.ones(2), torch.ones(3, 2))\n"
    )
    monkeypatch.chdir(tmp_path)
    assert run("solve", "mine:make", "--set", "a=1/2", "--iterations", "5", "--json") == 0
    assert json.loads(capsys.readouterr().out)["n"] == 3


def test_a_file_named_as_an_imported_module_is_the_users(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "calendar.py").write_text(
        "import torch, sihg\n"
        "def make():\n"
        "    return sihg.Problem(lambda w, d, i: d @ w, torch.ones(2), torch.ones(5, 2))\n"
    )
    assert calendar.isleap(2024)
    assert run("solve", f"{tmp_path / 'calendar.py'}:make", "--iterations", "2", "--json") == 0
    assert json.loads(capsys.readouterr().out)["n"] == 5


def test_help_is_quick_and_complete() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "sihg", "solve", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--resume" in done.stdout
    assert " torch" not in done.stderr
    assert " matplotlib" not in done.stderr


def test_divergence_is_reported_not_raised(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run("solve", "weak-mvi", "--method", "gda", "--sigma", "30", "--tau", "30", "--iterations", "1000", "--json")
        == 0
    )
    (row,) = json.loads(capsys.readouterr().out)["methods"]
    assert row["stopped"].startswith("diverged at iteration ")


def test_theta_goes_to_the_methods_that_have_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("solve", "ridge", "--method", "ssi-hg,gda", "--theta", "1", "--iterations", "5", "--json") == 0
    assert [row["theta"] for row in json.loads(capsys.readouterr().out)["methods"]] == [1.0, None]


def test_no_bound_where_the_theorem_does_not_hold(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("solve", "weak-mvi", "--theta", "0", "--iterations", "5", "--json") == 0
    assert json.loads(capsys.readouterr().out)["methods"][0]["bound"] is None
    assert run("solve", "weak-mvi", "--iterations", "5", "--json") == 0
    assert json.loads(capsys.readouterr().out)["methods"][0]["bound"] > 0


@pytest.mark.parametrize("more", [[], ["--tolerance", "1e-3"]])
def test_resuming_a_finished_run_changes_nothing(more: list[str], tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["solve", "quadratic", "--iterations", "325", "--record-every", "7", "--out", str(out)]
    assert run(*words, *more) == 0
    before = (out / "summary.json").read_text(), (out / "ssi-hg" / "history.csv").read_text()
    assert run("solve", "--resume", str(out)) == 0
    assert (out / "summary.json").read_text() == before[0]
    assert (out / "ssi-hg" / "history.csv").read_text() == before[1]


def test_damaged_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert run("solve", "weak-mvi", "--iterations", "20", "--out", str(out)) == 0
    for name in ("ssi-hg/trajectory.csv", "ssi-hg/history.json", "ssi-hg/state.safetensors", "config.json"):
        content = (out / name).read_bytes()
        (out / name).write_bytes(content[: len(content) // 2])
        assert run("solve", "--resume", str(out), "--iterations", "40") == 2, name
        assert name.rsplit("/", 1)[-1] in capsys.readouterr().err
        (out / name).write_bytes(content)


def test_a_changed_number_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert run("solve", "weak-mvi", "--iterations", "20", "--out", str(out)) == 0
    for name in ("ssi-hg/trajectory.csv", "ssi-hg/history.json", "ssi-hg/row.json", "summary.json", "field.json"):
        content = (out / name).read_bytes()
        place = next(i for i in range(len(content) // 3, len(content)) if chr(content[i]) in "2345678")
        (out / name).write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        shown = name.startswith(("summary", "field"))
        words = ["report", str(out)] if shown else ["solve", "--resume", str(out), "--iterations", "40"]
        assert run(*words) == 2, name
        (line,) = capsys.readouterr().err.splitlines()[-1:]
        assert str(out / name) in line
        assert line.endswith(("[table-line]", "[seal-wrong]"))
        (out / name).write_bytes(content)


def test_a_second_process_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    words = ["solve", "weak-mvi-nonlinear", "--iterations", "1e7", "--record-every", "50", "--out", str(out)]
    with subprocess.Popen([sys.executable, "-c", SAVE_OFTEN, *words], stderr=subprocess.PIPE, text=True) as process:
        wait_for(out / "ssi-hg" / "state.safetensors", process)
        for again in (["solve", "--resume", str(out)], [*words, "--overwrite"]):
            assert run(*again) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert f"process {process.pid} on " in line
            assert line.endswith("[folder-in-use]")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130, errors
    summary = json.loads((out / "summary.json").read_text())
    total = str(summary["methods"][0]["iterations"] + 10)
    assert run("solve", "--resume", str(out), "--iterations", total) == 0  # the lock is free again


def test_code_in_a_folder_of_somebody_else_needs_trust(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch, sihg\n"
        "from pathlib import Path\n"
        "def make():\n"
        "    Path(__file__).with_name('ran').touch()\n"
        "    return sihg.Problem(lambda w, d, i: d @ w, torch.ones(2), torch.ones(3, 2))\n"
    )
    mine, theirs, ran = tmp_path / "mine", tmp_path / "theirs", tmp_path / "ran"
    assert run("solve", f"{tmp_path / 'mine.py'}:make", "--iterations", "5", "--out", str(mine)) == 0
    shutil.copytree(mine, theirs)
    ran.unlink()
    capsys.readouterr()
    assert run("solve", "--resume", str(theirs), "--iterations", "10") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("[foreign-code]")
    assert run("report", str(theirs)) == 0
    assert not ran.exists()
    assert run("solve", "--resume", str(theirs), "--iterations", "10", "--trust") == 0
    assert ran.exists()


def test_open_boxes_and_infinite_fields_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "open.py").write_text(
        "import torch\nfrom sihg.minimax import NonNegative, Problem\n"
        "def make():\n"
        "    phi = lambda w, d, i: (w * d).sum(1) - torch.log(w).sum()\n"
        "    return Problem(phi, torch.ones(1), torch.ones(1, 1), NonNegative(), NonNegative())\n"
    )
    monkeypatch.chdir(tmp_path)
    assert run("solve", "open:make", "--iterations", "5", "--sigma", "0.1", "--tau", "0.1", "--out", "run") == 0
    assert Path("run/trajectories.svg").exists()


def test_adaptive_steps_and_auto(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """--steps reaches the solve, stays with a resume, and clashes with numbers; auto is a method."""
    words = ["solve", "weak-mvi", "--method", "ssi-hg,auto", "--steps", "adaptive", "--record-every", "5"]
    assert run(*words, "--iterations", "20", "--json") == 0
    whole = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in whole["methods"]] == ["ssi-hg", "auto"]
    assert whole["methods"][0]["source"].startswith("adaptive: ")
    assert whole["methods"][1]["source"].startswith("auto: ")
    assert "--steps adaptive" in whole["command"]
    assert run(*words, "--iterations", "10", "--out", str(tmp_path / "s")) == 0
    capsys.readouterr()
    assert run("solve", "--resume", str(tmp_path / "s"), "--iterations", "20", "--json") == 0
    again = json.loads(capsys.readouterr().out)
    for row, other in zip(again["methods"], whole["methods"], strict=True):
        assert (row["w_gradients"], row["sigma"], row["distance"]) == (
            other["w_gradients"],
            other["sigma"],
            other["distance"],
        )
    args = build_parser("solve").parse_args([*words, "--sigma", "0.1"])
    with refused("steps-and-numbers", name="sigma"):
        args.run(args)
