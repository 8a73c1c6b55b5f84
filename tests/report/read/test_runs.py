"""Run folders are found and read, finished or not."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from sihg.errors import InputError
from sihg.report.read.palette import LOOKS, OTHERS, TRAINING, look, looks
from sihg.report.read.runs import folder_name, read_run, run_folders
from sihg.report.training_report import report_training
from tests.refused import refused
from tests.report.folders import read_csv, read_page, rows, write_evaluation, write_run


def test_the_best_is_the_first_of_equals_as_in_training(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", rows([0.8, 0.9, 0.95], [0.3, 0.3, None])))
    assert run.best is not None
    assert run.last is not None
    assert (run.best.epoch, run.last.epoch) == (1, 2)


def _keep_config(run: Path) -> None:
    for name in ("metrics.csv", "log.jsonl", "environment.json"):
        (run / name).unlink()


GRID = 'format = 1\nattacks = ["natural"]\ntest_samples = "all"\nthreads = 1\n{}'
Damage = Callable[[Path], object]


def _file(name: str, text: str) -> Damage:
    return lambda run: (run / name).write_text(text)


HALF: dict[str, Damage] = {
    "config alone": _keep_config,
    "empty metrics": _file("metrics.csv", ""),
    "a header": _file("metrics.csv", "epoch,step,accuracy,natural,robust,passes,seconds\n"),
    "a torn row": _file("metrics.csv", "epoch,step,natural,robust,passes\n1,26,0.5,0.2,6\n2,52,0."),
    "other columns": _file("metrics.csv", "epoch,step,more\n1,26,2\n"),
    "not finite": _file("metrics.csv", "epoch,step,accuracy,natural,robust,passes\n1,26,nan,inf,,6\n"),
    "no settings": _file("config.toml", ""),
    "strange settings": _file("config.toml", 'eps = [1]\nepochs = "y"\nmethod = 3\nd = 1979-05-27'),
}


@pytest.mark.parametrize("case", HALF)
def test_a_half_finished_run_has_a_page(tmp_path: Path, case: str) -> None:
    HALF[case](write_run(tmp_path / "half"))
    report_training(tmp_path / "half")
    figures = 2 if read_run(tmp_path / "half").best else 1  # what was never watched has no best
    assert (figures == 2) is (case in ("a torn row", "no settings", "strange settings"))
    assert read_page(tmp_path / "half").count("<svg") == figures
    assert read_csv(tmp_path / "half")[0]["run"] == "half"


def test_half_finished_runs_are_shown_among_others(tmp_path: Path) -> None:
    for case, damage in HALF.items():
        damage(write_run(tmp_path / case))
    write_run(tmp_path / "whole", method="pgd")
    report_training(tmp_path)
    assert [row["run"] for row in read_csv(tmp_path)] == sorted([*HALF, "whole"])
    assert read_page(tmp_path).count("<summary>") == len(HALF) + 1


def test_runs_are_found_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("seed-10", "seed-2", "seed", "alpha"):
        write_run(tmp_path / name)
    (tmp_path / "other").mkdir()
    assert [path.name for path in run_folders(tmp_path)] == ["alpha", "seed", "seed-2", "seed-10"]
    assert run_folders(tmp_path / "seed") == [tmp_path / "seed"]
    (tmp_path / "grid.toml").write_text(GRID.format("[methods.seed]\n[methods.alpha]\n"))
    write_run(tmp_path / "alpha-s1")
    write_run(tmp_path / "seed-s0")
    in_order = ["seed-s0", "alpha-s1", "alpha", "seed", "seed-2", "seed-10"]
    assert [path.name for path in run_folders(tmp_path)] == in_order  # of the grid, then the others
    (tmp_path / "grid.toml").write_text(GRID.format("methods = 3"))
    with refused("record-invalid"):
        run_folders(tmp_path)
    monkeypatch.chdir(tmp_path / "seed")
    assert folder_name(Path()) == "seed"
    assert folder_name(Path("..")) == tmp_path.name
    with refused("no-runs", folder=tmp_path / "other"):
        report_training(tmp_path / "other")


def test_damaged_files_are_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    evaluation = write_evaluation(run)
    damages = {
        run / "config.toml": ("= 3", "not-toml"),
        run / "metrics.csv": ("epoch,natural\n1,many\n", "table-cell"),
        run / "log.jsonl": ("{\n", "log-line"),
        run / "environment.json": ("[]", "record-invalid"),
        evaluation: ("{", "record-unreadable"),
    }
    for file, (damage, code) in damages.items():
        before = file.read_bytes()
        file.write_text(damage)
        with pytest.raises(InputError, match=re.escape(str(file))) as caught:
            report_training(run)
        assert caught.value.code == code
        file.write_bytes(before)
    assert report_training(run)


def test_every_run_has_its_own_look() -> None:
    assert len(set(TRAINING.values())) == len(TRAINING) == 10
    assert looks(list(TRAINING)) == list(TRAINING.values())
    assert looks(["pgd", "natural", "pgd"])[:2] == [look("pgd"), look("natural")]
    palette = len(LOOKS) + len(OTHERS)
    seeds = looks(["msi-hg"] * palette)
    assert len({one.colour for one in seeds}) == palette
    many = looks(["msi-hg", "pgd", "mine"] * palette)
    assert len(set(many)) == len(many)
