"""What is installed: the metadata and the files of the built wheel and of the source archive."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Sequence
from email import message_from_bytes
from email.message import Message
from pathlib import Path, PurePosixPath

import pytest

import sihg

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "sihg"
GROUPS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]  # not for users


@pytest.fixture(name="dist", scope="module")
def dist_(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both archives, built without a network."""
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder, "sdist", "wheel")
    return folder


def build(source: Path, folder: Path, *targets: str) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    for target in targets:
        command += ["-t", target]
    subprocess.run(command, cwd=source, check=True, capture_output=True)


def names_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def metadata(folder: Path) -> Message:
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


def test_metadata(dist: Path) -> None:
    found = metadata(dist)
    assert found["Version"] == sihg.__version__
    assert found["Author"] == "The sihg developers"
    assert found["License-Expression"] == "Apache-2.0 AND CC-BY-4.0"
    assert found.get_all("License-File") == ["LICENSE", "src/sihg/robust/data/digits.txt"]
    assert not GROUPS.keys() & set(found.get_all("Provides-Extra", []))
    assert len(found.get_all("Project-URL", [])) >= 4


def test_every_link_of_the_description_is_absolute_and_leads_to_a_file(dist: Path) -> None:
    """As the page on PyPI shows it, where relative links lead nowhere."""
    text = str(metadata(dist).get_payload())
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    inner = [target for target in targets if f"/sihg/blob/v{sihg.__version__}/" in target or "/raw.github" in target]
    assert len(inner) > 15
    assert not [target for target in targets if not target.startswith(("https://", "#"))]
    for target in inner:
        name = re.sub(r"^https://[^/]+/[^/]+/[^/]+/(blob/)?[^/]+/", "", target).partition("#")[0]
        assert (ROOT / name).exists(), target
    (image,) = re.findall(r"!\[[^\]]*\]\((\S+)\)", text)
    assert image.startswith("https://raw.githubusercontent.com/")


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    ours = {f"sihg/{name}" for name in files_of(SOURCE)}
    assert {name for name in names_in(wheel) if ".dist-info/" not in name} == ours
    assert "sihg/py.typed" in ours
    assert {PurePosixPath(name).suffix for name in ours} >= {".css", ".npz", ".py", ".toml", ".typed"}


def files_of(folder: Path) -> Sequence[str]:
    tracked = subprocess.run(["git", "ls-files", "."], cwd=folder, capture_output=True, text=True, check=False)
    if tracked.returncode:
        pytest.skip("needs a git checkout")
    return [name for name in tracked.stdout.splitlines() if (folder / name).exists()]


def test_the_source_archive_is_small_and_builds_the_same_wheel(dist: Path, tmp_path: Path) -> None:
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        names = [PurePosixPath(name) for name in files.getnames()]
        files.extractall(tmp_path, filter="data")
    assert not [name for name in names if name.suffix in (".zip", ".png") or name.parts[1] in ("results", "tests")]
    assert archive.stat().st_size < 2**20
    (folder,) = tmp_path.iterdir()
    build(folder, tmp_path / "again", "wheel")
    first, second = (next(place.glob("*.whl")) for place in (dist, tmp_path / "again"))
    assert names_in(first) == names_in(second)
    assert metadata(dist).as_bytes() == metadata(tmp_path / "again").as_bytes()
