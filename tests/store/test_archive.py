"""Archives of records: what is packed, equal tables from them, and archives that must be refused."""

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sihg.cli.main import main
from sihg.errors import InputError
from sihg.report import compare, pack, report
from sihg.store.archive import unpacked
from sihg.store.schema import write_json
from tests.report.folders import write_evaluation, write_run

BYTES = b"eps = 0.1\n"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two seeds of one method in a folder, and a third run deeper."""
    for i, name in enumerate(("grid/pgd-s0", "grid/pgd-s1", "deeper/grid/pgd-s2")):
        write_run(tmp_path / "runs" / name, seed=i)
    return tmp_path / "runs"


def test_an_archive_gives_the_same_comparison_as_its_folders(runs: Path, tmp_path: Path) -> None:
    assert pack(runs, tmp_path / "all.zip") == 3
    from_archive, from_folders = compare(tmp_path / "all.zip"), compare([runs / "deeper/grid", runs / "grid"])
    assert str(from_archive) == str(from_folders)
    assert [row.folder for row in from_archive.runs] == [
        str(tmp_path / "all.zip" / Path(row.folder).relative_to(runs)) for row in from_folders.runs
    ]


def test_equal_records_give_equal_archives_without_weights_and_pages(runs: Path, tmp_path: Path) -> None:
    for name in ("checkpoints/last-00000001/weights.safetensors", "index.html", "report/table.csv", "memory/0.bin"):
        (runs / "grid/pgd-s0" / name).parent.mkdir(parents=True, exist_ok=True)
        (runs / "grid/pgd-s0" / name).write_bytes(b"x")
    pack(runs / "grid", tmp_path / "a.zip")
    for path in (runs / "grid").rglob("*.csv"):
        path.touch()
    pack(runs / "grid", tmp_path / "b.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names} == {"pgd-s0", "pgd-s1"}
    assert not [name for name in names if name.endswith((".safetensors", ".html", ".bin")) or "report" in name]


def test_an_archive_has_no_folders_of_the_machine(runs: Path, tmp_path: Path) -> None:
    """It is published: where the data and the runs lay is nobody's concern."""
    run = runs / "grid/pgd-s0"
    write_json(run / "environment.json", {"python": "3.11.2", "data_folder": "/home/someone/data"})
    write_evaluation(run, weights="/home/someone/runs/pgd-s0/checkpoints/last-00000078")
    pack(runs, tmp_path / "all.zip")
    with zipfile.ZipFile(tmp_path / "all.zip") as archive:
        texts = [archive.read(name) for name in archive.namelist()]
    assert not [text for text in texts if b"someone" in text]
    assert sum(b"checkpoints/last-00000078" in text for text in texts) == 1
    assert str(compare(tmp_path / "all.zip")) == str(compare([runs / "deeper/grid", runs / "grid"]))


def test_a_single_run_and_several_folders_keep_their_names(runs: Path, tmp_path: Path) -> None:
    pack(runs / "grid/pgd-s0", tmp_path / "one.zip")
    pack([runs / "grid", runs / "deeper"], tmp_path / "two.zip")
    assert [row.run for row in compare(tmp_path / "one.zip").runs] == ["pgd-s0"]
    with unpacked([tmp_path / "two.zip", runs / "grid"]) as found:
        assert [str(found.shown(folder)) for folder in found.folders] == [
            str(tmp_path / "two.zip/deeper/grid"),
            str(tmp_path / "two.zip/grid"),
            str(runs / "grid"),
        ]


