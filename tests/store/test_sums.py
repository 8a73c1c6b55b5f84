"""sums.json names changes in the files of a folder that carry no sum of their own."""

from pathlib import Path

import pytest

from sihg.store.schema import write_json
from sihg.store.sums import FileSums, find_changed, forget_sums, refresh_sums, write_sums
from sihg.store.trust import OWNER
from sihg.store.verify import check_folder

FILES = ("index.html", "convergence.svg", "convergence.png", "table.csv", "table.md", "gda/history.csv", OWNER)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file of each kind, and a record that has a sum of its own."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    write_json(tmp_path / "summary.json", {"n": 4})
    write_sums(tmp_path)
    return tmp_path


def wrong(folder: Path) -> dict[str, str]:
    found = [check for check in check_folder(folder) if check.result == "wrong"]
    return {check.path.relative_to(folder).as_posix(): check.message for check in found}


@pytest.mark.parametrize("name", FILES)
def test_a_changed_or_missing_file_is_named(folder: Path, name: str) -> None:
    assert wrong(folder) == {}
    path = folder / name
    path.write_bytes(path.read_bytes() + b" ")
    assert list(wrong(folder)) == [name]
    assert str(path) in wrong(folder)[name]
    path.unlink()
    assert "is missing" in wrong(folder)[name]


def test_several_files_are_named_at_once(folder: Path) -> None:
    for name in FILES[:3]:
        (folder / name).write_bytes(b"other")
    assert sorted(wrong(folder)) == sorted(FILES[:3])


def test_a_changed_sums_file_is_named_itself(folder: Path) -> None:
    path = folder / "sums.json"
    path.write_text(path.read_text().replace("table.md", "table.me"))
    assert list(wrong(folder)) == ["sums.json"]


def test_names_outside_the_folder_are_not_read(folder: Path) -> None:
    (folder / "inner").mkdir()
    sums = {"../index.html": "0" * 64, str(folder / "index.html"): "0" * 64}
    write_json(folder / "inner" / "sums.json", {"sums_with_seconds": sums})
    assert wrong(folder) == {}


def test_edits_can_be_accepted(folder: Path) -> None:
    (folder / "table.csv").write_bytes(b"mine")
    (folder / "index.html").unlink()
    accepted = {check.path.name: check.result for check in check_folder(folder, accept=True)}
    assert (accepted["table.csv"], accepted["index.html"]) == ("accepted", "wrong")
    assert list(wrong(folder)) == ["index.html"]  # what is lost stays missed


def test_edits_in_one_folder_leave_the_sums_of_another(folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    (inner / "page.html").write_bytes(b"page")
    write_sums(inner)
    (folder / "table.csv").write_bytes(b"mine")
    before = (inner / "sums.json").read_bytes()
    check_folder(folder, accept=True)
    assert (inner / "sums.json").read_bytes() == before


def test_there_are_no_sums_while_files_are_written(folder: Path) -> None:
    with refresh_sums(folder):
        (folder / "table.md").write_bytes(b"half")
        assert not (folder / "sums.json").exists()
    forget_sums(folder)  # as a kill within the block leaves it
    assert not (folder / "sums.json").exists()
    assert wrong(folder) == {}
    with refresh_sums(folder):
        (folder / "table.md").write_bytes(b"whole")
    assert {path.name for path, fault in find_changed(folder) if not fault} == {Path(name).name for name in FILES}
    forget_sums(folder)
    forget_sums(folder)
    assert list(find_changed(folder)) == []
    assert FileSums(sums_with_seconds={}).format == 2
