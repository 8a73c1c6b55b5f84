"""The pages of the site: links, pictures, formulas and outputs. `make docs` builds the site itself, strictly."""

from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from docs_site import notebooks, pages, pictures
from docs_site.pages import DOCS, ROOT, Site, place


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pages, "OUT", tmp_path)
    monkeypatch.setattr(notebooks, "OUT", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "page"),
    [
        ("docs/a.md", "a.md"),
        ("docs/tutorials/b.ipynb", "tutorials/b.md"),
        ("CONTRIBUTING.md", "project/CONTRIBUTING.md"),
        ("tests/c.py", "source/tests/c.py.md"),
        ("results/d.zip", "source/results/d.zip"),
    ],
)
def test_where_a_file_is_in_the_site(file: str, page: str) -> None:
    assert str(place(PurePosixPath(file))) == page


def test_links_lead_to_pages_of_the_site(out: Path) -> None:
    site = Site()
    text = "[a](../LICENSE) [b](tutorials/report.ipynb#x) [c](#here) [d](https://e.org) `[e](../f.py)`\n"
    site.add(PurePosixPath("docs/page.md"), text)
    site.add_linked_files()
    found = (out / "page.md").read_text(encoding="utf-8")
    links = "[a](source/LICENSE.md) [b](tutorials/report.md#x) [c](#here) [d](https://e.org) `[e](../f.py)`\n"
    assert found == links
    assert "Apache License" in (out / "source" / "LICENSE.md").read_text(encoding="utf-8")


def test_drawings_become_part_of_the_page(out: Path) -> None:
    Site().add(PurePosixPath("docs/page.md"), "![The loop](pictures/msi-hg.svg)\n")
    assert "<svg" in (out / "page.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("drawing", [pictures.house, pictures.msi_hg], ids=lambda draw: draw.__name__)
def test_pictures_are_as_the_code_draws_them(drawing: Any) -> None:
    """If this fails after a change of imports: python -m docs_site.pictures."""
    made = drawing()
    assert (DOCS / "pictures" / f"{made.name}.svg").read_text(encoding="utf-8") == made.svg()


def test_the_picture_of_the_house_has_every_room() -> None:
    rooms = {path.name for path in (ROOT / "src" / "sihg").iterdir() if (path / "__init__.py").is_file()}
    drawn = pictures.house().svg()
    assert {room for room in rooms if f">{room}<" not in drawn} == set()


def test_outputs_of_a_cell_become_one_block(out: Path) -> None:
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["one\n"]},
        {"output_type": "stream", "name": "stderr", "text": ["progress"]},
        {"output_type": "execute_result", "data": {"text/plain": "two"}},
        {"output_type": "display_data", "data": {"text/plain": "<Figure>", "image/png": "AAAA"}},
    ]
    cells = [
        {"cell_type": "markdown", "source": "# Title\n\nText."},
        {"cell_type": "code", "source": "long()", "metadata": {"tags": ["remove-output"]}, "outputs": outputs},
        {"cell_type": "code", "source": "# a figure\nplot()", "metadata": {}, "outputs": outputs},
    ]
    page = notebooks.as_markdown({"cells": cells}, PurePosixPath("docs/tutorials/n.ipynb"))
    assert 'title="Output" }\none\ntwo\n```' in page
    assert "progress" not in page
    assert page.count("one") == 1
    assert "![a figure](n-1.png)" in page
    assert (out / "tutorials" / "n-1.png").read_bytes() == b"\0\0\0"
    assert (out / "tutorials" / "n.ipynb").exists()


def test_formulas_become_mathml() -> None:
    markdown = pytest.importorskip("markdown")
    pytest.importorskip("latex2mathml")
    text = "Cost $n + 1$, `$HOME` and $5.\n\n$$\\min_w f(w)$$\n"
    page = markdown.markdown(text, extensions=["docs_site.mathml"])
    assert page.count("<math") == 2
    assert "<code>$HOME</code> and $5." in page
    assert "<munder>" in page
    with pytest.raises(ValueError, match="arg"):
        markdown.markdown("$\\arg x$", extensions=["docs_site.mathml"])
