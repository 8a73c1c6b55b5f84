"""Write docs/errors.md, the table of all error codes, from the sources: python docs/make_errors.py."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE, TABLE = ROOT / "src" / "sihg", ROOT / "docs" / "errors.md"
UNKNOWN_NAME = "UnknownNameError"  # makes its code from its first argument
HEAD = """# Errors

Every error that sihg raises on purpose is a `sihg.errors.SihgError` with a `code`, which stays the same when the words
change, and `values`, a dictionary of what the message names. The command line prints the message without a traceback.
Words in capitals stand for values. This table is made by `python docs/make_errors.py`.

| code | meaning | what to do | where |
|---|---|---|---|
"""


@dataclass(frozen=True)
class Raised:
    """A place in the sources that makes an error."""

    module: str
    line: int
    code: str | None  # None: not a literal
    message: str

    @property
    def room(self) -> str:
        """The room of the module: sihg.store for sihg.store.files, sihg.robust.data for sihg.robust.data.samples."""
        parts = self.module.split(".")
        depth = 3 if parts[1] in ("robust", "report") and len(parts) > 3 else 2
        return ".".join(parts[:depth])

    @property
    def meaning(self) -> str:
        """The message's first clause."""
        return re.split(r", got |: ", self.message, maxsplit=1)[0]

    @property
    def remedy(self) -> str:
        """The message's last clause, behind the last colon."""
        return self.message.rpartition(": ")[2] if ": " in self.message else ""


def error_classes(trees: dict[str, ast.Module]) -> set[str]:
    """Return the names of SihgError and of all classes that derive from it."""
    found = {"SihgError"}
    classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    while new := {c.name for c in classes if {ast.unparse(b) for b in c.bases} & found} - found:
        found |= new
    return found


def raised_errors(source: Path = SOURCE) -> list[Raised]:
    """Return every place below a folder that makes a SihgError."""
    trees = {}
    for path in sorted(source.rglob("*.py")):
        module = ".".join(path.relative_to(source.parent).with_suffix("").parts).removesuffix(".__init__")
        trees[module] = ast.parse(path.read_text(encoding="utf-8"))
    classes = error_classes(trees)
    return [raised for module, tree in trees.items() for raised in _raised_in(module, tree, classes)]


def _raised_in(module: str, tree: ast.Module, classes: set[str]) -> Iterator[Raised]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) not in classes or not node.args:
            continue
        text = " ".join(_template(node.args[0]).split())
        if ast.unparse(node.func) == UNKNOWN_NAME:
            code = f"unknown-{text.replace(' ', '-')}" if isinstance(node.args[0], ast.Constant) else None
            yield Raised(module, node.lineno, code, f"unknown {text}: choose one of those that the message lists")
            continue
        values = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
        literal = values[0].value if values and isinstance(values[0], ast.Constant) else None
        yield Raised(module, node.lineno, literal if isinstance(literal, str) else None, text)


def _template(node: ast.expr) -> str:
    """Return a message with its values as capitals: f"eps is {eps}" becomes "eps is EPS"."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_template(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _template(node.left) + _template(node.right)
    value = node.value if isinstance(node, ast.FormattedValue) else node
    names = [part.id for part in ast.walk(value) if isinstance(part, ast.Name)]
    names += [part.attr for part in ast.walk(value) if isinstance(part, ast.Attribute)]
    names = [name for name in names if name not in ("self", "str", "len", "type", "repr", "join", "list", "sorted")]
    name = names[-1].strip("_") if names else "..."
    return "REASON" if name in ("strerror", "error", "why") else name.upper()


def table(raised: list[Raised]) -> str:
    """Return the text of docs/errors.md: one row per code and room."""
    rows: dict[tuple[str, str], str] = {}
    for place in raised:
        if place.code:
            cells = (f"`{place.code}`", place.meaning, place.remedy, f"`{place.room}`")
            row = "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
            rows.setdefault((place.code, place.room), row)
    return HEAD + "".join(rows[key] for key in sorted(rows))


if __name__ == "__main__":
    TABLE.write_text(table(raised_errors()), encoding="utf-8")
