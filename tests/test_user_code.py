import sys
from pathlib import Path

import pytest

from sihg.errors import InputError
from sihg.user_code import load_callable


def test_a_file_is_loaded_with_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_own_code.py").write_text("ANSWER = 42\n")
    (tmp_path / "own.py").write_text("from beside_own_code import ANSWER\n\ndef make(add):\n    return ANSWER + add\n")
    before = list(sys.path)
    assert load_callable("model", f"{tmp_path / 'own.py'}:make")(add=1) == 43
    assert sys.path == before


def test_two_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "net.py").write_text(f"def make():\n    return {folder!r}\n")
    assert [load_callable("model", f"{tmp_path / f / 'net.py'}:make")() for f in ("a", "b")] == ["a", "b"]


def test_a_module_is_loaded_by_its_name() -> None:
    assert load_callable("model", "fractions:Fraction")(1, 2) == 0.5


@pytest.mark.parametrize("name", ["no_such_package.at_all:make", "fractions:nothing", "no_such_file.py:make", ":make"])
def test_what_cannot_be_loaded_is_named(name: str) -> None:
    with pytest.raises(InputError, match=f"^model '{name}' cannot be loaded .*: name package.module:callable"):
        load_callable("model", name)


def test_an_error_inside_the_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    modules = set(sys.modules)
    with pytest.raises(InputError, match="ZeroDivisionError"):
        load_callable("model", f"{tmp_path / 'broken.py'}:make")
    assert not [name for name in set(sys.modules) - modules if name.startswith("broken")]


def test_what_is_no_callable_is_refused() -> None:
    with pytest.raises(InputError, match="is a float, not a callable"):
        load_callable("model", "math:pi")
