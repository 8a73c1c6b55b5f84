"""The house's rule: a room imports only from rooms above it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "sihg"
# Each room, and the rooms it may import from beside itself.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "runs": {"errors"},
    "core": {"errors"},
    "minimax": {"errors", "core", "runs"},
    "robust": {"errors", "core", "runs"},
    "experiments": {"errors", "core", "runs", "minimax", "robust"},
    "report": {"errors", "runs"},
    "cli": {"errors", "runs", "core", "minimax", "robust", "experiments", "report", "sihg"},
    "sihg": {"errors", "core", "minimax", "robust"},  # the package's own lazily loaded names
    "__main__": {"cli"},
}


def room_of(module: str) -> str:
    """The room of a module such as sihg.core.prox; the package itself is its own room."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "sihg"


def imported(path: Path) -> set[str]:
    """The sihg modules that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; name the module in full"
            module = node.module or ""
            names = {f"{module}.{alias.name}" for alias in node.names}
            found |= names if module == "sihg" else {module}
    return {"sihg" if module == "sihg.__version__" else module for module in found if module.split(".")[0] == "sihg"}


def violations(files: dict[str, set[str]]) -> list[str]:
    """Imports against the direction, from {module: modules it imports}."""
    wrong = []
    for module, targets in files.items():
        here = room_of(module)
        wrong += [
            f"{module} imports {target}"
            for target in sorted(targets)
            if room_of(target) != here and room_of(target) not in ALLOWED[here]
        ]
    return wrong


def test_rooms_import_only_from_above() -> None:
    files = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = imported(path)
    assert len(files) > 20
    assert violations(files) == []


def test_an_import_against_the_direction_is_found() -> None:
    assert violations({"sihg.core.prox": {"sihg.minimax.solve"}}) == ["sihg.core.prox imports sihg.minimax.solve"]
    assert violations({"sihg.report.solve": {"sihg.core.prox"}}) == ["sihg.report.solve imports sihg.core.prox"]


@pytest.mark.parametrize("module", ["sihg", "sihg.cli.main", "sihg.report.solve", "sihg.runs.files"])
def test_torch_is_not_imported_by(module: str) -> None:
    code = f"import {module}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
