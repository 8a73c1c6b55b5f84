"""The parts of a page: warnings, colours of figures, the only script that may run, commands."""

import base64
import hashlib
import re
from pathlib import Path

from sihg.report import report
from sihg.report.figures.interactive import entry_key
from sihg.report.page.page_figures import DrawnFigure, image, themed
from sihg.report.page.page_warnings import page_warnings
from sihg.report.read.evaluations import Remark
from sihg.report.training_report import report_training
from sihg.store.schema import write_toml
from tests.report.folders import attack_row, read_page, write_curve, write_evaluation, write_run

ENTRIES = {"m": ["m-s0", "m-s1"], "p": ["p-s0"]}


def test_warnings_are_grouped_by_their_check() -> None:
    remarks = [
        ("m-s0", Remark("add square", "no black box", "record")),
        ("m-s1", Remark("add square", "no black box", "record")),
        ("p-s0", Remark("add square", "no black box", "other")),
        ("m-s0", Remark("3 of 9 lost", "samples")),
        ("m-s1", Remark("4 of 9 lost", "samples")),
        ("p-s0", Remark("loss is high")),
    ]
    found = page_warnings(remarks, ENTRIES)
    assert [(group.check, [(list(one.names), one.text) for one in group.warnings]) for group in found] == [
        ("no black box", [(["all"], "add square")]),
        ("samples", [(["m"], "3 of 9 lost (m-s0; the others have other numbers)")]),
        ("", [(["p"], "loss is high")]),
    ]
    assert not any(group.is_error for group in found)
    assert page_warnings([("m-s0", Remark("error: too few", "samples"))], ENTRIES)[0].is_error


def test_a_part_of_an_entry_is_named_by_its_run() -> None:
    (group,) = page_warnings([("m-s1", Remark("lost"))], ENTRIES)
    assert list(group.warnings[0].names) == ["m-s1"]


def test_only_our_own_script_may_run(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    report(tmp_path)
    (script,) = re.findall(r"<script>(.*?)</script>", read_page(tmp_path), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'" in read_page(
        tmp_path
    )


def test_colours_of_a_figure_become_those_of_the_page(tmp_path: Path) -> None:
    ground, ink, entry = '<path style="fill: #ffffff"/>', '<path style="fill: #1f2328"/>', entry_key("pgd")
    line = f'<g id="{entry}-3"><path style="stroke: #0072b2"/><path style="fill: #ffffff"/></g>'
    svg = tmp_path / "curves.svg"
    svg.write_text(
        f'<?xml?><svg xmlns="http://www.w3.org/2000/svg">{ground}{ink}{line}<path style="fill: #123456"/></svg>'
    )
    shown = image(DrawnFigure(svg, svg, "Curves <1>", ""))
    assert shown.startswith('<svg role="img" aria-label="Curves &lt;1&gt;"')
    assert re.findall(r'style="(.*?)"', shown) == [
        "fill: none",
        "fill: var(--ink)",
        "stroke: var(--on-dark-0072b2, #0072b2)",
        "fill: #ffffff",
        "fill: #123456",
    ]
    assert f'id="curves_{entry}-3" data-entry="{entry}"' in shown
    assert themed("#000000") == "#000000"


def test_a_run_says_how_to_make_it_again(tmp_path: Path) -> None:
    run = write_run(tmp_path / "my run")
    write_evaluation(run, samples=100, attacks=[attack_row("natural", 0.9, 100), attack_row("pgd-20", 0.5, 100)])
    write_curve(run, checkpoint="best")
    report(run)
    page = read_page(run)
    assert "sihg train --config config.toml --out &#39;my run&#39;" in page
    assert "sihg evaluate &#39;my run&#39; --attacks natural,pgd-20 --samples 100" in page
    assert "sihg evaluate &#39;my run&#39; --attacks pgd-20 --curve 0:0.2:3 --checkpoint best" in page


def test_what_records_name_is_quoted_in_commands(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    write_evaluation(run, attacks=[attack_row("a.py:A; reboot", 0.5)])
    report(run)
    assert "--attacks &#39;a.py:A; reboot&#39;" in read_page(run)


def test_a_grid_says_its_own_command(tmp_path: Path) -> None:
    write_run(tmp_path / "pgd-s0", method="pgd")
    grid = {"attacks": ["natural"], "test_samples": "all", "threads": 1, "methods": {"pgd": {}}}
    command = "sihg reproduce digits --methods pgd --trials 1"
    write_toml(tmp_path / "grid.toml", {**grid, "command": command})
    report(tmp_path)
    assert command in read_page(tmp_path)
    write_toml(tmp_path / "grid.toml", grid)  # of an earlier version, or made in Python
    report_training(tmp_path)
    assert "sihg train --config config.toml --out pgd-s0" in read_page(tmp_path)
