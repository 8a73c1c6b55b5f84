"""Which evaluations of a run are its results."""

import json
from pathlib import Path

import numpy as np
import pytest

from sihg.report import compare
from sihg.report.read.evaluations import read_predictions
from sihg.report.read.runs import read_run
from sihg.report.training_report import report_training
from sihg.store.seal import SEAL_KEY
from tests.refused import refused
from tests.report.folders import (
    attack_row,
    numbers,
    read_csv,
    read_page,
    write_checkpoint,
    write_curve,
    write_evaluation,
    write_run,
    write_verdicts,
)


def test_evaluations_of_the_own_ball_are_in_the_headline(tmp_path: Path) -> None:
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", bounds="none")
    write_evaluation(a, samples=100)
    write_evaluation(a, "larger", samples=300, attacks=[attack_row("pgd-20", 0.25, 300)])
    write_evaluation(a, "weaker", eps=0.1, attacks=[attack_row("pgd-20", 0.875, 397)])
    write_evaluation(a, "seen", split="train", attacks=[attack_row("pgd-20", 0.625, 1400)])
    write_evaluation(a, "elsewhere", data="mnist", attacks=[attack_row("natural", 0.125, 999)])
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
    names = ("last-00000026", "last-00000078", "best-00000052")
    old, new, best = (
        {"weights": str(run / "checkpoints" / name), "sha256": write_checkpoint(run, name)} for name in names
    )
    write_evaluation(run, "1", **old, samples=397)
    write_evaluation(run, "2", **old, checkpoint="last-00000026")
    write_evaluation(run, "3", **best, checkpoint="best", attacks=[attack_row("pgd-20", 0.375)])
    report_training(run)
    tests = {key: value for key, value in read_csv(run)[0].items() if key.startswith("test")}
    assert tests == {"test pgd-20": "0.375"}
    page = read_page(run)
    assert "last (older: last-00000026)" in page
    assert "best (older" not in page
    assert "last-00000026 was evaluated, but the run has trained on since" in page
    write_evaluation(run, "1", **new)
    (run / "evaluation" / "2.json").unlink()
    report_training(run)
    assert read_csv(run)[0]["test pgd-20 (last)"] == "0.4375"
    assert "(older:" not in read_page(run)


def test_numbers_of_samples_are_shown_if_they_differ(tmp_path: Path) -> None:
    for name, samples in {"a": 397, "b": 100}.items():
        write_evaluation(write_run(tmp_path / name), samples=samples)
        write_evaluation(tmp_path / name, "2", attacks=[attack_row("fgsm", 0.5, 50)])
    write_run(tmp_path / "c")
    report_training(tmp_path)
    found = [tuple(row[f"samples {name}"] for name in ("natural", "pgd-20", "fgsm")) for row in read_csv(tmp_path)]
    assert found == [("397", "397", "50"), ("100", "100", "50"), ("", "", "")]
    markdown = (tmp_path / "report" / "runs.md").read_text(encoding="utf-8")
    assert all(f"| 43.75 (n = {samples}) | 50.00 (n = 50) |" in markdown for samples in (397, 100))
    for name in ("a", "b"):
        (tmp_path / name / "evaluation" / "2.json").unlink()
    report_training(tmp_path)
    assert [row["samples"] for row in read_csv(tmp_path)] == ["397", "100", ""]
    assert "samples pgd-20" not in read_csv(tmp_path)[0]
    assert "on 397 test samples" not in read_page(tmp_path)
    report_training(tmp_path / "a")
    assert "on 397 test samples" in read_page(tmp_path / "a")


def test_the_note_counts_the_samples_of_the_shown_results(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    write_evaluation(run, "1", samples=50)
    write_evaluation(run, "2", samples=397)
    report_training(run)
    assert "on 397 test samples, never trained on." in read_page(run)
    write_evaluation(run, "3", attacks=[attack_row("fgsm", 0.5, 50)])
    report_training(run)
    assert "never trained on" not in read_page(run)
    assert read_csv(run)[0]["samples fgsm"] == "50"


def test_notes_say_how_the_best_was_chosen(tmp_path: Path) -> None:
    for name, where in {"a": "train", "b": "test"}.items():
        run = write_run(tmp_path / name, validate_on=where)
        write_evaluation(run, checkpoint="best")
        report_training(run)
    text = "the checkpoint with the best held-out robust accuracy, chosen"
    assert f"(best): {text} not on test samples." in read_page(tmp_path / "a")
    assert f"(best): {text} on test samples, as in the paper." in read_page(tmp_path / "b")
    report_training(tmp_path)
    assert f"(best) of a: {text} not on test samples." in read_page(tmp_path)
    assert f"(best) of b: {text} on test samples, as in the paper." in read_page(tmp_path)


def test_equal_results_of_two_evaluations_are_shown_once(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    natural = attack_row("natural", 0.75, 397)
    write_evaluation(run, "1", attacks=[{**natural, "seconds": 1.0}, attack_row("all", 0.5)])
    write_evaluation(run, "2", attacks=[{**natural, "seconds": 2.0}, attack_row("fgsm", 0.5)])
    write_evaluation(run, "3", eps=0.1, attacks=[natural])
    found = read_run(run).evaluations
    times = [(one.attack, one.seconds) for one in found]
    assert times == [("natural", 1.0), ("all", 0.5), ("fgsm", 0.5), ("natural", 0.5)]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("{}", "record-invalid"),
        ('{"attacks": 3}', "record-invalid"),
        ('{"attacks": [3]}', "record-invalid"),
        ("[]", "record-unreadable"),
        ('{"format": 2}', "seal-missing"),
    ],
)
def test_an_incomplete_record_is_refused(tmp_path: Path, content: str, code: str) -> None:
    run = write_run(tmp_path / "a")
    write_evaluation(run, "whole")
    (run / "evaluation" / "incomplete.json").write_text(content)
    with refused(code):
        report_training(run)