def test_the_commands(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "all.zip"
    assert main(["pack", str(runs), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: 3 runs, {out.stat().st_size:,} bytes\n"
    assert main(["pack", str(runs), "--out", str(out)]) == 2
    assert "[archive-exists]" in capsys.readouterr().err
    assert main(["pack", str(runs), "--out", str(out), "--overwrite"]) == 0
    assert main(["compare", str(out), "--out", str(tmp_path / "page")]) == 0
    assert (tmp_path / "page/index.html").is_file()
    assert "pgd-s2" in capsys.readouterr().out


def test_what_cannot_be_packed(runs: Path, tmp_path: Path) -> None:
    def refused(code: str, *folders: Path, out: str = "new.zip") -> InputError:
        with pytest.raises(InputError) as caught:
            pack(folders, tmp_path / out)
        assert caught.value.code == code
        assert not (tmp_path / out).exists()
        return caught.value

    refused("archive-suffix", runs, out="new.tar")
    refused("no-runs", tmp_path / "nowhere")
    refused("archive-same-name", runs / "grid", runs / "deeper/grid", runs / "grid")
    table = runs / "grid/pgd-s1/metrics.csv"
    table.write_text(table.read_text().replace("1", "2"))
    assert str(table) in str(refused("archive-wrong-record", runs))


def test_a_changed_record_inside_is_named_with_its_archive(runs: Path, tmp_path: Path) -> None:
    pack(runs, tmp_path / "all.zip")
    with zipfile.ZipFile(tmp_path / "all.zip") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["grid/pgd-s0/metrics.csv"] = members["grid/pgd-s0/metrics.csv"].replace(b"1", b"2")
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(InputError) as caught:
        compare(tmp_path / "all.zip")
    assert caught.value.code == "archive-record"
    assert str(tmp_path / "all.zip/grid/pgd-s0/metrics.csv") in str(caught.value)


NAMES = [
    "../config.toml",
    "/config.toml",
    "a/../../config.toml",
    "a\\config.toml",
    "c:/config.toml",
    "run/code.py",
    "run/",
]


@pytest.mark.parametrize("name", [*NAMES, "run/a\nconfig.toml", "run//config.toml", "run/.toml"])
def test_names_from_elsewhere_are_refused_before_anything_is_written(name: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "foreign.zip", "w") as archive:
        archive.writestr("run/config.toml", BYTES)
        archive.writestr(zipfile.ZipInfo(name), BYTES)
    with pytest.raises(InputError) as caught:
        compare(tmp_path / "foreign.zip")
    assert caught.value.code == "archive-member"
    assert caught.value.values["name"] == name


def _truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _flipped(data: bytes) -> bytes:
    return data[:60] + bytes([data[60] ^ 255]) + data[61:]


def _garbled(data: bytes) -> bytes:
    """Change what deflate wrote, where it is no longer deflate."""
    start = 30 + len("run/config.toml")
    return data[:start] + b"\xff" * 20 + data[start + 20 :]


def _encrypted(data: bytes) -> bytes:
    """Set the flag of an encrypted file in both headers."""
    changed = bytearray(data)
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        changed[data.index(mark) + offset] |= 1
    return bytes(changed)


@pytest.mark.parametrize("damage", [_truncated, _flipped, _garbled, _encrypted, lambda _: b"", lambda _: b"text"])
def test_damaged_archives_are_refused(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("run/config.toml", BYTES * 100)
    (tmp_path / "a.zip").write_bytes(damage(data.getvalue()))
    with pytest.raises(InputError) as caught:
        compare(tmp_path / "a.zip")
    assert caught.value.code == "archive-unreadable"


def test_a_zip_bomb_is_refused_by_its_sizes(tmp_path: Path) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("run/config.toml", BYTES)
    content = bytearray(data.getvalue())
    place = content.index(b"PK\x01\x02") + 24  # the size after unpacking
    content[place : place + 4] = struct.pack("<I", 2**31)
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(InputError) as caught:
        compare(tmp_path / "a.zip")
    assert caught.value.code == "archive-too-large"


def test_a_report_of_an_archive_names_the_command(runs: Path, tmp_path: Path) -> None:
    pack(runs, tmp_path / "all.zip")
    with pytest.raises(InputError) as caught:
        report(tmp_path / "all.zip")
    assert caught.value.code == "report-of-archive"


def test_runs_of_several_archives_are_named_by_them(runs: Path, tmp_path: Path) -> None:
    for name in ("a", "b", "sub/a"):
        pack(runs / "grid", tmp_path / f"{name}.zip")
    assert {row.run for row in compare([tmp_path / "a.zip", tmp_path / "b.zip"]).runs} == {
        f"{archive}/pgd-s{i}" for archive in "ab" for i in range(2)
    }
    assert len({row.run for row in compare([tmp_path / "a.zip", tmp_path / "sub/a.zip"]).runs}) == 4


def test_no_command_names_a_run_inside_an_archive(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack(runs, tmp_path / "all.zip")
    assert main(["compare", str(tmp_path / "all.zip")]) == 0
    assert "sihg evaluate" not in capsys.readouterr().err
