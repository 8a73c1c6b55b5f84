"""Copy pages to where the site is built from, with links that lead to pages of the site.

A link from `docs/` to another file of the repository leads to a page that shows the file: `project/` has Markdown,
`source/` has code and archives. Notebooks become pages. Drawings of `docs/pictures` become part of the page.
"""

import os
import re
import shutil
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
OUT = ROOT / "build" / "docs"
CODE_OR_LINK = re.compile(
    r"(?P<code>^(?P<fence>```+).*?^(?P=fence)\s*$|`[^`\n]+`)|\]\((?P<target>[^)\s]+)\)", re.MULTILINE | re.DOTALL
)
BINARY = {".zip"}  # files that are downloaded, not shown
DRAWING = re.compile(r"!\[(?P<title>[^\]]*)\]\((?P<path>(?:\.\./)*pictures/[^)\s]+\.svg)\)")


def place(path: PurePosixPath) -> PurePosixPath:
    """Return where a file of the repository is in the site.

    Example:
        >>> [str(place(PurePosixPath(path))) for path in ("docs/a.md", "docs/t/b.ipynb", "LICENSE", "tests/c.py")]
        ['a.md', 't/b.md', 'source/LICENSE.md', 'source/tests/c.py.md']
    """
    if path.parts[0] == "docs":
        inside = path.relative_to("docs")
        return inside.with_suffix(".md") if path.suffix == ".ipynb" else inside
    if path.suffix == ".md":
        return PurePosixPath("project", path)
    return PurePosixPath("source", path if path.suffix in BINARY else f"{path}.md")


class Site:
    """The pages made so far, and the files outside `docs/` that they link to."""

    def __init__(self) -> None:
        self.made: set[PurePosixPath] = set()
        self.wanted: set[PurePosixPath] = set()

    def add(self, path: PurePosixPath, text: str) -> None:
        """Write the page of the file `path` of the repository, whose Markdown is `text`."""
        write(place(path), self._with_links(path, self._with_pictures(path, text)))
        self.made.add(path)

    def add_linked_files(self) -> None:
        """Write a page for each file outside `docs/` that a page links to."""
        while missing := sorted(self.wanted - self.made):
            for path in missing:
                self.made.add(path)
                if path.suffix in BINARY:
                    (OUT / place(path)).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(ROOT / path, OUT / place(path))
                    continue
                if (ROOT / path).is_dir():
                    self.add(path, self._listing(path))
                    continue
                text = (ROOT / path).read_text(encoding="utf-8")
                if path.suffix == ".md":
                    self.add(path, text)
                    continue
                language = {".py": "python", ".toml": "toml"}.get(path.suffix, "text")
                write(place(path), f"# {path.name}\n\n`{path}`\n\n````{language}\n{text}````\n")

    def _listing(self, folder: PurePosixPath) -> str:
        names = sorted(file.name for file in (ROOT / folder).iterdir() if file.is_file())
        return "\n".join([f"# {folder}", "", *(f"- [{name}]({folder.name}/{name})" for name in names), ""])

    def _with_links(self, path: PurePosixPath, text: str) -> str:
        def replaced(match: re.Match[str]) -> str:
            target = match.group("target")
            return match.group(0) if target is None else f"]({self._moved(path, target)})"

        return CODE_OR_LINK.sub(replaced, text)

    def _moved(self, path: PurePosixPath, target: str) -> str:
        name, hash_, anchor = target.partition("#")
        if not name or ":" in name:
            return target
        there = PurePosixPath(os.path.normpath(path.parent / name))
        if there.parts[0] != "docs" and (ROOT / there).exists():
            self.wanted.add(there)
        return f"{os.path.relpath(place(there), place(path).parent)}{hash_}{anchor}"

    def _with_pictures(self, path: PurePosixPath, text: str) -> str:
        def drawn(match: re.Match[str]) -> str:
            svg = (ROOT / path.parent / match.group("path")).read_text(encoding="utf-8")
            return f'<figure class="picture" tabindex="0" markdown="0">\n{svg.strip()}\n</figure>'

        return DRAWING.sub(drawn, text)


def write(place: PurePosixPath, text: str) -> None:
    """Write a page of the site; a page that has not changed keeps its time, so that a server does not reload it."""
    file = OUT / place
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        file.write_text(text, encoding="utf-8")


def copy_assets() -> None:
    """Copy what pages show and use: figures, style sheets, scripts."""
    for file in sorted(DOCS.rglob("*")):
        if file.suffix in {".png", ".svg", ".css", ".js"}:
            (OUT / file.relative_to(DOCS)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, OUT / file.relative_to(DOCS))
