"""Pages of every kind, and a browser to open them in; without Playwright or Chromium the tests are skipped."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sihg.report import report
from sihg.report.training_report import report_training
from sihg.store.schema import write_record
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
from tests.report.solve_folders import write_solve
from tests.store.test_profile_records import COSTS, made

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
KINDS = ("reproduction", "run", "comparison", "solve", "profile", "evaluations")


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each kind, with all that it can have, and names that are hard on it."""
    home = tmp_path_factory.mktemp("pages")
    for method in ("natural", "pgd", "msi-hg"):
        for seed in range(2):
            _full_run(home / "reproduction" / f"{method}-s{seed}", method, seed)
    _full_run(home / "run", "msi-hg", 0)
    for folder in ("reproduction", "run"):
        report(home / folder)
    names = ["a-method-whose-name-is-very-long-indeed", "plain_" * 8, *(f"variant-{i}" for i in range(6))]
    runs = [write_run(home / "runs" / name, method=name, warnings=["a warning " + "long" * 40]) for name in names]
    for run in runs:
        write_evaluation(run)
    report_training(runs, home / "comparison")
    decay: list[float | None] = [2.0 / (k + 1) ** 2 for k in range(41)]
    histories = {"ssi-hg": decay, "eg+": [v and v / 3 for v in decay]}
    solve = write_solve(home / "solve", histories, plane=True, changes={"eg+": {"warnings": ["lower tau"]}})
    report(solve)
    (home / "profile").mkdir()
    single = {problem: {method: own[:1] for method, own in row.items()} for problem, row in COSTS.items()}
    write_record(home / "profile" / "profile.json", made(single, starts=0))
    report(home / "profile")
    checks = [{"name": "no black box", "result": "warning", "message": "add square"}]
    write_evaluation(home / "evaluations", "a", checks=checks)
    write_curve(home / "evaluations")
    write_gallery(home / "evaluations")
    report(home / "evaluations")
    return {kind: home / kind / "index.html" for kind in KINDS}


def _full_run(path: Path, method: str, seed: int) -> None:
    robust = 0.0 if method == "natural" else 0.5 if method == "pgd" else 0.6
    done = rows(
        [0.5, 0.7, 0.9], [robust / 3, robust / 2, robust], passes={"natural": 1.0, "pgd": 11.0}.get(method, 6.0)
    )
    run = write_run(path, done, method=method, seed=seed)
    checks = [{"name": "no black box", "result": "warning", "message": "no black-box attack was run: add square"}]
    attacks = [attack_row("natural", 0.9 + 0.01 * seed), attack_row("pgd-20", robust + 0.02 * seed)]
    record = write_evaluation(run, attacks=attacks, checks=checks)
    label = np.arange(40) % 4
    found = np.where(np.arange(40) % 3 > 0, label, 3 - label)
    write_verdicts(record, {"natural": label.tolist(), "pgd-20": found.tolist()}, label.tolist())
    write_curve(run, eps=[0.0, 0.2, 0.4])
    write_gallery(run)
    write_memory(run)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is missing: `make test-pages` installs it"
    )
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Any, pages: dict[str, Path]) -> Iterator[Callable[..., Any]]:
    """Open a page of a kind; fail at the end if it said anything on the console or asked for a file."""
    contexts: list[Any] = []
    said: list[str] = []
    asked: list[str] = []

    def opened(kind: str, width: int = 1280, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(pages[kind].as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert said == []
    assert set(asked) <= {path.as_uri() for path in pages.values()}
