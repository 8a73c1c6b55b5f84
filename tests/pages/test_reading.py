"""Every kind of page in a browser: it fits a desk and a phone, reads in light and dark, prints, and is accessible."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.pages.conftest import KINDS

OpenPage = Callable[..., Any]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_never_scrolls_sideways(open_page: OpenPage, kind: str, width: int) -> None:
    page = open_page(kind, width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    sizes = page.eval_on_selector_all(
        "figure > svg, figure > img",
        "all => all.filter(f => f.checkVisibility()).map(f => f.getBoundingClientRect().width)",
    )
    assert sizes
    assert all(150 < size <= width for size in sizes)


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_table_fits_a_desk(open_page: OpenPage, kind: str) -> None:
    page = open_page(kind)
    assert (
        page.evaluate("(() => { const s = document.querySelector('.scroll'); return s.scrollWidth - s.clientWidth })()")
        == 0
    )


def test_a_phone_shows_robust_and_clean_accuracy_beside_the_name(open_page: OpenPage) -> None:
    page = open_page("reproduction", 390)
    headings = page.locator(".scroll").first.locator("thead th")
    assert [re.sub(r"\s*%$", "", text.strip()) for text in headings.all_inner_texts()[:3]] == [
        "entry",
        "pgd\N{NON-BREAKING HYPHEN}20",
        "clean",
    ]
    box = headings.nth(2).bounding_box()
    assert box["x"] + box["width"] <= 390
    page.evaluate("document.querySelector('.scroll').scrollLeft = 60")
    assert page.locator("tbody th").first.bounding_box()["x"] < 20  # the name stays


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(open_page: OpenPage, kind: str, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core is missing: make test-pages")
    page = open_page(kind, color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    found = axe.Axe().run(page).response["violations"]
    serious = [
        (one["id"], [node["html"][:150] for node in one["nodes"][:3]])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == []


@pytest.mark.parametrize("kind", KINDS)
def test_figures_follow_the_dark_scheme(open_page: OpenPage, kind: str) -> None:
    lightness = {}
    for scheme in ("light", "dark"):
        page = open_page(kind, color_scheme=scheme)
        colours = page.evaluate(
            """() => [...document.querySelectorAll("figure svg")].map(svg => {
              const text = svg.querySelector("g[id*='text_'] g");
              const ground = svg.querySelector("path");
              return [getComputedStyle(text).fill, getComputedStyle(ground).fill];
            })"""
        )
        assert all(ground == "none" for _, ground in colours)
        lightness[scheme] = [sum(map(int, re.findall(r"\d+", ink)[:3])) for ink, _ in colours]
    assert max(lightness["light"]) < 400 < min(lightness["dark"])


@pytest.mark.parametrize("kind", KINDS)
def test_without_scripts_the_page_says_the_same(open_page: OpenPage, kind: str) -> None:
    with_scripts, without = open_page(kind), open_page(kind, java_script_enabled=False)
    tables = [
        re.sub(r"\s+", " ", " ".join(page.locator("table").all_text_contents())) for page in (with_scripts, without)
    ]
    assert tables[0] == tables[1]
    if kind != "profile":  # whose figures show no single values
        assert without.locator(".values circle > title").count() > 0


def test_a_page_prints(open_page: OpenPage) -> None:
    data = open_page("reproduction").pdf()
    assert data.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", data)) <= 20
