"""The lower bounds that pyproject.toml promises are the versions that `make test-lowest` tests; one version number."""

import re
import tomllib
from pathlib import Path

import sihg

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_lowest_versions_are_the_promised_bounds() -> None:
    wanted = [*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"]["test"]]
    bounds = dict(requirement.lower().split(">=") for requirement in wanted)
    lines = (ROOT / "lowest.txt").read_text(encoding="utf-8").lower().splitlines()
    tested = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert {name: re.sub(r"(\.0)+$", "", version) for name, version in tested.items()} == {
        name: re.sub(r"(\.0)+$", "", version) for name, version in bounds.items()
    }


def test_the_declared_pythons_are_those_of_the_workflow() -> None:
    declared = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["project"]["classifiers"]), re.MULTILINE)
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    matrix = re.search(r"python: \[(.*)\]", workflow)
    assert matrix is not None
    assert re.findall(r"3\.\d+", matrix[1]) == declared
    assert PROJECT["project"]["requires-python"] == f">={declared[0]}"


def test_the_citation_and_the_changelog_have_the_version_of_the_package() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {sihg.__version__}\n" in citation
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] in ("Unreleased", sihg.__version__)


def test_the_address_of_the_repository_is_the_same_everywhere() -> None:
    home = PROJECT["project"]["urls"]["Repository"]
    files = [ROOT / "pyproject.toml", ROOT / "CITATION.cff", ROOT / "SECURITY.md", *(ROOT / ".github").rglob("*.yml")]
    found = [
        address
        for file in files
        for address in re.findall(
            r"https://(?:github|raw\.githubusercontent)\.com/[\w-]+/sihg\b", file.read_text(encoding="utf-8")
        )
    ]
    assert len(found) > len(files) / 2
    assert {address.replace("raw.githubusercontent", "github") for address in found} == {home}
