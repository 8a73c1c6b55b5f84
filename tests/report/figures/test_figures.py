"""What the figures of a report are made from: curves over the radius, galleries, confusion, memory."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sihg.report.figures.confusion import confusion_figure, confusions, strongest_attack
from sihg.report.figures.examples import gallery_figure
from sihg.report.figures.learning_curves import learning_curves
from sihg.report.figures.memory_histogram import memories, memory_figure
from sihg.report.figures.radius import entry_curves, radius_figure
from sihg.report.read.evaluations import read_gallery
from sihg.report.read.runs import Entry, first_gallery, group_trials, read_run, run_folders
from sihg.report.training_report import drawings, report_training
from sihg.store.arrays import write_arrays
from sihg.store.tables import table_text
from tests.refused import refused
from tests.report.folders import (
    attack_row,
    rows,
    write_beside,
    write_curve,
    write_evaluation,
    write_gallery,
    write_memory,
    write_run,
    write_verdicts,
)


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sihg.report.figures.style.DOTS_PER_INCH", 40)


def two(folder: Path) -> list[Path]:
    return [write_run(folder / f"m-s{seed}", seed=seed) for seed in range(2)]


def read(folder: Path) -> list[Entry]:
    return group_trials([read_run(path) for path in run_folders(folder)])


def test_every_record_has_its_figure(tmp_path: Path) -> None:
    for run in two(tmp_path):
        write_curve(run)
        write_gallery(run)
        write_memory(run)
        write_verdicts(write_evaluation(run), {"natural": [0, 1], "pgd-20": [0, 0]}, [0, 1])
    names = [one.name for one in drawings(read(tmp_path))]
    assert names == [
        *("bars", "curves", "training", "curves-best", "radius-1", "confusion-1", "gallery-1", "memory"),
    ]
    written = {path.name for path in report_training(tmp_path)}
    assert {f"{name}.{kind}" for name in names for kind in ("svg", "pdf")} <= written
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert page.count("<figure>") == len(names)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_accuracy_against_the_radius_is_over_the_trials(tmp_path: Path) -> None:
    first, second = two(tmp_path)
    write_curve(first, accuracy=[0.9, 0.5, 0.25])
    assert [one.low.tolist() for one in entry_curves(read(tmp_path))] == [pytest.approx([0.85, 0.45, 0.2])]
    write_curve(second, accuracy=[0.9, 0.75, 0.5])
    (found,) = entry_curves(read(tmp_path))
    assert found.accuracy.tolist() == pytest.approx([0.9, 0.625, 0.375])
    assert (found.low.tolist(), found.high.tolist()) == ([0.9, 0.5, 0.25], [0.9, 0.75, 0.5])  # the range of two
    axes: Any = radius_figure([found]).axes[0]
    assert list(axes.lines[0].get_xdata()) == [0.0, 0.1, 0.2]


def test_curves_on_other_samples_are_not_averaged(tmp_path: Path) -> None:
    first, second = two(tmp_path)
    write_curve(first, accuracy=[0.9, 0.5, 0.25])
    write_curve(second, accuracy=[0.9, 0.75, 0.5], samples=100)
    found = {curve.attack: curve.accuracy.tolist() for curve in entry_curves(read(tmp_path))}
    assert found == {"pgd-20 (n = 397)": [0.9, 0.5, 0.25], "pgd-20 (n = 100)": [0.9, 0.75, 0.5]}


def test_curves_of_other_weights_or_rules_are_separate(tmp_path: Path) -> None:
    run = write_run(tmp_path / "m")
    low, mid, high = [0.9, 0.5, 0.125], [0.9, 0.5, 0.25], [0.9, 0.5, 0.375]
    write_curve(run, accuracy=low)
    write_curve(run, accuracy=mid, name="best", checkpoint="best")
    write_curve(run, accuracy=high, name="end", rule="last iterate")
    found = entry_curves(read(tmp_path))
    assert {one.attack: one.accuracy.tolist() for one in found} == {
        "pgd-20 (last)": low,
        "pgd-20 (last, last iterate)": high,
        "pgd-20 (best)": mid,
    }
    legend = [text.get_text() for text in radius_figure(found).legends[0].get_texts()]
    assert legend == [f"m, {one.attack}" for one in found]


@pytest.mark.parametrize("change", [{"split": "train"}, {"data": "mnist"}, {"norm": "l2"}])
def test_other_curves_are_not_the_result(tmp_path: Path, change: dict[str, Any]) -> None:
    write_curve(write_run(tmp_path / "m"), **change)
    assert entry_curves(read(tmp_path)) == []


def test_confusion_is_counted_over_the_trials(tmp_path: Path) -> None:
    first, second = two(tmp_path)
    label = [0, 0, 1, 2]
    write_verdicts(write_evaluation(first), {"natural": label, "pgd-20": [0, 1, 1, 0]}, label)
    write_verdicts(write_evaluation(second), {"natural": label, "pgd-20": [1, 1, 1, -1]}, label)
    assert strongest_attack(read(tmp_path)) == "pgd-20"
    (found,) = confusions(read(tmp_path), "pgd-20")
    assert found.counts.tolist() == [[1, 3, 0], [0, 2, 0], [1, 0, 0]]  # what was not attacked is not counted
    shown = {text.get_text() for text in confusion_figure(found).axes[0].texts}
    assert shown == {"25", "75", "100"}


def test_confusion_is_of_the_evaluation_on_most_samples(tmp_path: Path) -> None:
    run = write_run(tmp_path / "m")
    for name, label in {"1": [0, 1], "2": [0, 0, 1, 1], "3": [1]}.items():
        record = write_evaluation(run, name, attacks=[attack_row("pgd-20", 0.5, len(label))])
        write_verdicts(record, {"pgd-20": [0] * len(label)}, label)
    assert confusions(read(tmp_path), "pgd-20")[0].counts.tolist() == [[2, 0], [2, 0]]


def test_an_attack_that_met_no_sample_has_no_confusion(tmp_path: Path) -> None:
    record = write_evaluation(write_run(tmp_path / "m"))
    write_verdicts(record, {"natural": [1, 0], "pgd-20": [-1, -1]}, [0, 1])
    assert confusions(read(tmp_path), "pgd-20") == []


def test_the_strongest_attack_is_the_one_that_most_runs_have(tmp_path: Path) -> None:
    first, second = two(tmp_path)
    for run in (first, second):
        some = [attack_row("fgsm", 0.5, 2), attack_row("pgd-20", 0.25, 2)]
        write_verdicts(write_evaluation(run, attacks=some), {"fgsm": [0, 0], "pgd-20": [1, 0]}, [0, 1])
    harder = write_evaluation(first, "harder", attacks=[attack_row("square", 0.0, 2)])
    write_verdicts(harder, {"square": [1, 0]}, [0, 1])
    assert strongest_attack(read(tmp_path)) == "pgd-20"


def test_records_without_predictions_have_no_confusion(tmp_path: Path) -> None:
    record = write_evaluation(write_run(tmp_path / "m"))
    write_beside(record, {"label": np.array([0])})
    assert confusions(read(tmp_path), "pgd-20") == []
    record.with_suffix(".npz").unlink()
    assert strongest_attack(read(tmp_path)) is None


def test_the_memory_is_over_the_trials(tmp_path: Path) -> None:
    for run, moved in zip(two(tmp_path), ([0.5, 0.25], [0.25, 0.25, 0.125]), strict=True):
        write_memory(run, moved)
    (found,) = memories(read(tmp_path))
    assert found.moved.tolist() == [0.375, 0.25]
    assert (found.low.tolist(), found.high.tolist()) == ([0.25, 0.25], [0.5, 0.25])  # the range of two
    assert found.shares[:, 0].tolist() == [1, 0.5]
    assert found.shares[:, -1].tolist() == [0, 0.5]
    assert len(memory_figure([found]).axes) == 3


@pytest.mark.parametrize("channels", [1, 3])
def test_a_gallery_shows_images_and_predictions(tmp_path: Path, channels: int) -> None:
    found = read_gallery(write_gallery(write_run(tmp_path / "m"), channels), "m")
    axes = gallery_figure(found).axes[0]
    texts = [(text.get_text(), text.get_color()) for text in axes.texts]
    names = [name for name, _ in texts if name in ("zero", "one")]
    assert names == ["zero", "zero", "zero", "one", "one", "zero"]  # label, before, after
    assert [name for name, colour in texts if colour == "#b42318"] == ["zero"]
    assert len(axes.images) == 6
    delta = np.asarray(axes.images[1].get_array())
    assert delta.shape == (4, 4, 3)
    if channels == 3:
        np.testing.assert_allclose(delta[0] + delta[3], 1.0, atol=1e-12)  # signs mirror at grey
    else:
        assert (delta[0, :, 0] > delta[0, :, 2]).all()  # what grew is red
        assert (delta[3, :, 0] < delta[3, :, 2]).all()


def test_damaged_files_are_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "m")
    gallery, record = write_gallery(run), write_evaluation(run)
    write_verdicts(record, {"natural": [0, 1], "pgd-20": [0, 0]}, [0, 1])
    write_memory(run)
    verdicts, table = record.with_suffix(".npz"), run / "memory.csv"
    damages = {
        gallery: (b"PK", "seal-missing"),
        verdicts: (b"", "predictions-mismatch"),
        table: (table_text(("epoch", "moved", "to_1"), [("1", "x", "1")]).encode(), "table-cell"),
    }
    for file, (damage, code) in damages.items():
        before = file.read_bytes()
        file.write_bytes(damage)
        with refused(code, path=file):
            report_training(run)
        file.write_bytes(before)
    write_gallery(run, classes=["only one"])
    with refused("gallery-invalid", path=gallery):
        report_training(run)
    write_gallery(run)
    write_beside(record, {"label": np.array([0]), "attack": np.array(["other"]), "prediction": np.array([[0]])})
    with refused("predictions-mismatch", path=verdicts):
        report_training(run)


def test_a_gallery_that_is_not_shown_is_not_read(tmp_path: Path) -> None:
    first, second = two(tmp_path)
    write_gallery(first)
    (second / "gallery.npz").write_bytes(b"PK")
    (entry,) = read(tmp_path)
    assert [made.run for made in first_gallery(entry)] == [first.name]


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    run = write_run(tmp_path / "m")
    write_arrays(run / "gallery.npz", {"about": np.array([object()], dtype=object)})
    with refused("arrays-unreadable", path=run / "gallery.npz"):
        report_training(run)


def test_several_folders_are_reported_on_elsewhere(tmp_path: Path) -> None:
    first, second = write_run(tmp_path / "a" / "m"), write_run(tmp_path / "b" / "m", eps=0.1)
    report_training([first, second], tmp_path / "out")
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "a/m" in page  # from where their paths part
    assert str(first) not in page
    assert "b/m" in page
    assert not (first / "index.html").exists()
    with refused("report-without-out", folders=2):
        report_training([first, second])


def test_what_has_one_epoch_is_not_drawn(tmp_path: Path) -> None:
    write_memory(write_run(tmp_path / "m", rows([0.5], [0.25])), moved=[0.5])
    assert [one.name for one in drawings(read(tmp_path))] == []


def test_the_best_so_far_has_the_limits_of_the_learning_curves(tmp_path: Path) -> None:
    write_run(tmp_path / "m", rows([0.4, 0.9], [0.3, 0.2]))
    every, best = (learning_curves(read(tmp_path), best=best) for best in (False, True))
    limits = [[(*axes.get_xlim(), *axes.get_ylim()) for axes in figure.axes] for figure in (every, best)]
    assert limits[0] == limits[1]
    assert limits[0][0][3] > 0.9


def test_bands_are_not_cut(tmp_path: Path) -> None:
    for seed, natural in enumerate((0.3, 0.7)):
        write_run(tmp_path / f"m-s{seed}", rows([natural, natural], [0.1, 0.1]), seed=seed)
    for axes in learning_curves(read(tmp_path)).axes:
        assert axes.get_ylim()[1] >= 0.7


def test_short_and_long_costs_are_plain_numbers(tmp_path: Path) -> None:
    done = [{**row, "seconds": row["seconds"] / 25, "step": 1000 * row["step"]} for row in rows([0.4, 0.9], [0.3, 0.2])]
    write_run(tmp_path / "m", done)
    seconds, _, steps = learning_curves(read(tmp_path)).axes
    assert [seconds.xaxis.get_major_formatter()(x, 0) for x in (0, 0.05)] == ["0", "0.05"]
    assert [steps.xaxis.get_major_formatter()(x, 0) for x in (500, 20_000)] == ["500", "20k"]
    assert seconds.get_xlim()[1] < 0.2
