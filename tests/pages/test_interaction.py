"""What the script of a page does: sorting, hiding entries, values under the pointer, copying."""

from collections.abc import Callable
from typing import Any

OpenPage = Callable[..., Any]


def names(page: Any) -> list[str]:
    found: list[str] = page.locator("table").first.locator("tbody th:visible").all_inner_texts()
    return [name.strip() for name in found]


def test_a_click_on_a_heading_sorts(open_page: OpenPage) -> None:
    page = open_page("reproduction")
    heading = page.locator("table").first.locator("thead th").nth(1)
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert names(page) == ["msi-hg", "pgd", "natural"]
    heading.locator("button").press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert names(page) == ["natural", "pgd", "msi-hg"]
    page.locator("table").first.locator("thead th").first.locator("button").click()
    assert heading.get_attribute("aria-sort") is None
    assert names(page) == ["pgd", "natural", "msi-hg"]


def test_a_number_is_sorted_by_its_value_and_not_by_its_text(open_page: OpenPage) -> None:
    page = open_page("solve")
    table = page.locator("table").first
    table.locator("thead th", has_text="average").locator("button").click()
    values = [
        float(text) for text in table.locator("tbody td:nth-child(3) data").evaluate_all("all => all.map(d => d.value)")
    ]
    assert values == sorted(values, reverse=True)


def test_an_entry_can_be_hidden_in_figures_and_tables(open_page: OpenPage) -> None:
    page = open_page("reproduction")
    button = page.get_by_role("button", name="pgd", exact=True)
    key = button.get_attribute("data-toggle")
    curves = page.locator(f'figure [data-entry="{key}"]')
    assert curves.count() > 10
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert names(page) == ["msi-hg", "natural"]
    assert not any(curve.is_visible() for curve in curves.all()[:10])
    button.press("Space")
    assert button.get_attribute("aria-pressed") == "true"
    assert "pgd" in names(page)


def test_a_page_of_one_run_has_nothing_to_hide(open_page: OpenPage) -> None:
    assert open_page("run").locator(".toggles").count() == 0


def test_the_pointer_shows_the_value_of_the_nearest_point(open_page: OpenPage) -> None:
    page = open_page("reproduction")
    point = page.locator('.values circle[data-text^="msi-hg, robust: 6"]').nth(4)
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2 + 3, box["y"] + box["height"] / 2)
    tip = page.locator(".tip")
    assert tip.is_visible()
    assert tip.inner_text() == "msi-hg, robust: 61.0 % (60.0 to 62.0)"
    page.mouse.move(2, 2)
    assert not tip.is_visible()


def test_a_command_can_be_copied(open_page: OpenPage) -> None:
    page = open_page("solve", permissions=["clipboard-read", "clipboard-write"])
    command = page.locator("pre", has_text="sihg solve")
    command.locator("xpath=preceding-sibling::button[1]").click()
    page.get_by_role("button", name="Copied").or_(page.get_by_role("button", name="Selected")).wait_for()
    assert command.inner_text() == "sihg solve forsaken --out out"
