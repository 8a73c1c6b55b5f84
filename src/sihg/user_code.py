"""A user's own code by name, the one loader for all: `package.module:name` or `path.py:name`."""

import ast
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from sihg.errors import InputError, SihgError
from sihg.parse import expand_home

PACKAGES = ("site-packages", "dist-packages")  # folders of installed packages
FORMS = ("package.module:name", "path.py:name")  # of names that load_callable takes
Result = TypeVar("Result")


_REFUSED: ContextVar[dict[str, object] | None] = ContextVar("refused", default=None)


@contextmanager
def refuse_user_code(folder: Path, settings: Path) -> Iterator[None]:
    """Let `load_callable` raise InputError inside the block: the settings of a foreign folder are being read."""
    token = _REFUSED.set({"folder": folder, "settings": settings})
    try:
        yield
    finally:
        _REFUSED.reset(token)


def load_callable(kind: str, name: str) -> Callable[..., object]:
    """Import the function or class that `package.module:name` or `path.py:name` names.

    Modules are looked for in the current folder first, so that a file there wins over a module of the same name.

    Args:
        kind: What is loaded, such as "model", for the message of an error.
        name: Where it is.
    Raises:
        InputError: If it cannot be imported ("user-code-import") or called ("user-code-not-callable"), or if a foreign
            folder names it ("foreign-code").
    Example:
        >>> load_callable("model", "fractions:Fraction")(1, 2)
        Fraction(1, 2)
    """
    if (refused := _REFUSED.get()) is not None:
        raise InputError("foreign-code", code=f"{kind} {name}", **refused)
    module, _, attribute = name.rpartition(":")
    path = expand_home(module if module.endswith(".py") else f"{module}.py").resolve()
    is_file = module.endswith(".py") or path.is_file()
    sys.path.insert(0, str(path.parent))  # what the file imports may lie in its folder
    try:
        found = _get_named(_import_file(path) if is_file else import_module(module), attribute)
    except Exception as error:
        raise InputError("user-code-import", name=name, kind=kind, error=error, names=" or ".join(FORMS)) from error
    finally:
        sys.path.pop(0)
    if not callable(found):
        raise InputError("user-code-not-callable", name=name, kind=kind, type=type(found).__name__)
    return found


def _get_named(module: ModuleType, attribute: str) -> object:
    """Return what a module calls so; else raise AttributeError with the names of its functions and classes."""
    if not hasattr(module, attribute):
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        raise AttributeError(f"there is no {attribute!r}, only {', '.join(own) or 'nothing of its own'}")
    return getattr(module, attribute)


def call_user_code(kind: str, name: str, function: Callable[..., Result], *args: object, **named: object) -> Result:
    """Call a user's function; report an exception in it as an InputError with its file and line."""
    try:
        return function(*args, **named)
    except SihgError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        call = ", ".join(
            [*(type(value).__name__ for value in args), *(f"{key}={value}" for key, value in named.items())]
        )
        raise InputError(
            "user-code-failed", name=name, kind=kind, call=call, error=error, filename=last.filename, lineno=last.lineno
        ) from error


def _import_file(path: Path) -> ModuleType:
    """Run a file as a module under a name that no other file has."""
    name = f"{path.stem}_{sha256(str(path).encode()).hexdigest()[:12]}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = sys.modules[name] = module_from_spec(spec)  # dataclasses and pickles look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def sha256_of_code(file: Path, module: str) -> str:
    """Return the SHA-256 of a Python file and of the user's own files that it imports, also through others.

    Python and installed packages are not the user's own: records have the versions of those that matter most. An import
    that has not happened yet, such as one in a function that was never called, is not followed.

    Args:
        file: The file.
        module: The name of its module, which was imported.
    """
    files, waiting = {file.resolve()}, [(file, module)]
    while waiting:
        for name in _imports(*waiting.pop()):
            found = _own_file(name)
            if found is not None and found not in files:
                files.add(found)
                waiting.append((found, name))
    sums = sorted(sha256(path.read_bytes()).hexdigest() for path in files)
    return sums[0] if len(sums) == 1 else sha256("".join(sums).encode()).hexdigest()


def _own_file(module: str) -> Path | None:
    """Return the file of an imported module if it is neither Python's nor that of an installed package."""
    name = getattr(sys.modules.get(module), "__file__", None)
    path = None if name is None else Path(name).resolve()
    if path is None or path.suffix != ".py" or not path.is_file():
        return None
    libraries = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), Path(__file__).parent)
    is_library = any(path.is_relative_to(Path(library).resolve()) for library in libraries)
    return None if is_library or any(name in PACKAGES for name in path.parts) else path


def _imports(file: Path, module: str) -> set[str]:
    """Return the names of all modules that the import statements of a file may mean."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # changed since it was imported
        return set()
    package = getattr(sys.modules.get(module), "__package__", None) or ""
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join(filter(None, [*above, node.module]))
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return {".".join(name.split(".")[: i + 1]) for name in found for i in range(name.count(".") + 1)}
