"""Python blocks of the README and of pages that teach run; commands have the flags they name; links lead somewhere."""

import re
import shlex
from pathlib import Path

import pytest

from sihg.cli.main import build_parser
from tests.refused import refused

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TAUGHT = [ROOT / "README.md", ROOT / "docs" / "index.md", *sorted((ROOT / "docs").glob("howto-*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in TAUGHT
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_code_runs(block: str) -> None:
    exec(compile(block, "a page", "exec"), {})


def test_every_page_that_teaches_has_code() -> None:
    assert len(BLOCKS) >= len(TAUGHT)


def commands(page: Path) -> list[list[str]]:
    """Return the words of every `sihg` command in the shell blocks of a page; variables are replaced."""
    text = "\n".join(re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
    text = text.replace("\\\n", " ")
    for name, value in re.findall(r'^(\w+)="(.*)"$', text, re.MULTILINE):
        text = text.replace(f"${name}", value)
    found = re.findall(r"^(?:\S*/)?sihg (.*)$", text, re.MULTILINE)
    return [shlex.split(words, comments=True) for words in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_have_the_flags_that_pages_name(page: Path) -> None:
    for words in commands(page):
        build_parser(words[0]).parse_args(words)


def test_a_wrong_flag_in_a_page_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```sh\nsihg train --epochs 3 \\\n  --epoch-count 3 --out runs/x  # a comment\n```\n", encoding="utf-8"
    )
    (words,) = commands(page)
    assert words == ["train", "--epochs", "3", "--epoch-count", "3", "--out", "runs/x"]
    with refused("unknown-argument", word="--epoch-count"):
        build_parser(words[0]).parse_args(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        path = page.parent / name if name else page
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path), target


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: those of its headings, as GitHub makes them, and explicit ones."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return made | set(re.findall(r'<a id="([^"]+)"', text))
