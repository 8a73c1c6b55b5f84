"""An extension of griffe, which reads docstrings: sections begin after a blank line, and examples are `Examples:`."""

import re

import griffe

SECTION = re.compile(r"(?<=\S)\n(?=[ ]*(?:Args|Returns|Yields|Raises|Example):\n)")


class Sections(griffe.Extension):  # type: ignore[misc]  # its base is not typed
    """Write sections as griffe expects them."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Change the docstring of an object that was just read."""
        if obj.docstring is not None:
            spaced = SECTION.sub("\n\n", obj.docstring.value)
            obj.docstring.value = re.sub(r"^( *)Example:$", r"\1Examples:", spaced, flags=re.MULTILINE)