def test_records_before_format_2_have_no_sums(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    record = write_evaluation(run)
    content = {k: v for k, v in json.loads(record.read_text()).items() if k != SEAL_KEY}
    record.write_text(json.dumps(content | {"format": 1}))
    np.savez(record.with_suffix(".npz"), label=[0, 1], attack=["pgd-20"], prediction=[[1, 1]])
    (_, pgd) = read_run(run).evaluations
    found = read_predictions(pgd)
    assert found is not None
    assert [part.tolist() for part in found] == [[0, 1], [1, 1]]


def test_a_record_of_other_weights_is_refused(tmp_path: Path) -> None:
    """A run was trained again in the same folder, or its checkpoint replaced: the record is not of this one."""
    run = write_run(tmp_path / "a")
    before = write_checkpoint(run)
    record = write_evaluation(run, weights="elsewhere/last-00000078", sha256=before)
    report_training(run)
    assert write_checkpoint(run, threads=2) != before
    for read in (report_training, lambda folder: compare([folder])):
        with refused("record-other-weights", path=record, weights="last-00000078"):
            read(run)
    write_evaluation(run, weights="elsewhere/last-00000026", sha256=before)  # of a checkpoint that is removed
    (_, pgd) = read_run(run).evaluations
    assert pgd.older == "last-00000026"


def test_records_of_other_samples_are_refused(tmp_path: Path) -> None:
    """Two files of the same name may hold other samples, and their accuracies cannot be compared."""
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", seed=1)
    first = write_evaluation(a, "1", contents="11")
    write_evaluation(a, "2", contents="22", split="train")
    write_evaluation(a, "3", contents="33", seed=1)
    write_evaluation(a, "4")  # made before format 2: nobody knows
    report_training(a)
    other = write_evaluation(b, "1", contents="44")
    report_training(b)
    for read in (report_training, compare):
        with refused("record-other-samples", path=other, other=first, data="digits"):
            read([a, b], tmp_path / "out")
    write_evaluation(b, "1", contents="11")
    compare([a, b])
    other = write_evaluation(a, "5", contents="44")
    with refused("record-other-samples", path=other, other=first):
        report_training(a)


def test_predictions_of_another_record_are_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    record = write_evaluation(run)
    write_verdicts(record, {"pgd-20": [0, 0]}, [0, 1])
    content = record.read_bytes()
    write_verdicts(record, {"pgd-20": [0, 1]}, [0, 1])
    record.write_bytes(content)
    with refused("predictions-mismatch", path=record.with_suffix(".npz"), name=record.name):
        report_training(run)


def test_remarks_on_attacks_are_warnings_but_those_on_proofs_are_not(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    stages = [attack_row("certified", 0.9, remark="left out", proof=True), attack_row("fab-t", 0.25, remark="slow")]
    write_evaluation(
        run,
        attacks=[
            attack_row("pgd-20", 0.5, remark="the loss is flat"),
            attack_row("certified", 0.25, remark="interval bounds", proof=True),
            attack_row("standard", 0.25, remark="certified: left out; fab-t: slow", stages=stages),
        ],
    )
    write_curve(run, "fgsm")
    assert [remark.text for remark in read_run(run).remarks] == ["pgd-20: the loss is flat", "standard: fab-t: slow"]


def test_of_two_evaluations_on_as_many_samples_the_one_that_broke_more_counts(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    for name, accuracy in {"1": 0.5, "2": 0.25, "3": 0.375}.items():
        write_evaluation(run, name, attacks=[attack_row("pgd-20", accuracy)])
    report_training(run)
    assert read_csv(run)[0]["test pgd-20"] == "0.25"


def test_a_warning_that_a_later_evaluation_answers_disappears(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    weak = {"name": "other attacks", "result": "warning", "message": "add standard"}
    part = {"name": "all samples", "result": "warning", "message": "100 of 397"}
    first = write_evaluation(run, "1", checks=[weak])
    before = first.read_bytes()
    strong = [attack_row("standard", 0.25)]
    write_evaluation(run, "2", attacks=strong, samples=100, checks=[part, {"name": "other attacks", "result": "fine"}])
    report_training(run)
    assert [remark.text for remark in read_run(run).remarks] == ["add standard", "100 of 397"]
    for text in ("add standard", "100 of 397"):
        assert text in read_page(run)
    fine = [{"name": name, "result": "fine"} for name in ("other attacks", "all samples")]
    write_evaluation(run, "3", attacks=strong, checks=fine)
    report_training(run)
    assert read_run(run).remarks == ()
    for text in ("add standard", "100 of 397", "Warnings"):
        assert text not in read_page(run)
    assert first.read_bytes() == before
