"""Every error has a code and a message in errors.toml; every message gets the values it names, and is used."""

import ast
import copy
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

import pytest

from sihg.errors import InputError, NotFiniteError, SihgError, StepSizeError, UnknownNameError, messages

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "sihg"
FIRST = "unknown-name"  # of UnknownNameError, which makes its own codes


def made_errors(tree: ast.AST, kinds: set[str]) -> Iterator[ast.Call]:
    """Yield the calls that make an error of one of these classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds:
            yield node


def error_classes(trees: list[ast.Module]) -> set[str]:
    """Return the names of SihgError and of all classes that derive from it, except UnknownNameError."""
    found = {"SihgError"}
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    while new := {c.name for c in classes if {ast.unparse(base) for base in c.bases} & found} - found:
        found |= new
    return found - {"UnknownNameError"}


def placeholders(message: str) -> set[str]:
    return {name.split(".")[0] for _, name, _, _ in Formatter().parse(message) if name}


TREES = {path.relative_to(SOURCE): ast.parse(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")}
CLASSES = error_classes([*TREES.values()])
MADE = [(str(path), call) for path, tree in TREES.items() for call in made_errors(tree, CLASSES)]


def problem(call: ast.Call) -> str:
    """Return what is wrong with a call that makes an error; empty if nothing is."""
    code = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
    if not isinstance(code, str) or code not in messages():
        return f"the code {code!r} is not in errors.toml"
    given = {keyword.arg for keyword in call.keywords}
    missing = placeholders(messages()[code]) - given
    return f"{code} lacks {sorted(missing)}" if missing and None not in given else ""


def test_every_error_has_a_message_and_its_values() -> None:
    assert len(MADE) > 300
    assert [f"{path}:{call.lineno}: {problem(call)}" for path, call in MADE if problem(call)] == []


def test_every_message_is_used() -> None:
    used = {call.args[0].value for _, call in MADE if isinstance(call.args[0], ast.Constant)} | {FIRST}
    assert sorted(messages().keys() - used) == []


@pytest.mark.parametrize("code", list(messages()))
def test_a_message_ends_with_a_remedy(code: str) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", code)
    message = messages()[code]
    assert ": " in message or "`" in message or "{" in message.rpartition(" ")[2], message
    assert not re.search(r"\bis none\b|what is no\b|one's own", message)


@pytest.mark.parametrize("text", ['InputError("nonsense")', 'InputError("eps-range")', "InputError(code)"])
def test_a_wrong_call_is_found(text: str) -> None:
    (call,) = made_errors(ast.parse(text), {"InputError"})
    assert problem(call)


def test_an_error_carries_its_code_and_values() -> None:
    error = InputError("not-a-number", name="eps", value="x")
    assert (error.code, error.values) == ("not-a-number", {"name": "eps", "value": "x"})
    assert str(error) == "eps must be a number such as 5, 0.1 or 8/255, got 'x'"
    for same in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (type(same), str(same), same.code, same.values) == (InputError, str(error), error.code, error.values)
    assert str(error.within("config.toml")) == "config.toml: eps must be a number such as 5, 0.1 or 8/255, got 'x'"
    for kind in (InputError, NotFiniteError, StepSizeError):
        assert issubclass(kind, SihgError)
        assert issubclass(kind, ValueError)


def test_the_message_of_a_users_own_error_is_kept() -> None:
    error = InputError("this method needs {a} stem")
    assert (str(error), error.code, error.values) == ("this method needs {a} stem", "", {})
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(
    ("name", "meant", "message"),
    [
        ("sqaure", None, r"unknown attack 'sqaure' \(did you mean 'square'\?\): choose from square, fab$"),
        ("SQUARE", None, r"unknown attack 'SQUARE' \(did you mean 'square'\?\)"),
        ("pgd", None, r"unknown attack 'pgd': choose from square, fab$"),
        (3, None, r"unknown attack 3: choose from square, fab$"),
        ("square-atack", {"square-attack": "square"}, r"\(did you mean 'square'\?\)"),
    ],
)
def test_an_unknown_name_lists_the_choices(name: object, meant: dict[str, str] | None, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        raise UnknownNameError("attack", name, ["square", "fab"], meant)
    assert caught.value.code == "unknown-attack"
    assert caught.value.values == {"name": name, "choices": ("square", "fab")}
