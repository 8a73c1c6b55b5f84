"""The lower bounds that pyproject.toml promises are the versions that `make test-lowest` tests."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOT_FOR_TESTS = {"accelerate", "mypy", "ruff", "types-requests"}  # dev tools that `make test-lowest` does not install


def test_lowest_versions_are_the_promised_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    bounds = dict(requirement.lower().split(">=") for requirement in wanted)
    lines = (ROOT / "lowest.txt").read_text(encoding="utf-8").lower().splitlines()
    tested = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert tested.keys() == bounds.keys() - NOT_FOR_TESTS
    assert {name: re.sub(r"(\.0)+$", "", version) for name, version in tested.items()} == {
        name: re.sub(r"(\.0)+$", "", bounds[name]) for name in tested
    }
