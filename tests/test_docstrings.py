"""Every public name says what it takes, what it returns, and shows an example that runs."""

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

ROOMS = [
    *("sihg", "sihg.attacks", "sihg.core", "sihg.minimax", "sihg.report", "sihg.experiments", "sihg.store"),
    *(f"sihg.robust.{part}" for part in ("data", "models", "attacks", "methods", "training", "evaluation")),
]
# Rooms in which every public name is complete.
NOT_READY: set[str] = set()


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
def test_public_names_are_documented(room: str, request: pytest.FixtureRequest) -> None:
    if room in NOT_READY:
        request.applymarker(pytest.mark.xfail(strict=False))
    module = importlib.import_module(room)
    assert module.__doc__
    things = {name: getattr(module, name) for name in module.__all__}
    lacking = {name: missing_sections(thing) for name, thing in things.items() if callable(thing)}
    assert {name: sections for name, sections in lacking.items() if sections} == {}


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
