"""A folder that somebody else made runs no code, names no data, brings no verdicts and reaches no file outside."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sihg
from sihg.cli.main import main
from sihg.robust.evaluation import Evaluation, EvaluationRequest, evaluate_run
from sihg.store.arrays import read_arrays, write_arrays
from sihg.store.files import from_toml
from sihg.store.manifest import manifest_bytes
from sihg.store.schema import read_json, write_json, write_toml
from tests.refused import refused
from tests.robust.evaluation.heard import by_part

PLANTED = """
import pathlib, torch
pathlib.Path({ran!r}).write_text("ran")
from dataclasses import dataclass
from sihg.robust.methods import PGDAT
from sihg.minimax import zoo

def make(shape=(1, 8, 8), classes=10):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, classes))

def load():
    return (torch.rand(40, 1, 8, 8), torch.arange(40) % 10), (torch.rand(20, 1, 8, 8), torch.arange(20) % 10)

@dataclass(kw_only=True)
class Mine(PGDAT):
    pass

def attack(model, x, y):
    return x

def problem():
    return zoo.get("ridge").problem
"""
TINY = [
    *("--data", "digits", "--method", "pgd", "--steps", "1", "--samples", "60", "--validation", "10"),
    *("--epochs", "1", "--batch-size", "20", "--width", "0.25"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with an evaluation, and a solve, made by this user."""
    folder = tmp_path_factory.mktemp("made")
    assert main(["train", *TINY, "--out", str(folder / "run")]) == 0
    assert main(["evaluate", str(folder / "run"), "--samples", "20", "--attacks", "natural,fgsm"]) == 0
    assert main(["solve", "ridge", "--iterations", "20", "--out", str(folder / "solve")]) == 0
    return folder


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    return tmp_path / "ran"


def foreign(source: Path, target: Path) -> Path:
    """Copy a folder, as if it had come from somebody else."""
    shutil.copytree(source, target)
    return target


def plant_setting(run: Path, setting: str, value: str) -> None:
    """Let config.toml, and the checkpoints, name a value; all sums are right."""
    table = from_toml(run / "config.toml")
    section, _, key = setting.partition(".")
    if key:
        table[section][key] = value
    else:
        table[section] = value
    write_toml(run / "config.toml", {name: item for name, item in table.items() if name != "format"})


