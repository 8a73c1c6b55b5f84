import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from sihg.errors import InputError
from sihg.report.figures.learning_curves import tracks
from sihg.report.page.training_page import compared
from sihg.report.read.entries import entries
from sihg.report.read.palette import LOOKS, OTHERS, TRAINING, look, looks
from sihg.report.read.runs import called, read_run, run_folders
from sihg.report.tables.training_tables import radius
from sihg.report.training_report import report_training
from tests.report.runs import rows, write_curve, write_evaluation, write_gallery, write_memory, write_run

EVIL = '<script>alert("1")</script> & $x_{$'
FIGURES = [f"{name}.{kind}" for name in ("curves", "curves-best") for kind in ("svg", "pdf")]
TABLES = [f"{name}.{kind}" for name in ("table", "runs") for kind in ("csv", "md", "tex")]


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures of few pixels, which are drawn faster."""
    monkeypatch.setattr("sihg.report.figures.style.DOTS_PER_INCH", 40)


def read_page(folder: Path) -> str:
    return (folder / "index.html").read_text(encoding="utf-8")


def read_csv(folder: Path, name: str = "runs") -> list[dict[str, str]]:
    with (folder / "report" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def numbers(page: str) -> set[float]:
    return {float(value) for value in re.findall(r'<data value="([^"]+)">', page)}


def test_one_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "first")
    written = report_training(run)
    assert written == [*(run / "report" / name for name in (*FIGURES, *TABLES)), run / "index.html"]
    assert ElementTree.parse(run / "report" / "curves.svg").getroot().tag.endswith("svg")
    assert (run / "report" / "curves.pdf").read_bytes().startswith(b"%PDF")
    page = read_page(run)
    assert "<h1>first</h1>" in page
    assert "msi-hg training of small-cnn on digits." in page
    for text in ("ε = 0.25", "seed 0", "3.11.2", "[optimizer]\nname = &quot;sgd&quot;"):
        assert text in page
    assert "Warnings" not in page
    assert "Evaluations" not in page


def test_tables_hold_the_numbers_of_the_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "a", eps=8 / 255)
    write_run(tmp_path / "b", rows([0.9], [0.0], passes=1), method="natural", epochs=4)
    report_training(tmp_path)
    a, b = read_csv(tmp_path)
    assert (a["run"], a["method"], a["data"], a["model"]) == ("a", "msi-hg", "digits", "small-cnn")
    assert float(a["eps"]) == 8 / 255
    assert (a["epochs"], a["epochs_asked"], b["epochs"], b["epochs_asked"]) == ("3", "3", "1", "4")
    assert [float(a[key]) for key in ("training_accuracy", "held_out_natural", "held_out_robust")] == [0.53, 0.85, 0.4]
    assert [float(a[key]) for key in ("best_natural", "best_robust", "best_epoch")] == [0.9, 0.45, 2]
    assert [float(a[key]) for key in ("passes", "seconds")] == [18, 3.75]
    assert float(b["best_robust"]) == 0.0
    assert {8 / 255, 0.85, 0.4, 0.9, 0.45, 18.0, 3.75} <= numbers(read_page(tmp_path))
    markdown = (tmp_path / "report" / "runs.md").read_text(encoding="utf-8")
    line = "| a | msi-hg | digits | small-cnn | 8/255 | 3 | 3 | 18 | 3.75 | 53.00 | 85.00 | 40.00 | 90.00 | 45.00 | 2 |"
    assert line in markdown.splitlines()
    assert len({line.count(" | ") for line in markdown.splitlines()}) == 1


def test_the_best_is_the_first_of_equals_as_in_training(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", rows([0.8, 0.9, 0.95], [0.3, 0.3, None])))
    assert run.best["epoch"] == 1
    assert run.last["epoch"] == 2


def test_evaluations_of_the_own_ball_are_in_the_headline(tmp_path: Path) -> None:
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", bounds="none")
    write_evaluation(a, samples=100)
    write_evaluation(a, "larger", samples=300, attacks=[{"attack": "pgd-20", "accuracy": 0.25, "samples": 300}])
    write_evaluation(a, "weaker", eps=0.1, attacks=[{"attack": "pgd-20", "accuracy": 0.875, "samples": 397}])
    write_evaluation(a, "seen", split="train", attacks=[{"attack": "pgd-20", "accuracy": 0.625, "samples": 1400}])
    write_evaluation(a, "elsewhere", data="mnist", attacks=[{"attack": "natural", "accuracy": 0.125, "samples": 999}])
    write_evaluation(b)
    report_training(tmp_path)
    first, second = read_csv(tmp_path)
    assert (float(first["test natural"]), float(first["test pgd-20"])) == (0.96875, 0.25)
    assert (float(second["test natural"]), second["test pgd-20"]) == (
        0.96875,
        "",
    )  # attacked with bounds, trained without
    page = read_page(tmp_path)
    assert {0.4375, 0.875, 0.625, 0.125, 12.5} <= numbers(page)
    for text in ("linf 0.1", "digits train", "mnist test", "any iterate", "43.75"):
        assert text in page


def test_checkpoints_and_rules_are_kept_apart(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", bounds="none")
    write_evaluation(run, "1", bounds=None)
    write_evaluation(run, "2", bounds=None, checkpoint="best", rule="last iterate")
    report_training(run)
    names = ["natural (last)", "pgd-20 (last)", "natural (best)", "pgd-20 (best, last iterate)"]
    assert [key for key in read_csv(run)[0] if key.startswith("test")] == [f"test {name}" for name in names]
    assert "linf 0.25 without bounds" in read_page(run)


def test_evaluations_made_before_a_resume_are_not_the_result(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    for name in ("last-00000026", "last-00000078", "best-00000052"):
        (run / "checkpoints" / name).mkdir(parents=True)
    old, best = (str(run / "checkpoints" / name) for name in ("last-00000026", "best-00000052"))
    write_evaluation(run, "1", weights=old, samples=397)
    write_evaluation(run, "2", weights=old, checkpoint="last-00000026")
    write_evaluation(run, "3", weights=best, checkpoint="best", attacks=[{"attack": "pgd-20", "accuracy": 0.375}])
    report_training(run)
    tests = {key: value for key, value in read_csv(run)[0].items() if key.startswith("test")}
    assert tests == {"test pgd-20": "0.375"}
    page = read_page(run)
    assert "last (older: last-00000026)" in page
    assert "best (older" not in page
    assert "the run went on after last-00000026 was evaluated, which is not in its results: evaluate it again" in page
    new = str(run / "checkpoints" / "last-00000078")
    write_evaluation(run, "1", weights=new)
    (run / "evaluation" / "2.json").unlink()
    report_training(run)
    assert read_csv(run)[0]["test pgd-20 (last)"] == "0.4375"
    assert "older" not in read_page(run)


def test_numbers_of_samples_are_shown_where_they_differ(tmp_path: Path) -> None:
    for name, samples in {"a": 397, "b": 100}.items():
        write_evaluation(write_run(tmp_path / name), samples=samples)
        write_evaluation(tmp_path / name, "2", attacks=[{"attack": "fgsm", "accuracy": 0.5, "samples": 50}])
    write_run(tmp_path / "c")
    report_training(tmp_path)
    found = [tuple(row[f"samples {name}"] for name in ("natural", "pgd-20", "fgsm")) for row in read_csv(tmp_path)]
    assert found == [("397", "397", "50"), ("100", "100", "50"), ("", "", "")]
    assert "samples of pgd-20" in (tmp_path / "report" / "runs.md").read_text(encoding="utf-8")
    for name in ("a", "b"):
        (tmp_path / name / "evaluation" / "2.json").unlink()
    report_training(tmp_path)
    assert [row["samples"] for row in read_csv(tmp_path)] == ["397", "100", ""]
    assert "samples pgd-20" not in read_csv(tmp_path)[0]
    assert "On 397 test samples" not in read_page(tmp_path)
    report_training(tmp_path / "a")
    assert "On 397 test samples" in read_page(tmp_path / "a")


def test_the_note_counts_the_samples_of_what_is_shown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    write_evaluation(run, "1", samples=50)
    write_evaluation(run, "2", samples=397)
    report_training(run)
    assert "On 397 test samples, never trained on." in read_page(run)
    write_evaluation(run, "3", attacks=[{"attack": "fgsm", "accuracy": 0.5, "samples": 50}])
    report_training(run)
    assert "never trained on" not in read_page(run)
    assert read_csv(run)[0]["samples fgsm"] == "50"


def test_each_choice_of_the_best_is_told(tmp_path: Path) -> None:
    for name, where in {"a": "train", "b": "test"}.items():
        run = write_run(tmp_path / name, validate_on=where)
        write_evaluation(run, checkpoint="best")
        report_training(run)
    said = "the checkpoint with the best robust accuracy on the samples watched"
    assert f"(best): {said}; no test sample chose it." in read_page(tmp_path / "a")
    assert f"(best): {said}; test samples chose it, as in the paper." in read_page(tmp_path / "b")
    report_training(tmp_path)
    assert f"(best) of a: {said}; no test sample chose it." in read_page(tmp_path)
    assert f"(best) of b: {said}; test samples chose it, as in the paper." in read_page(tmp_path)


def test_what_two_evaluations_found_is_shown_once(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    natural = {"attack": "natural", "accuracy": 0.75, "samples": 397}
    write_evaluation(run, "1", attacks=[{**natural, "seconds": 1.0}, {"attack": "all", "accuracy": 0.5}])
    write_evaluation(run, "2", attacks=[{**natural, "seconds": 2.0}, {"attack": "fgsm", "accuracy": 0.5}])
    write_evaluation(run, "3", eps=0.1, attacks=[natural])
    found = read_run(run).evaluations
    times = [(one.attack, one.seconds) for one in found]
    assert times == [("natural", 1.0), ("all", None), ("fgsm", None), ("natural", None)]


def test_an_evaluation_may_say_little(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    (run / "evaluation").mkdir()
    few = {"attacks": [{"attack": "pgd-7", "accuracy": 0.5}, {"attack": "fab"}, {"accuracy": None}, 3]}
    for name, content in {"few": few, "none": {}, "odd": {"attacks": 3}}.items():
        (run / "evaluation" / f"{name}.json").write_text(json.dumps(content))
    report_training(run)
    assert read_csv(run)[0]["test pgd-7"] == "0.5"
    assert len(read_run(run).evaluations) == 1


def test_settings_are_compared(tmp_path: Path) -> None:
    write_run(tmp_path / "a", tau=0.125)
    write_run(tmp_path / "b", method="pgd", environment={"python": "3.12.0", "threads": 2})
    runs = [read_run(path) for path in run_folders(tmp_path)]
    common, different = compared(runs)
    assert different == {"tau": [0.125, None], "method.name": ["msi-hg", "pgd"]}
    assert common["optimizer.lr"] == 0.05
    report_training(tmp_path)
    page = read_page(tmp_path)
    for text in ("Settings that differ", "method.name", "Settings of all runs", "optimizer.lr", "3.11.2 / 3.12.0"):
        assert text in page
    assert page.count("<summary>") == 2
    start = page.index("<table>", page.index("Settings that differ"))
    table = ElementTree.fromstring(page[start : page.index("</table>", start)] + "</table>")
    cells = [["".join(cell.itertext()).strip() for cell in row] for row in table.iter("tr")]
    assert cells == [["entry", "tau", "method.name"], ["a", "0.125", "msi-hg"], ["b", "—", "pgd"]]


def test_warnings_and_unfinished_runs_are_told(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", epochs=5, warnings=["lower tau"])
    report_training(run)
    page = read_page(run)
    assert "<li><b>a</b>: lower tau</li>" in page
    assert "3 of 5 epochs done so far" in page


def test_warnings_that_differ_in_numbers_are_told_once(tmp_path: Path) -> None:
    for name, share in {"a": 31.5, "b": 30, "c": 30}.items():
        write_run(tmp_path / name, warnings=[f"{share}% lost: lower tau", "all lost"])
    write_run(tmp_path / "d", warnings=["1% lost: lower tau", "2% lost: lower tau"])
    report_training(tmp_path)
    page = read_page(tmp_path)
    first = "<b>a, b, c, d</b>: 31.5% lost: lower tau (a; the others have other numbers)"
    assert re.findall("<li>(<b>.*?)</li>", page) == [first, "<b>a, b, c</b>: all lost", "<b>d</b>: 2% lost: lower tau"]


def _keep_config(run: Path) -> None:
    for name in ("metrics.csv", "log.jsonl", "environment.json"):
        (run / name).unlink()


Damage = Callable[[Path], object]
HALF: dict[str, Damage] = {
    "config alone": _keep_config,
    "empty metrics": lambda run: (run / "metrics.csv").write_text(""),
    "a header": lambda run: (run / "metrics.csv").write_text("epoch,accuracy,natural,robust,passes,seconds\n"),
    "a torn row": lambda run: (run / "metrics.csv").write_text("epoch,natural,robust,passes\n1,0.5,0.2,6\n2,0."),
    "other columns": lambda run: (run / "metrics.csv").write_text("epoch,more\n1,2\n"),
    "not finite": lambda run: (run / "metrics.csv").write_text("epoch,accuracy,natural,robust,passes\n1,nan,inf,,6\n"),
    "no settings": lambda run: (run / "config.toml").write_text(""),
    "strange settings": lambda run: (run / "config.toml").write_text(
        'eps = [1]\nepochs = "y"\nmethod = 3\nd = 1979-05-27'
    ),
}


@pytest.mark.parametrize("case", HALF)
def test_a_half_finished_run_has_a_page(tmp_path: Path, case: str) -> None:
    HALF[case](write_run(tmp_path / "half"))
    report_training(tmp_path / "half")
    figures = 2 if read_run(tmp_path / "half").best else 1  # what was never watched has no best
    assert (figures == 2) is (case in ("a torn row", "no settings", "strange settings"))
    assert read_page(tmp_path / "half").count("<svg") == figures
    assert read_csv(tmp_path / "half")[0]["run"] == "half"


def test_half_finished_runs_stand_among_others(tmp_path: Path) -> None:
    for case, damage in HALF.items():
        damage(write_run(tmp_path / case))
    write_run(tmp_path / "whole", method="pgd")
    report_training(tmp_path)
    assert [row["run"] for row in read_csv(tmp_path)] == sorted([*HALF, "whole"])
    assert read_page(tmp_path).count("<summary>") == len(HALF) + 1


def test_without_held_out_samples_the_training_accuracy_is_drawn(tmp_path: Path) -> None:
    none: Sequence[float | None] = [None, None]
    seen = tracks(entries([read_run(write_run(tmp_path / "a", rows(none, none)))])[0], "passes")
    assert [track.kind for track in seen] == ["accuracy"]
    assert seen[0].x.tolist() == [6, 12]
    assert seen[0].y.tolist() == [0.51, 0.52]
    run = read_run(write_run(tmp_path / "b", rows([0.5, None, 0.75], [0.25, None, 0.5])))
    assert [(t.kind, t.x.tolist(), t.y.tolist()) for t in tracks(entries([run])[0], "step")] == [
        ("natural", [26, 78], [0.5, 0.75]),
        ("robust", [26, 78], [0.25, 0.5]),
    ]
    report_training(tmp_path)
    assert "held_out_robust" in read_csv(tmp_path)[0]
    report_training(tmp_path / "a")
    assert "held_out_robust" not in read_csv(tmp_path / "a")[0]


def test_text_from_outside_is_escaped(tmp_path: Path) -> None:
    name = EVIL.replace("/", "")
    settings: dict[str, Any] = dict.fromkeys(("data", "model", "norm", EVIL), EVIL)
    run = write_run(
        tmp_path / name,
        method=EVIL,
        warnings=[EVIL, "\udcff"],
        environment={EVIL: EVIL},
        **settings,
    )
    texts: dict[str, Any] = dict.fromkeys(("checkpoint", "data", "norm", "rule"), EVIL)
    doubts = [{"name": EVIL, "result": "warning", "message": EVIL}]
    write_evaluation(run, **texts, attacks=[{"attack": EVIL, "accuracy": 0.5, "remark": EVIL}], checks=doubts)
    write_curve(run, EVIL, data=EVIL, norm=EVIL)
    write_memory(run)
    write_gallery(run, classes=[EVIL, "b"], attack=EVIL)
    write_run(tmp_path / "other")
    for folder in (run, tmp_path):
        report_training(folder)
        assert read_page(folder).count("&lt;script&gt;") >= 10
        files = [*folder.glob("report/*.md"), *folder.glob("report/*.svg"), folder / "index.html"]
        assert len(files) == 3 + 5 + 1
        for file in files:
            assert "<script" not in file.read_text(encoding="utf-8")
        for file in folder.glob("report/*.tex"):
            assert "<" not in file.read_text(encoding="utf-8")
            assert r"\textless{}script\textgreater{}" in file.read_text(encoding="utf-8")


def test_the_page_needs_nothing_but_itself(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    report_training(tmp_path)
    page = read_page(tmp_path)
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', page)) | set(re.findall(r"url\(#([^)]+)\)", page)) <= set(ids)


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_evaluation(write_run(tmp_path / "b"))
    first = {path: path.read_bytes() for path in report_training(tmp_path)}
    assert {path: path.read_bytes() for path in report_training(tmp_path)} == first


def test_runs_are_found_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("seed-10", "seed-2", "seed", "alpha"):
        write_run(tmp_path / name)
    (tmp_path / "other").mkdir()
    assert [path.name for path in run_folders(tmp_path)] == ["alpha", "seed", "seed-2", "seed-10"]
    assert run_folders(tmp_path / "seed") == [tmp_path / "seed"]
    (tmp_path / "grid.toml").write_text("[methods.seed]\n[methods.alpha]\n")
    write_run(tmp_path / "alpha-s1")
    write_run(tmp_path / "seed-s0")
    in_order = ["seed-s0", "alpha-s1", "alpha", "seed", "seed-2", "seed-10"]
    assert [path.name for path in run_folders(tmp_path)] == in_order  # of the grid, then the others
    (tmp_path / "grid.toml").write_text("methods = 3")
    assert len(run_folders(tmp_path)) == 6
    monkeypatch.chdir(tmp_path / "seed")
    assert called(Path()) == "seed"
    assert called(Path("..")) == tmp_path.name
    with pytest.raises(InputError, match=r"other has no config.toml, nor has a folder in it"):
        report_training(tmp_path / "other")


def test_damaged_files_are_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    evaluation = write_evaluation(run)
    damages = {
        run / "config.toml": "= 3",
        run / "metrics.csv": "epoch,natural\n1,many\n",
        run / "log.jsonl": "{\n",
        run / "environment.json": "[]",
        evaluation: "{",
    }
    for file, damage in damages.items():
        before = file.read_bytes()
        file.write_text(damage)
        with pytest.raises(InputError, match=re.escape(str(file))):
            report_training(run)
        file.write_bytes(before)
    assert report_training(run)


def test_every_run_has_a_look_of_its_own() -> None:
    assert len(set(TRAINING.values())) == len(TRAINING) == 10
    assert looks(list(TRAINING)) == list(TRAINING.values())
    assert looks(["pgd", "natural", "pgd"])[:2] == [look("pgd"), look("natural")]
    palette = len(LOOKS) + len(OTHERS)
    seeds = looks(["msi-hg"] * palette)
    assert len({one.colour for one in seeds}) == palette
    many = looks(["msi-hg", "pgd", "mine"] * palette)
    assert len(set(many)) == len(many)


def test_a_ball_is_called_by_its_pixels() -> None:
    radii = [8 / 255, 4 / 255, 0.25, 0.4, 0.3, 0.2, 1.0, 0.0, 0.0123456789]
    assert [radius(eps) for eps in radii] == ["8/255", "4/255", "0.25", "0.4", "0.3", "0.2", "1", "0", "0.0123457"]


def test_reporting_does_not_import_torch() -> None:
    code = "import sihg.report.training_report, sys; assert not {'torch', 'matplotlib.pyplot'} & {*sys.modules}"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
