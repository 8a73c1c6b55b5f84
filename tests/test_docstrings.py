"""Every public name says what it takes, what it returns, and shows an example that runs."""

import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from docs_site.api import ROOMS as REFERENCE
from docs_site.api import public_names
from tests.test_docs import BLOCKS

ROOMS = [
    *("sihg", "sihg.attacks", "sihg.core", "sihg.minimax", "sihg.report", "sihg.experiments", "sihg.store"),
    *(f"sihg.robust.{part}" for part in ("data", "models", "attacks", "methods", "training", "evaluation")),
]
TAUGHT = "\n".join(str(block.values[0]) for block in BLOCKS)


def missing_sections(thing: Any) -> list[str]:
    """List what a docstring lacks: "docstring", "Args", "Returns", "Example"."""
    text = inspect.getdoc(thing)
    if not text or not thing.__doc__:  # a class inherits one that is not about it
        return ["docstring"]
    if inspect.isclass(thing) and issubclass(thing, Exception):  # made by us, not by users
        return []
    needed = ["Example"]
    if _takes_arguments(thing):
        needed.append("Args")
    if inspect.isroutine(thing) and inspect.signature(thing).return_annotation not in (None, Iterator[None]):
        needed.append("Yields" if inspect.isgeneratorfunction(inspect.unwrap(thing)) else "Returns")
    return [section for section in needed if not re.search(rf"^{section}s?:$", text, re.MULTILINE)]


def _takes_arguments(thing: Any) -> bool:
    return callable(thing) and bool(inspect.signature(thing).parameters)


@pytest.mark.parametrize("room", ROOMS)
def test_public_names_are_documented(room: str) -> None:
    module = importlib.import_module(room)
    assert module.__doc__
    things = {name: getattr(module, name) for name in module.__all__}
    lacking = {name: missing_sections(thing) for name, thing in things.items() if callable(thing)}
    assert {name: sections for name, sections in lacking.items() if sections} == {}


def examples(thing: Any) -> str:
    """Return the source of the doctests in a docstring that are run."""
    found = doctest.DocTestParser().get_examples(inspect.getdoc(thing) or "")
    return "".join(example.source for example in found if not example.options.get(doctest.SKIP))


def has_example(module: ModuleType, name: str) -> bool:
    """Return whether an example that runs shows the name: in its docstring, the room's, or a page that teaches."""
    thing = getattr(module, name)
    own = examples(thing) if inspect.isclass(thing) or inspect.isroutine(thing) or inspect.ismodule(thing) else ""
    return bool(own) or any(re.search(rf"\b{re.escape(name)}\b", text) for text in (examples(module), TAUGHT))


@pytest.mark.parametrize("room", REFERENCE)
def test_every_public_name_has_an_example_that_runs(room: str) -> None:
    module = importlib.import_module(room)
    assert [name for name in public_names(room) if not has_example(module, name)] == []


def test_an_example_that_is_skipped_does_not_count() -> None:
    def shown() -> None:
        """Do nothing.

        Example:
            >>> shown()
        """

    def skipped() -> None:
        """Do nothing.

        Example:
            >>> skipped()  # doctest: +SKIP
        """

    module = ModuleType("room")
    vars(module).update(shown=shown, skipped=skipped)
    assert [has_example(module, name) for name in ("shown", "skipped")] == [True, False]


def test_a_missing_section_is_found() -> None:
    def bare(x: int) -> int:
        return x

    def half(x: int) -> int:
        """Return x.

        Args:
            x: A number.
        """
        return x

    assert missing_sections(bare) == ["docstring"]
    assert missing_sections(half) == ["Example", "Returns"]
