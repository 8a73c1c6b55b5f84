"""A Markdown extension: formulas between $...$ and $$...$$ become MathML, which browsers draw without a script."""

import re
from xml.etree import ElementTree

import latex2mathml.converter
from markdown import Extension, Markdown
from markdown.blockprocessors import BlockProcessor
from markdown.inlinepatterns import InlineProcessor
from markdown.util import AtomicString

INLINE = r"(?<![\\$\w])\$(?![\s$])([^$`]+?)(?<!\s)\$(?![\w$])"
BLOCK = re.compile(r"^\$\$(.+?)\$\$$", re.DOTALL)
LIMITS = {"argmax", "argmin", "max", "min"}
AFTER_BACKTICKS, BEFORE_PARAGRAPHS = 185, 15


def to_mathml(formula: str, display: str) -> ElementTree.Element:
    """Convert LaTeX; a command that the converter does not know is an error."""
    element: ElementTree.Element = latex2mathml.converter.convert_to_element(formula.strip(), display=display)
    unknown = [part.text for part in element.iter() if part.text and (part.text.startswith("\\") or part.text == "&")]
    if unknown:
        raise ValueError(
            f"the formula {formula!r} has {', '.join(unknown)}, which cannot be drawn: write it in another way"
        )
    if display == "block":  # limits stand below, as LaTeX sets them
        for part in element.iter("msub"):
            if part[0].text in LIMITS:
                part.tag = "munder"
    for part in element.iter():
        part.text = AtomicString(part.text) if part.text else part.text
    element.set("class", "formula")
    return element


class Inline(InlineProcessor):  # type: ignore[misc]  # its base is not typed
    """A formula in a line."""

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[ElementTree.Element, int, int]:  # noqa: ARG002, N802
        """Return the formula and where it stands."""
        return to_mathml(m.group(1), "inline"), m.start(0), m.end(0)


class Block(BlockProcessor):  # type: ignore[misc]  # its base is not typed
    """A formula in a paragraph of its own."""

    def test(self, parent: ElementTree.Element, block: str) -> bool:  # noqa: ARG002
        """Return whether the paragraph is a formula."""
        return BLOCK.match(block.strip()) is not None

    def run(self, parent: ElementTree.Element, blocks: list[str]) -> bool:
        """Add the formula to the page."""
        match = BLOCK.match(blocks.pop(0).strip())
        assert match is not None
        box = ElementTree.SubElement(parent, "div", {"class": "formula-box", "tabindex": "0"})
        box.append(to_mathml(match.group(1), "block"))
        return True


class MathML(Extension):  # type: ignore[misc]  # its base is not typed
    """Both kinds of formulas."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Add the two processors; code spans come first, so that a dollar in code stays."""
        md.inlinePatterns.register(Inline(INLINE), "mathml-inline", AFTER_BACKTICKS)
        md.parser.blockprocessors.register(Block(md.parser), "mathml-block", BEFORE_PARAGRAPHS)


def makeExtension(**options: object) -> MathML:  # noqa: N802
    """Return the extension; Markdown calls this."""
    return MathML(**options)
