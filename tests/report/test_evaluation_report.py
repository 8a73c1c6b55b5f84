"""The report on evaluations that belong to no run, as `Evaluation.save` leaves them."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from sihg.cli.main import main
from sihg.report import report
from sihg.report.evaluation_report import report_evaluations
from tests.refused import refused
from tests.report.folders import (
    attack_row,
    numbers,
    read_csv,
    read_page,
    write_curve,
    write_evaluation,
    write_gallery,
)

SAVED: dict[str, Any] = {"checkpoint": "Sequential", "split": "", "weights": "", "data": "mine"}
NET = """
from torch import nn

def make(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
"""
EVIL = "<script>alert(1)</script>"


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw few pixels, which is faster."""
    monkeypatch.setattr("sihg.report.figures.style.DOTS_PER_INCH", 40)


def test_every_record_is_on_the_page(tmp_path: Path) -> None:
    write_evaluation(tmp_path, "first", **SAVED)
    rows = [attack_row("fgsm", 0.5), attack_row("all", 0.5), attack_row("certified", 0.25, proof=True)]
    write_evaluation(tmp_path, "second", **SAVED, attacks=rows)
    write_curve(tmp_path, name="radii", **SAVED)
    write_gallery(tmp_path)
    written = report(tmp_path)
    names = [f"report/{name}.{kind}" for name in ("bars", "radius-1", "gallery-1") for kind in ("svg", "pdf")]
    names += [f"report/evaluations.{kind}" for kind in ("csv", "md", "tex")]
    assert [path.relative_to(tmp_path).as_posix() for path in written] == [*names, "index.html"]
    found = [(row["record"], row["attack"], float(row["accuracy"])) for row in read_csv(tmp_path, "evaluations")]
    assert found == [
        ("first", "natural", 0.96875),
        ("first", "pgd-20", 0.4375),
        ("second", "fgsm", 0.5),
        ("second", "all of fgsm", 0.5),
        ("second", "certified", 0.25),
    ]
    second = read_csv(tmp_path, "evaluations")[1]
    assert (second["low"], second["high"], second["samples"], second["passes"]) == ("0.4", "0.5", "397", "12.5")
    page = read_page(tmp_path)
    assert {0.96875, 0.4375, 0.5, 0.25} <= numbers(page)
    for text in ("3 records", "model Sequential", "data mine", "all: the samples that no attack", "proven: a lower"):
        assert text in page
    assert page.count("<svg") == 3
    assert ElementTree.parse(tmp_path / "report" / "radius-1.svg").getroot().tag.endswith("svg")


def test_records_directly_in_the_folder_are_on_the_page(tmp_path: Path) -> None:
    torch.save(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)).state_dict(), tmp_path / "mine.pt")
    (tmp_path / "nets.py").write_text(NET)
    net = ["--model", f"{tmp_path / 'nets.py'}:make", "--data", "digits", "--eps", "0.1", "--samples", "20"]
    out = tmp_path / "theirs"
    assert main(["evaluate", str(tmp_path / "mine.pt"), *net, "--attacks", "natural,fgsm", "--out", str(out)]) == 0
    (out / "notes.json").write_text("[]")  # not a record
    report(out)
    assert [row["attack"] for row in read_csv(out, "evaluations")] == ["natural", "fgsm", "all of natural, fgsm"]
    assert "1 record" in read_page(out)


def test_the_share_of_targeted_attacks_is_called_no_accuracy(tmp_path: Path) -> None:
    write_evaluation(tmp_path, "towards", **SAVED, target="class 3", rule="any iterate, targeted at class 3")
    report(tmp_path)
    page = read_page(tmp_path)
    assert "not the target\N{NO-BREAK SPACE}%</th>" in page
    assert "accuracy\N{NO-BREAK SPACE}%" not in page
    write_evaluation(tmp_path, "away", **SAVED)
    report(tmp_path)
    page = read_page(tmp_path)
    assert "accuracy; targeted: not the target,\N{NO-BREAK SPACE}%</th>" in page
    assert "targeted: the share of samples that are not turned into the target" in page


