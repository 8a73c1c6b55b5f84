"""A user's own code by name, the one loader for all: `package.module:name` or `path.py:name`."""

import sys
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
        found = getattr(_import_file(path) if is_file else import_module(module), attribute)
    except Exception as error:
        raise InputError("user-code-import", name=name, kind=kind, error=error, names=" or ".join(FORMS)) from error
    finally:
        sys.path.pop(0)
    if not callable(found):
        raise InputError("user-code-not-callable", name=name, kind=kind, type=type(found).__name__)
    return found  # type: ignore[no-any-return]


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
