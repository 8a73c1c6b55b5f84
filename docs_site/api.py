"""Write the pages of the Python reference: which names each room has; mkdocstrings fills in the docstrings."""

import importlib
import inspect
from dataclasses import dataclass
from pathlib import PurePosixPath
from pprint import pformat
from types import ModuleType
from typing import Any

from docs_site.pages import write

# A name that several rooms have is described in the first of them.
ROOMS = [
    *("sihg.minimax", "sihg.minimax.zoo", "sihg.minimax.measure", "sihg.minimax.step_sizes", "sihg.core"),
    *(f"sihg.robust.{part}" for part in ("data", "models", "threat", "attacks", "memory", "methods", "training")),
    *("sihg.robust.evaluation", "sihg.attacks", "sihg.experiments", "sihg.report", "sihg.formats", "sihg.store"),
    "sihg.errors",
    "sihg",
]


@dataclass(frozen=True)
class Entry:
    """A public name, and the room whose page describes it."""

    room: str
    name: str
    thing: Any

    @property
    def anchor(self) -> str:
        """Return where it is defined; a name of a room may also be that of a module, such as sihg.core.hybrid."""
        if _has_docstring(self.thing):
            return f"{self.thing.__module__}.{self.thing.__qualname__}"
        return f"{self.room}.{self.name}"

    @property
    def link(self) -> str:
        """Return a link from one page of the reference to the description."""
        page = self.thing.__name__ if isinstance(self.thing, ModuleType) else self.room
        anchor = "" if isinstance(self.thing, ModuleType) else f"#{self.anchor}"
        return f"[`{self.name}`]({page}.md{anchor})"

    @property
    def summary(self) -> str:
        """Return the first line of the docstring; of a value its type."""
        if isinstance(self.thing, ModuleType) or _has_docstring(self.thing):
            return (inspect.getdoc(self.thing) or "").partition("\n")[0].replace("|", "\\|")
        return f"a {type(self.thing).__name__}"

    def describe(self) -> str:
        """Return what the page has: a directive for mkdocstrings, or the value."""
        if _has_docstring(self.thing):
            return f"::: {self.anchor}\n"
        shown = pformat(self.thing, width=100, sort_dicts=False)
        return f'### <a id="{self.anchor}"></a>`{self.name}`\n\n```python\n{self.name} = {shown}\n```\n'


def _has_docstring(thing: Any) -> bool:
    return inspect.isclass(thing) or inspect.isroutine(thing)


def public_names(room: str) -> list[str]:
    """Return the public names of a room: `__all__`, or what the module itself defines."""
    module = importlib.import_module(room)
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", None) == room and _has_docstring(thing)
    ]


def write_pages() -> None:
    """Write a page for each room and the index of all names."""
    described: dict[int, Entry] = {}
    index = ["# Python reference", "", "Every public name, by the room it is in. All examples run in the tests.", ""]
    for room in ROOMS:
        module = importlib.import_module(room)
        entries = [Entry(room, name, getattr(module, name)) for name in sorted(public_names(room), key=str.lower)]
        own = [entry for entry in entries if isinstance(entry.thing, ModuleType) or id(entry.thing) not in described]
        described |= {id(entry.thing): entry for entry in own}
        rows = [described[id(entry.thing)] for entry in entries]
        table = ["| name | |", "|---|---|", *(f"| {row.link} | {row.summary} |" for row in rows), ""]
        body = [entry.describe() for entry in own if not isinstance(entry.thing, ModuleType)]
        text = [f"# {room}", "", inspect.getdoc(module) or "", "", *table, *body]
        write(PurePosixPath("api", f"{room}.md"), "\n".join(text))
        index += [f"## [{room}]({room}.md)", "", (inspect.getdoc(module) or "").partition("\n\n")[0], ""]
        index += [", ".join(row.link for row in rows), ""]
    write(PurePosixPath("api", "index.md"), "\n".join(index))