def test_curves_alone_have_a_page_without_a_table(tmp_path: Path) -> None:
    write_curve(tmp_path, **SAVED)
    assert [path.name for path in report(tmp_path)] == ["radius-1.svg", "radius-1.pdf", "index.html"]
    assert "<table" not in read_page(tmp_path)


def test_warnings_name_their_check_and_record(tmp_path: Path) -> None:
    checks = [
        {"name": "one step: pgd-20", "result": "warning", "message": "one step breaks more"},
        {"name": "samples", "result": "error", "message": "too few"},
        {"name": "restarts", "result": "fine", "message": "restarts add nothing"},
        {"name": "transfer", "result": "not run", "message": "no other model"},
    ]
    write_evaluation(tmp_path, "a", **SAVED, checks=checks)
    report_evaluations(tmp_path)
    page = read_page(tmp_path)
    assert '<b>one step: pgd-20</b>: one step breaks more <span class="quiet">(a)</span>' in page
    assert '<b>samples</b>: error: too few <span class="quiet">(a)</span>' in page
    assert '<details class="warnings" open>' in page  # because of the error
    assert "restarts add nothing" not in page
    assert "<summary>Checks that were not run, and why</summary>" in page
    assert page.index("transfer: no other model") > page.index("<summary>Checks that were not run")


def test_notes_on_a_model_from_elsewhere_are_shown(tmp_path: Path) -> None:
    write_evaluation(tmp_path, **SAVED, notes=["removed the prefix 'module.' from 5 names"])
    report(tmp_path)
    assert "removed the prefix &#39;module.&#39; from 5 names" in read_page(tmp_path)


def test_text_from_outside_is_escaped(tmp_path: Path) -> None:
    evil = {**SAVED, "data": EVIL, "checkpoint": EVIL, "norm": EVIL, "rule": EVIL, "notes": [EVIL]}
    checks = [{"name": EVIL, "result": "warning", "message": EVIL}]
    write_evaluation(tmp_path, **evil, attacks=[attack_row(EVIL, 0.5, remark=EVIL)], checks=checks)
    report(tmp_path)
    assert read_page(tmp_path).count("<script") == 1  # ours
    assert read_page(tmp_path).count("&lt;script&gt;") >= 8


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    write_evaluation(tmp_path, **SAVED)
    write_curve(tmp_path, **SAVED)
    first = {path: path.read_bytes() for path in report(tmp_path)}
    assert {path: path.read_bytes() for path in report(tmp_path)} == first


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    write_evaluation(tmp_path, **SAVED)
    (tmp_path / "evaluation" / "torn.json").write_text("{")
    with refused("record-unreadable", path=tmp_path / "evaluation" / "torn.json"):
        report(tmp_path)
    assert not (tmp_path / "index.html").exists()


def test_several_folders_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    write_evaluation(tmp_path / "good", **SAVED)
    (tmp_path / "empty").mkdir()
    with refused("no-results", folder=tmp_path / "empty"):
        report([tmp_path / "good", tmp_path / "empty"])
    with refused("not-a-folder", folder=tmp_path / "nowhere"):
        report([tmp_path / "good", tmp_path / "nowhere"])
    assert not (tmp_path / "good" / "index.html").exists()


def test_a_long_name_of_a_row_may_wrap(tmp_path: Path) -> None:
    write_evaluation(tmp_path, "small-cnn_digits_natural+pgd-20_<b>", **SAVED)
    write_evaluation(tmp_path, "b", **SAVED, attacks=[attack_row("fgsm", 0.5)])
    report_evaluations(tmp_path)
    assert "</span>small-cnn_<wbr>digits_<wbr>natural+<wbr>pgd-20_<wbr>&lt;b&gt;</th>" in read_page(tmp_path)
