"""The page in a real browser, headless Chromium: it opens without complaint, fits, can be read in the dark, prints."""

import json
import re
import shutil
import subprocess
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from sihg.report.training_report import report_training
from tests.report.folders import (
    attack_row,
    rows,
    write_curve,
    write_evaluation,
    write_gallery,
    write_memory,
    write_run,
    write_verdicts,
)

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")

# The report shows pages without scripts; this page opens it in a frame and measures what is there.
PROBE = """<!DOCTYPE html><html><body><script>
const of = (frame, width) => {
  const page = frame.contentDocument, view = frame.contentWindow;
  const boxes = what => [...page.querySelectorAll(what)].map(one => {
    const box = one.getBoundingClientRect();
    return [Math.round(box.width), Math.round(box.height)];
  });
  const style = what => {
    const found = view.getComputedStyle(page.querySelector(what));
    return [found.color, found.backgroundColor];
  };
  return {
    width, scroll: page.documentElement.scrollWidth, client: page.documentElement.clientWidth,
    tables: boxes("table"), figures: boxes("figure svg"), headings: boxes("h1, h2").length,
    body: style("body"), quiet: style(".note"), caption: style("figcaption"), figure: style("figure"),
    cell: style("td"), head: style("thead th"),
  };
};
const frames = [390, 1280].map(width => {
  const frame = document.createElement("iframe");
  frame.style.cssText = `border:0;width:${width}px;height:900px`;
  frame.src = "index.html";
  document.body.append(frame);
  return new Promise(done => frame.addEventListener("load", () => done([frame, width])));
});
Promise.all(frames).then(all => {
  const found = document.createElement("pre");
  found.id = "found";
  found.textContent = JSON.stringify(all.map(([frame, width]) => of(frame, width)));
  document.body.append(found);
});
</script></body></html>
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with all that a report can have, and names that are hard on it."""
    folder = tmp_path_factory.mktemp("browser") / "runs"
    for method in ("msi-hg", "pgd", "a-method-whose-name-is-very-long-indeed"):
        for seed in range(3):
            done = rows([0.5, 0.7, 0.9], [0.1 + 0.1 * seed, 0.3, 0.4])
            warnings = ["a warning " + "long" * 40]
            run = write_run(folder / f"{method}-s{seed}", done, method=method, seed=seed, warnings=warnings)
            attacks = [attack_row("natural", 0.9 + 0.01 * seed), attack_row("pgd-20", 0.4 + 0.1 * seed)]
            record = write_evaluation(run, attacks=attacks)
            write_verdicts(record, {"natural": [0, 1], "pgd-20": [0, 0]}, [0, 1])
            write_curve(run)
            write_gallery(run)
            write_memory(run)
    report_training(folder)
    (folder / "probe.html").write_text(PROBE)
    return folder


def chromium(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    profile = folder.parent / "profile"
    usual = ["--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--hide-scrollbars"]
    usual += [f"--user-data-dir={profile}", "--enable-logging=stderr", "--virtual-time-budget=5000"]
    command = [str(CHROMIUM), *usual, *options]
    return subprocess.run(command, capture_output=True, text=True, check=True)


@cache
def measured(folder: Path, *, dark: bool) -> list[dict[str, Any]]:
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    done = chromium(folder, *scheme, "--dump-dom", (folder / "probe.html").as_uri())
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr
    measured: list[dict[str, Any]] = json.loads(unescape(found[1]))
    return measured


def contrast(colours: list[str]) -> float:
    """The contrast of two colours, from 1 to 21, as WCAG has it; text needs 4.5."""

    def light(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted(light(colour) for colour in colours)
    return (high + 0.05) / (low + 0.05)


def test_it_opens_without_complaint(folder: Path) -> None:
    done = chromium(folder, "--dump-dom", (folder / "index.html").as_uri())
    assert "<h1>runs</h1>" in done.stdout
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []


def test_tables_and_figures_are_visible_at_any_width(folder: Path) -> None:
    for page in measured(folder, dark=False):
        assert page["client"] == page["width"]
        assert len(page["tables"]) == 7  # results, differences, training, two of trials, evaluations, settings
        assert len(page["figures"]) == 8
        shown = [*page["figures"], *(table for table in page["tables"] if table != [0, 0])]
        assert len(shown) >= 12  # two tables may be folded
        assert all(width > 150 and height > 40 for width, height in shown)
        assert all(width <= page["width"] for width, _ in page["figures"])


def test_the_page_never_scrolls_sideways(folder: Path) -> None:
    for page in measured(folder, dark=False):
        assert page["scroll"] <= page["width"]


@pytest.mark.parametrize("dark", [False, True])
def test_it_can_be_read(folder: Path, dark: bool) -> None:
    for page in measured(folder, dark=dark):
        ground = page["body"][1]
        assert (contrast([ground, "rgb(0, 0, 0)"]) < 3) is dark
        for text in ("body", "quiet", "cell"):
            assert contrast([page[text][0], ground]) >= 4.5
        assert contrast(page["head"]) >= 4.5
        assert contrast([page["caption"][0], page["figure"][1]]) >= 4.5


def test_it_prints(folder: Path) -> None:
    file = folder.parent / "page.pdf"
    chromium(folder, f"--print-to-pdf={file}", "--no-pdf-header-footer", (folder / "index.html").as_uri())
    data = file.read_bytes()
    assert data.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", data)) <= 20
