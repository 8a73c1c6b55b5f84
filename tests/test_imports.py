"""The rule of the house: a room imports only from rooms above it, inside `robust/` and `report/` too."""

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "sihg"
FOUNDATION = {"errors", "interrupt", "launch", "parse", "user_code"}
# Each room, and the rooms it may import from, besides itself and the foundation.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "interrupt": set(),
    "launch": set(),
    "parse": set(),
    "user_code": set(),
    "store": set(),
    "core": set(),
    "loggers": {"store"},
    "minimax": {"core", "store"},
    "robust": {"core", "store", "loggers"},
    "experiments": {"core", "store", "robust", "report"},
    "report": {"store"},
    "attacks": {"robust"},
    "integrations": {"core", "robust"},
    "formats": {"core", "store", "robust", "sihg"},
    "cli": {"core", "store", "formats", "loggers", "minimax", "robust", "experiments", "report", "sihg"},
    "sihg": {"attacks", "core", "formats", "minimax", "robust"},  # the package's own lazily loaded names
    "__main__": {"cli"},
}
# Inside these rooms: a part imports only from parts before it. Parts on one line are one step.
ORDER: dict[str, list[set[str]]] = {
    "robust": [
        {"precision", "waits"},
        {"_fast_passes"},
        {"threat"},
        {"gradients"},
        {"data"},
        {"models"},
        {"certify"},
        {"memory"},
        {"attacks"},
        {"methods"},
        {"evaluation", "training"},
    ],
    "report": [
        {"read"},
        {"figures", "tables"},
        {"page"},
        {"solve_report", "profile_report", "training_report", "evaluation_report"},
        {"watch"},
    ],
}
MAX_MODULES_PER_ROOM = 6  # directly in a room that has parts
# A file name has one meaning. These stand for the same thing wherever they are.
SHARED_NAMES = {"__init__", "base", "registry", "preflight", "evaluate", "solve"}


def room_of(module: str) -> str:
    """Return the room of a module such as sihg.core.prox; the package itself is its own room."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "sihg"


def part_of(module: str) -> str:
    """Return the part of a room that a module such as sihg.robust.attacks.pgd lies in; empty for the room itself."""
    return [*module.split("."), "", "", ""][2]


def imported(path: Path) -> set[str]:
    """Return the sihg modules that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; name the module in full"
            module = node.module or ""
            names = {f"{module}.{alias.name}" for alias in node.names}
            found |= names if module in ("sihg", *(f"sihg.{room}" for room in ORDER)) else {module}
    return {"sihg" if module == "sihg.__version__" else module for module in found if module.split(".")[0] == "sihg"}


def violations(files: dict[str, set[str]]) -> list[str]:
    """List imports against the direction, from {module: modules it imports}."""
    wrong = []
    for module, targets in files.items():
        here = room_of(module)
        for target in sorted(targets):
            there = room_of(target)
            if there == here:
                bad = here in ORDER and _step(here, target) > _step(here, module)
            else:
                bad = there not in ALLOWED[here] | FOUNDATION
            wrong += [f"{module} imports {target}"] if bad else []
    return wrong


def _step(room: str, module: str) -> int:
    """Return how far down its room a module's part is; the room's own `__init__` comes last."""
    part = part_of(module)
    if not part:
        return len(ORDER[room])
    return next(i for i, parts in enumerate(ORDER[room]) if part in parts)


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def test_rooms_import_only_from_above() -> None:
    files = {module: imported(path) for module, path in modules().items()}
    assert len(files) > 100
    assert violations(files) == []


@pytest.mark.parametrize(
    ("module", "target"),
    [
        ("sihg.core.prox", "sihg.minimax.solve"),
        ("sihg.report.solve_report", "sihg.core.prox"),
        ("sihg.robust.attacks.pgd", "sihg.robust.methods.base"),
        ("sihg.report.read.runs", "sihg.report.page.html"),
    ],
)
def test_an_import_against_the_direction_is_found(module: str, target: str) -> None:
    assert violations({module: {target}}) == [f"{module} imports {target}"]


def test_a_file_name_has_one_meaning() -> None:
    homes = defaultdict(list)
    for module, path in modules().items():
        homes[path.stem.lstrip("_") if path.stem != "__init__" else "__init__"].append(module)
    assert {name: found for name, found in homes.items() if len(found) > 1 and name not in SHARED_NAMES} == {}


@pytest.mark.parametrize("room", list(ORDER))
def test_a_room_with_parts_has_few_modules_of_its_own(room: str) -> None:
    own = [path.stem for path in (SOURCE / room).glob("*.py") if path.stem != "__init__"]
    assert len(own) <= MAX_MODULES_PER_ROOM, own


def test_a_module_with_an_underscore_is_used_in_its_own_room_alone() -> None:
    private = {name for name in modules() if name.rpartition(".")[2].startswith("_") and not name.endswith("__main__")}
    assert private
    for module, path in modules().items():
        for target in imported(path) & private:
            assert f"{module}.".startswith(f"{target.rpartition('.')[0]}."), f"{module} imports {target}"


TORCH_FREE = [
    *("sihg", "sihg.errors", "sihg.interrupt", "sihg.parse", "sihg.cli.main", "sihg.experiments"),
    *("sihg.loggers", "sihg.robust.training.events"),
    *("sihg.robust.data", "sihg.robust.models", "sihg.robust.methods", "sihg.robust.training.config"),
    *(name for name in modules() if name.startswith("sihg.store") and name != "sihg.store.checkpoint"),
    *(name for name in modules() if name.startswith("sihg.report")),
]


def test_torch_is_imported_only_where_it_is_needed() -> None:
    code = "import importlib, sys\nfor name in sys.argv[1:]:\n"
    code += "    importlib.import_module(name)\n    if 'torch' in sys.modules: sys.exit(f'{name} imports torch')"
    done = subprocess.run([sys.executable, "-c", code, *TORCH_FREE], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
