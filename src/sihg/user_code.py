"""A user's own code by name: package.module:callable or path.py:callable."""

import sys
from collections.abc import Callable
from hashlib import sha256
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from sihg.errors import InputError


def load_callable(kind: str, name: str) -> Callable[..., object]:
    """The callable that package.module:callable or path.py:callable names; the current folder counts too."""
    module, _, attribute = name.rpartition(":")
    own_file = module.endswith(".py")
    sys.path.insert(0, str(Path(module).resolve().parent if own_file else Path.cwd()))  # and what it imports beside it
    try:
        found = getattr(_from_file(Path(module).resolve()) if own_file else import_module(module), attribute)
    except Exception as error:
        raise InputError(
            f"{kind} {name!r} cannot be loaded ({error!r}): name package.module:callable or path.py:callable"
        ) from error
    finally:
        sys.path.pop(0)
    if not callable(found):
        raise InputError(f"{kind} {name!r} is a {type(found).__name__}, not a callable: name a function or a class")
    return found  # type: ignore[no-any-return]


def _from_file(path: Path) -> ModuleType:
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
