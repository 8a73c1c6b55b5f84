"""Run folders are found and read, finished or not."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from sihg.errors import InputError
from sihg.report.read.evaluations import read_predictions
from sihg.report.read.palette import LOOKS, OTHERS, TRAINING, look, looks
from sihg.report.read.runs import first_gallery, folder_name, group_trials, read_memory, read_run, run_folders
from sihg.report.training_report import report_training
from sihg.store.run_folder import RunFolder
from sihg.store.schema import write_toml
from sihg.store.tables import table_text
from tests.refused import refused
from tests.report.folders import (
    COLUMNS,
    read_csv,
    read_page,
    rows,
    write_checkpoint,
    write_evaluation,
    write_gallery,
    write_memory,
    write_run,
    write_verdicts,
)


def test_the_best_is_the_first_of_equals_as_in_training(tmp_path: Path) -> None:
    """Of equal robust accuracies the higher natural one counts."""
    run = read_run(write_run(tmp_path / "a", rows([0.8, 0.9, 0.9, 0.95], [0.3, 0.3, 0.3, None])))
    assert run.best is not None
    assert run.last is not None
    assert (run.best.epoch, run.last.epoch) == (2, 3)


def _keep_config(run: Path) -> None:
    for name in ("metrics.csv", "log.jsonl", "environment.json"):
        (run / name).unlink()


GRID = 'format = 1\nattacks = ["natural"]\ntest_samples = "all"\nthreads = 1\n{}'
DONE = rows([0.7, 0.9, 0.85], [0.1, 0.45, 0.4])  # what write_run writes
Damage = Callable[[Path], object]


def _file(name: str, text: str) -> Damage:
    return lambda run: (run / name).write_text(text)


def _metrics(columns: str, *rows: str, torn: str = "") -> Damage:
    return _file("metrics.csv", table_text(columns.split(","), [row.split(",") for row in rows]) + torn)


HALF: dict[str, Damage] = {
    "config alone": _keep_config,
    "empty metrics": _file("metrics.csv", ""),
    "a header": _metrics("epoch,step,accuracy,natural,robust,passes,seconds"),
    "a torn row": _metrics("epoch,step,natural,robust,passes", "1,26,0.5,0.2,6", torn="2,52,0."),
    "other columns": _metrics("epoch,step,more", "1,26,2"),
    "not finite": _metrics("epoch,step,accuracy,natural,robust,passes", "1,26,nan,inf,,6"),
    "no settings": lambda run: write_toml(run / "config.toml", {}),
    "strange settings": _file("config.toml", 'eps = [1]\nepochs = "y"\nmethod = 3\nd = 1979-05-27'),
}


@pytest.mark.parametrize("case", HALF)
def test_a_half_finished_run_has_a_page(tmp_path: Path, case: str) -> None:
    HALF[case](write_run(tmp_path / "half"))
    report_training(tmp_path / "half")
    figures = 3 if len(read_run(tmp_path / "half").rows) > 1 else 0  # nothing to draw of one epoch
    assert (figures == 3) is (case in ("no settings", "strange settings"))
    assert read_page(tmp_path / "half").count("<svg") == figures
    assert read_csv(tmp_path / "half")[0]["run"] == "half"


def test_half_finished_runs_are_shown_among_others(tmp_path: Path) -> None:
    for case, damage in HALF.items():
        damage(write_run(tmp_path / case))
    write_run(tmp_path / "whole", method="pgd")
    report_training(tmp_path)
    assert [row["run"] for row in read_csv(tmp_path)] == sorted([*HALF, "whole"])
    assert read_page(tmp_path).count("<summary>") == len(HALF) + 1 + 2  # the configs, LaTeX, the best so far


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
        run / "metrics.csv": (table_text(("epoch", "natural"), [("1", "many")]), "table-cell"),
        run / "log.jsonl": ("{\n", "table-line"),
        run / "environment.json": ("[]", "record-unreadable"),
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


def _read_all(run: Path) -> None:
    """Read every file of a run that the report shows."""
    found = read_run(run)
    read_memory(found)
    first_gallery(group_trials([found])[0])
    for evaluation in found.evaluations:
        read_predictions(evaluation)


def test_a_changed_byte_in_any_file_is_noticed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", rows([0.5], [0.25]), warnings=["lower tau"])
    record = write_evaluation(run)
    write_verdicts(record, {"natural": [0, 1], "pgd-20": [0, 0]}, [0, 1])
    write_memory(run, [0.5])
    gallery = write_gallery(run)
    write_checkpoint(run)
    _read_all(run)
    names = ("config.toml", "environment.json", "metrics.csv", "log.jsonl", "memory.csv")
    for file in (*(run / name for name in names), record, record.with_suffix(".npz"), gallery):
        before = file.read_bytes()
        step = 1 + len(before) // 200  # about two hundred places in each, and the last byte
        for place in (*range(0, len(before), step), len(before) - 1):
            file.write_bytes(before[:place] + bytes([before[place] ^ 1]) + before[place + 1 :])
            with pytest.raises(InputError) as caught:
                _read_all(run)
            assert str(file) in str(caught.value), place
        file.write_bytes(before)
    _read_all(run)


def test_a_sum_that_is_gone_is_noticed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    record = write_evaluation(run)
    for file, sign in {run / "config.toml": "\n# sha256-", record: ',\n "seal_with_seconds"'}.items():
        before = file.read_text()
        file.write_text(before[: before.index(sign)] + ("\n}" if file == record else ""))
        with refused("seal-missing", path=file):
            read_run(run)
        file.write_text(before)
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text("")
    with refused("seal-missing", path=run / "config.toml"):
        read_run(run)
    (run / "config.toml").write_text(config)
    metrics = run / "metrics.csv"
    metrics.write_text("".join(f"{line.rpartition(',')[0]}\n" for line in metrics.read_text().splitlines()))
    with refused("table-line", path=metrics, line=1):
        read_run(run)


@pytest.mark.parametrize("name", ["metrics.csv", "log.jsonl", "memory.csv"])
def test_lines_lost_at_the_end_are_noticed_by_the_checkpoint(tmp_path: Path, name: str) -> None:
    run = write_run(tmp_path / "a")
    write_memory(run)
    lines = (run / name).read_bytes().splitlines(keepends=True)
    (run / name).write_bytes(b"".join(lines[:-1]))
    _read_all(run)  # the line may never have been written
    (run / name).write_bytes(b"".join(lines))
    write_checkpoint(run)
    _read_all(run)
    for kept in range(len(lines)):
        (run / name).write_bytes(b"".join(lines[:kept]))
        with refused("table-too-short", path=run / name, found=len(b"".join(lines[:kept]))):
            _read_all(run)
    (run / name).unlink()
    with refused("cannot-read-table", path=run / name):
        _read_all(run)


def test_rows_of_another_run_are_noticed_by_the_checkpoint(tmp_path: Path) -> None:
    run, other = write_run(tmp_path / "a"), write_run(tmp_path / "b", rows([0.7, 0.9, 0.85], [0.1, 0.45, 0.5]))
    write_checkpoint(run)
    (run / "metrics.csv").write_bytes((other / "metrics.csv").read_bytes())
    with refused("table-differs", path=run / "metrics.csv"):
        read_run(run)


def test_settings_of_another_run_are_noticed_by_the_checkpoint(tmp_path: Path) -> None:
    run, other = write_run(tmp_path / "a"), write_run(tmp_path / "b", eps=0.5)
    write_checkpoint(run)
    (run / "config.toml").write_bytes((other / "config.toml").read_bytes())
    with refused(
        "config-not-of-checkpoint", path=run / "checkpoints" / "last-00000078", differences={"eps": (0.25, 0.5)}
    ):
        read_run(run)


def test_a_run_before_format_2_is_read(tmp_path: Path) -> None:
    """It has no sums, and its checkpoints keep only the sizes of its tables."""
    run = write_run(tmp_path / "a")
    whole, folder = read_run(run), RunFolder(run)
    write_checkpoint(run, tables={"metrics": folder.metrics.stat().st_size, "log": 0})
    folder.config.write_text(whole.config.partition("\n")[2].partition("\n# sha256-")[0])
    folder.environment.write_text('{"python": "3.11.2"}')
    lines = [",".join("" if row.get(name) is None else str(row[name]) for name in COLUMNS) for row in DONE]
    folder.metrics.write_text("\n".join([",".join(COLUMNS), *lines, ""]))
    folder.log.write_text('{"event": "warning", "text": "lower tau"}\n')
    found = read_run(run)
    assert (found.sealed, found.settings, found.rows) == (False, whole.settings, whole.rows)
    assert found.warnings == ("lower tau",)


def test_every_run_has_its_own_look() -> None:
    assert len(set(TRAINING.values())) == len(TRAINING) == 14
    assert looks(list(TRAINING)) == list(TRAINING.values())
    assert looks(["pgd", "natural", "pgd"])[:2] == [look("pgd"), look("natural")]
    palette = len(LOOKS) + len(OTHERS)
    seeds = looks(["msi-hg"] * palette)
    assert len({one.colour for one in seeds}) == palette
    many = looks(["msi-hg", "pgd", "mine"] * palette)
    assert len(set(many)) == len(many)
