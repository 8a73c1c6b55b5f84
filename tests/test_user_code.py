"""The one loader of a user's own code."""

import calendar
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from sihg.user_code import call_user_code, load_callable, sha256_of_code
from tests.refused import refused


def test_a_file_is_loaded_with_what_lies_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "next_to_own_code.py").write_text("ANSWER = 42\n")
    (tmp_path / "own.py").write_text("from next_to_own_code import ANSWER\n\ndef make(add):\n    return ANSWER + add\n")
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


@pytest.mark.parametrize("name", ["calendar:make", "calendar.py:make"])
def test_a_users_file_wins_over_a_module_already_imported(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "calendar.py").write_text("def make():\n    return 'mine'\n")
    monkeypatch.chdir(tmp_path)
    assert load_callable("model", name)() == "mine"
    assert sys.modules["calendar"] is calendar


@pytest.mark.parametrize("name", ["no_such_package.at_all:make", "fractions:nothing", "no_such_file.py:make", ":make"])
def test_a_name_that_cannot_be_loaded_is_refused(name: str) -> None:
    with refused("user-code-import", name=name):
        load_callable("model", name)


def test_the_names_of_the_file_are_told(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text("import math\ndef make(): pass\nclass Net: pass\n")
    with refused("user-code-import") as caught:
        load_callable("model", f"{tmp_path / 'nets.py'}:mke")
    assert "there is no 'mke', only make, Net" in str(caught.value)


def test_an_error_inside_the_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    modules = set(sys.modules)
    with refused("user-code-import") as caught:
        load_callable("model", f"{tmp_path / 'broken.py'}:make")
    assert "ZeroDivisionError" in str(caught.value)
    assert not [name for name in set(sys.modules) - modules if name.startswith("broken")]


def test_a_value_that_cannot_be_called_is_refused() -> None:
    with refused("user-code-not-callable", name="math:pi"):
        load_callable("model", "math:pi")


def test_an_exception_in_a_call_is_reported_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("def make(size):\n    return 1 / size\n")
    make = load_callable("model", f"{file}:make")
    assert call_user_code("model", "own.py:make", make, size=2) == 0.5
    with refused("user-code-failed", name="own.py:make") as caught:
        call_user_code("model", "own.py:make", make, size=0)
    assert f"ZeroDivisionError('division by zero') in {file}, line 2" in str(caught.value)
    with refused("user-code-import", name="other"):  # an error of ours stays itself
        call_user_code("model", "own.py:make", lambda: load_callable("model", "other"))


def test_the_sum_of_code_covers_what_it_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants, relative imports and imports of imports, too; not Python's own modules, nor files nobody imports."""
    files = {
        "summed/__init__.py": "",
        "summed/net.py": "import math\nfrom . import layers\nfrom summed_numbers import SCALE\n\ndef make(): pass\n",
        "summed/layers.py": "import summed.deep as deep\n",
        "summed/deep.py": "WIDTH = 3\n",
        "summed/unused.py": "",
        "summed_numbers.py": "SCALE = 2.0\n",
    }
    (tmp_path / "summed").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    make = load_callable("model", "summed.net:make")

    def total() -> str:
        return sha256_of_code(tmp_path / "summed" / "net.py", make.__module__)

    before, seen = total(), set[str]()
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}# changed\n")
        seen.add(total())
        assert (total() == before) == (name == "summed/unused.py"), name
        (tmp_path / name).write_text(text)
    assert total() == before
    assert len(seen) == len(files)


def test_the_sum_of_code_that_imports_nothing_of_its_own_is_that_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "alone_in_its_file.py"
    file.write_text("import torch\nimport sihg\nimport numpy as np\n\ndef make(): pass\n")
    make = load_callable("model", f"{file}:make")
    assert sha256_of_code(file, make.__module__) == sha256(file.read_bytes()).hexdigest()
