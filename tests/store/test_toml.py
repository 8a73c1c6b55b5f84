"""Settings come back from TOML as they were."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sihg.errors import InputError
from sihg.store.files import from_toml, to_toml, write_text
from tests.refused import refused

SETTINGS = {
    "method": "msi-hg",
    "epochs": 15,
    "box": True,
    "attack": {"eps": 8 / 255, "tau": 1e-05, "top": math.inf, "steps": [1, 2, 3], "names": []},
}
leaves = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(max_size=8))
trees = st.recursive(leaves, lambda t: st.one_of(st.lists(t, max_size=3), st.dictionaries(st.text(max_size=5), t)))


def back(tmp_path: Path, text: str) -> dict[str, Any]:
    return from_toml(write_text(tmp_path / "config.toml", text))


def test_settings_come_back(tmp_path: Path) -> None:
    assert back(tmp_path, to_toml(SETTINGS)) == SETTINGS


@given(settings=st.dictionaries(st.text(max_size=5), trees, max_size=4))
def test_any_settings_come_back_bit_by_bit(settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    found = back(tmp_path_factory.getbasetemp(), to_toml(settings))
    ours, theirs = (json.dumps(s, sort_keys=True) for s in (settings, found))  # 1 is not 1.0, 0.0 is not -0.0
    assert ours == theirs


def test_none_is_left_out_and_paths_and_tuples_become_toml(tmp_path: Path) -> None:
    text = to_toml({"a": None, "out": Path("x") / "y", "t": {"b": None, "c": (1, 2)}})
    assert back(tmp_path, text) == {"out": str(Path("x") / "y"), "t": {"c": [1, 2]}}


def test_comments_stand_above_their_key(tmp_path: Path) -> None:
    text = to_toml(SETTINGS, {"epochs": "passes over\nthe data", "attack": "the inner problem", "attack.eps": "radius"})
    lines = text.splitlines()
    assert lines[lines.index("epochs = 15") - 2 :][:2] == ["# passes over", "# the data"]
    assert lines[lines.index("[attack]") - 1] == "# the inner problem"
    assert lines[lines.index(f"eps = {8 / 255!r}") - 1] == "# radius"
    assert back(tmp_path, text) == SETTINGS


@pytest.mark.parametrize(
    ("settings", "code", "values"),
    [
        ({"a": {"b": object}}, "setting-type", {"name": "a.b"}),
        ({"a": [1, None]}, "setting-type", {"name": "a[1]"}),
        ({"a": {3: 1}}, "setting-name", {"name": "a.3"}),
        ({"a": "\udc80"}, "setting-not-utf8", {}),
    ],
)
def test_what_toml_cannot_hold_is_refused(settings: dict[str, Any], code: str, values: dict[str, str]) -> None:
    with refused(code, **values):
        to_toml(settings)


def test_errors_name_the_file_and_the_line(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    with refused("cannot-read-toml", path=path):
        from_toml(path)
    path.write_text("a = 1\nb 2\n")
    with pytest.raises(InputError, match=r"config\.toml is not valid TOML, .*line 2.*: correct it there"):
        from_toml(path)
    path.write_bytes(b"a = 1\nb = 2\nc = '\xff'\n")
    with refused("toml-not-utf8", path=path, line=3):
        from_toml(path)