SETTINGS = {"model": "make", "method.name": "Mine", "data": "load", "evaluate_with": "attack"}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("command", ["evaluate", "resume", "load", "transfer", "train"])
def test_code_that_a_foreign_run_names_does_not_run(
    made: Path, tmp_path: Path, ran: Path, setting: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = foreign(made / "run", tmp_path / "run")
    (tmp_path / "evil.py").write_text(PLANTED.format(ran=str(ran)))
    plant_setting(run, setting, f"{tmp_path / 'evil.py'}:{SETTINGS[setting]}")
    if command == "load":
        with refused("foreign-code", folder=run):
            sihg.load(run)
    else:
        words = {
            "evaluate": ["evaluate", str(run)],
            "resume": ["resume", str(run)],
            "transfer": ["evaluate", str(made / "run"), "--samples", "10", "--attacks", f"transfer:{run}"],
            "train": ["train", "--config", str(run / "config.toml"), "--out", str(tmp_path / "new")],
        }[command]
        assert main(words) == 2
        said = capsys.readouterr().err
        assert "[foreign-code]" in said
        assert "--trust" in said
        assert "evil.py" in said
    assert not ran.exists()


def hide_in_methods(table: dict[str, Any], evil: str) -> None:
    table["methods"] = {"pgd": {"model": f"{evil}:make"}}


def hide_in_a_plain_name(table: dict[str, Any], evil: str) -> None:
    table["method"] = f"{evil}:Mine"


def hide_as_a_dotted_name(table: dict[str, Any], evil: str) -> None:
    table["method.name"] = f"{evil}:Mine"


def hide_model_as_data(table: dict[str, Any], _evil: str) -> None:
    table["model"] = "fit:make"


def hide_method_as_data(table: dict[str, Any], _evil: str) -> None:
    table["method"]["name"] = "npz:Mine"


def hide_attack_as_data(table: dict[str, Any], _evil: str) -> None:
    table["evaluate_with"] = "folder:attack"


HIDDEN = [
    *(hide_in_methods, hide_in_a_plain_name, hide_as_a_dotted_name),
    *(hide_model_as_data, hide_method_as_data, hide_attack_as_data),
]


@pytest.mark.parametrize("hide", HIDDEN)
@pytest.mark.parametrize("command", ["evaluate", "resume", "report", "check"])
def test_code_cannot_hide_in_a_foreign_config(
    made: Path,
    tmp_path: Path,
    ran: Path,
    hide: Callable[[dict[str, Any], str], None],
    command: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = foreign(made / "run", tmp_path / "run")
    for name in ("evil", "fit", "npz", "folder"):  # modules in the folder itself
        (run / f"{name}.py").write_text(PLANTED.format(ran=str(ran)))
    table = from_toml(run / "config.toml")
    del table["format"]
    hide(table, str(run / "evil.py"))
    write_toml(run / "config.toml", table)
    for manifest in run.glob("checkpoints/*/manifest.json"):  # forged, too: it says nothing about the settings
        content = json.loads(manifest.read_text())
        content["state"]["settings"] = {}
        manifest.write_bytes(manifest_bytes(content["files"], content["state"]))
    monkeypatch.chdir(run)
    code = main([command, "."])
    assert code == 2 or command in ("report", "check") or hide is hide_as_a_dotted_name  # which counts for nothing
    assert not ran.exists()


def test_the_users_word_lets_it_run(made: Path, tmp_path: Path, ran: Path) -> None:
    run = foreign(made / "run", tmp_path / "run")
    (tmp_path / "evil.py").write_text(PLANTED.format(ran=str(ran)))
    plant_setting(run, "evaluate_with", f"{tmp_path / 'evil.py'}:attack")
    main(["resume", str(run), "--trust"])
    assert ran.exists()


def test_code_of_an_own_run_needs_no_word(tmp_path: Path, ran: Path) -> None:
    (tmp_path / "mine.py").write_text(PLANTED.format(ran=str(ran)))
    run = tmp_path / "run"
    words = [word for word in TINY if word not in ("--width", "0.25")]
    assert main(["train", *words, "--model", f"{tmp_path / 'mine.py'}:make", "--out", str(run)]) == 0
    run.rename(tmp_path / "moved")  # still the same folder
    assert main(["evaluate", str(tmp_path / "moved"), "--samples", "10", "--attacks", "natural"]) == 0
    copy = foreign(tmp_path / "moved", tmp_path / "copy")
    assert main(["evaluate", str(copy), "--samples", "10", "--attacks", "natural"]) == 2
    model = f"{tmp_path / 'mine.py'}:make"
    assert main(["evaluate", str(copy), "--samples", "10", "--attacks", "natural", "--model", model]) == 0


def test_a_foreign_solve_runs_no_code(made: Path, tmp_path: Path, ran: Path) -> None:
    folder = foreign(made / "solve", tmp_path / "solve")
    (tmp_path / "evil.py").write_text(PLANTED.format(ran=str(ran)))
    config = read_json(folder / "config.json", "")
    write_json(folder / "config.json", {**config, "problem": f"{tmp_path / 'evil.py'}:problem"})
    assert main(["solve", "--resume", str(folder), "--iterations", "40"]) == 2
    assert not ran.exists()
    main(["solve", "--resume", str(folder), "--iterations", "40", "--trust"])
    assert ran.exists()


def test_the_data_folder_of_a_foreign_run_is_not_used(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = foreign(made / "run", tmp_path / "run")
    planted = tmp_path / "planted"
    planted.mkdir()
    about = read_json(run / "environment.json", "")
    write_json(run / "environment.json", {**about, "data_folder": str(planted)})
    plant_setting(run, "data", "mnist")
    monkeypatch.setenv("SIHG_DATA", str(tmp_path / "users-own"))
    with refused("data-missing", folder=tmp_path / "users-own"):
        evaluate_run(run)


def test_planted_verdicts_are_not_used(made: Path, tmp_path: Path) -> None:
    run = foreign(made / "run", tmp_path / "run")
    name = "last_test_natural+fgsm_n20"
    honest = json.loads((run / "evaluation" / f"{name}.json").read_text())["attacks"]
    saved = record_partial(run)
    about = json.loads(str(saved["text"]))
    planted = {key: np.zeros_like(value) if key.endswith("/broken") else value for key, value in saved.items()}
    for scalars in about["outcomes"].values():
        scalars["done"] = 20
    path = run / "evaluation" / f"{name}.partial.npz"
    write_arrays(path, {**planted, "text": np.array(json.dumps(about))})  # its sum is right, but not by the user's key
    with pytest.warns(UserWarning, match="not written by you"):
        found = evaluate_run(run, EvaluationRequest("natural,fgsm", samples=20), again=True)
    assert isinstance(found, Evaluation)
    rows = [(row["attack"], row["accuracy"]) for row in honest]
    assert [(row.attack, row.accuracy) for row in found.rows()] == rows


def record_partial(run: Path) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    """Interrupt an evaluation, and return what it left."""
    from sihg.store.trust import user_key

    def stop(attack: str, done: int, _total: int) -> None:
        if attack == "fgsm" and done:
            raise KeyboardInterrupt

    request = EvaluationRequest("natural,fgsm", samples=20)
    with pytest.raises(KeyboardInterrupt):
        evaluate_run(run, request, again=True, progress=by_part(stop))
    (path,) = (run / "evaluation").glob("*.partial.npz")
    return read_arrays(path, key=user_key())


def symlink(victim: Path, path: Path) -> None:
    path.symlink_to(victim)


def hard_link(victim: Path, path: Path) -> None:
    path.hardlink_to(victim)


@pytest.mark.parametrize("link", [symlink, hard_link])
@pytest.mark.parametrize("name", [".lock", "log.jsonl", "metrics.csv"])
def test_links_do_not_lead_to_other_files(
    made: Path, tmp_path: Path, link: Callable[[Path, Path], None], name: str
) -> None:
    run, victim = foreign(made / "run", tmp_path / "run"), tmp_path / "victim"
    content = (run / name).read_bytes() + b"precious\n"
    victim.write_bytes(content)
    (run / name).unlink()
    link(victim, run / name)
    assert main(["resume", str(run)]) == 2
    assert main(["train", *TINY, "--out", str(run), "--overwrite"]) in (0, 2)
    assert victim.read_bytes() == content


@pytest.mark.parametrize("link", [symlink, hard_link])
def test_points_do_not_go_through_links(made: Path, tmp_path: Path, link: Callable[[Path, Path], None]) -> None:
    run, victim = foreign(made / "run", tmp_path / "run"), tmp_path / "victim"
    victim.write_bytes(b"precious")
    link(victim, run / "evaluation" / "last_test_natural+fgsm_n30.points.npy")
    link(victim, run / "evaluation" / "last_test_natural+fgsm_n30.json")
    assert main(["evaluate", str(run), "--samples", "30", "--attacks", "natural,fgsm", "--points"]) == 0
    assert victim.read_bytes() == b"precious"


def test_a_report_does_not_go_through_a_link(made: Path, tmp_path: Path) -> None:
    run, victim = foreign(made / "run", tmp_path / "run"), tmp_path / "victim"
    victim.mkdir()
    (victim / "curves.svg").write_text("precious")
    (run / "report").symlink_to(victim)
    assert main(["report", str(run)]) == 2
    assert {path.name: path.read_text() for path in victim.iterdir()} == {"curves.svg": "precious"}


@pytest.mark.parametrize("words", [["--resume"], ["ridge", "--overwrite", "--out"]])
def test_a_solve_does_not_go_through_a_link(made: Path, tmp_path: Path, words: list[str]) -> None:
    folder, victim = foreign(made / "solve", tmp_path / "solve"), tmp_path / "victim"
    (folder / "ssi-hg").rename(victim)
    (folder / "ssi-hg").symlink_to(victim)
    before = {path.name: path.read_bytes() for path in victim.iterdir()}
    assert main(["solve", *words, str(folder), "--iterations", "40"]) == 2
    assert {path.name: path.read_bytes() for path in victim.iterdir()} == before


@pytest.mark.parametrize("name", ["checkpoints", "evaluation", "memory"])
def test_folders_that_are_links_are_refused(made: Path, tmp_path: Path, name: str) -> None:
    run, victim = foreign(made / "run", tmp_path / "run"), tmp_path / "victim"
    victim.mkdir()
    (victim / "last-00000001").mkdir()
    shutil.rmtree(run / name, ignore_errors=True)
    (run / name).symlink_to(victim)
    assert main(["resume", str(run)]) == 2
    if name == "evaluation":
        assert main(["evaluate", str(run), "--samples", "10", "--attacks", "natural"]) == 2
    assert [path.name for path in victim.iterdir()] == ["last-00000001"]


@pytest.mark.parametrize("reader", ["evaluate", "resume", "report", "compare", "check"])
@pytest.mark.parametrize("name", ["config.toml", "environment.json", "metrics.csv", "log.jsonl"])
def test_a_pipe_in_the_place_of_a_file_does_not_hang(made: Path, tmp_path: Path, reader: str, name: str) -> None:
    run = foreign(made / "run", tmp_path / "run")
    (run / name).unlink()
    os.mkfifo(run / name)
    assert main([reader, str(run)]) in ((0, 1, 2) if reader == "evaluate" else (1, 2))


def test_a_foreign_grid_does_not_count(tmp_path: Path) -> None:
    words = ["reproduce", "digits", "--methods", "natural", "--trials", "1", "--attacks", "natural", "--samples", "20"]
    words += ["--set", "samples=60", "--validation", "10", "--epochs", "1", "--width", "0.25", "--jobs", "1"]
    assert main([*words, "--out", str(tmp_path / "grid")]) == 0
    foreign(tmp_path / "grid", tmp_path / "copy")
    assert main([*words, "--out", str(tmp_path / "copy")]) == 2
    assert main([*words, "--out", str(tmp_path / "copy"), "--trust"]) == 0


def test_weights_are_never_unpickled(tmp_path: Path, ran: Path) -> None:
    class Planted:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.write_text, (ran, "ran")

    torch.save({"x": Planted()}, tmp_path / "w.pt")
    words = ["evaluate", str(tmp_path / "w.pt"), "--model", "small-cnn", "--data", "digits", "--eps", "0.1"]
    assert main(words) == 2
    assert not ran.exists()
