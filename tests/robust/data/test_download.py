"""Downloads from servers that stop, lie or are not there."""

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

from sihg.errors import InputError, UnknownNameError
from sihg.robust.data import SOURCES, download, load
from sihg.robust.data.locations import Published
from tests.refused import refused
from tests.robust.data.sets import archive, put, small_cifar, with_source


class Server:
    """Serves `files`; behaves by the first part of the path, and keeps what it was asked."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                how, _, name = self.path.strip("/").partition("/")
                wanted = self.headers.get("Range", "")
                outer.asked.append((how, wanted))
                data = outer.files.get(name)
                if data is None or how == "gone":
                    self.send_error(404)
                    return
                if how == "lying":
                    data = bytes(len(data))
                if how == "endless":  # without a length
                    self.send_response(200)
                    self.end_headers()
                    with suppress(OSError):
                        for _ in range(100):
                            self.wfile.write(data)
                    return
                if how == "portal":
                    data = b"<html>please sign in</html>"
                begin = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and how != "norange" else 0
                self.send_response(206 if begin else 200)
                if begin:
                    self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
                self.send_header("Content-Length", str(len(data) - begin))
                self.end_headers()
                rest = data[begin:]
                self.wfile.write(rest[: max(1, len(rest) // 2)] if how == "short" else rest)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"


class Set(NamedTuple):
    server: Server
    data: bytes
    folder: Path

    @property
    def target(self) -> Path:
        return self.folder / "cifar10" / "cifar-10-binary.tar.gz"

    @property
    def part(self) -> Path:
        return self.target.with_name(self.target.name + ".part")


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Set]:
    """A small CIFAR-10 archive on a server of this machine."""
    records = small_cifar(monkeypatch)
    data = archive({f"cifar-10-batches-bin/{name}.bin": batch.tobytes() for name, batch in records.items()})
    server = Server()
    server.files["a.tar.gz"] = data
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield Set(server, data, tmp_path)
    server.http.shutdown()
    server.http.server_close()
    thread.join()


def mirrors(small: Set, monkeypatch: pytest.MonkeyPatch, *hows: str, size: int = 0) -> None:
    urls = tuple(f"{small.server.url}/{how}/a.tar.gz" for how in hows)
    file = Published(
        "cifar10/cifar-10-binary.tar.gz", hashlib.md5(small.data).hexdigest(), size or len(small.data), urls
    )
    with_source(monkeypatch, replace(SOURCES["cifar10"], published=(file,)))


def test_get_then_load(small: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrors(small, monkeypatch, "good")
    seen: list[tuple[str, int, int]] = []
    assert download.fetch("cifar10", small.folder, lambda *how: seen.append(how)) == [small.target]
    assert small.target.read_bytes() == small.data
    assert not small.part.exists()
    assert seen[-1] == ("cifar-10-binary.tar.gz", len(small.data), len(small.data))
    assert len(load("cifar10", small.folder)[0]) == 20
    assert download.fetch("cifar10", small.folder) == []
    assert len(small.server.asked) == 1


@pytest.mark.parametrize("bad", ["gone", "lying", "portal", "endless"])
def test_the_next_mirror_helps(bad: str, small: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrors(small, monkeypatch, bad, "good")
    download.fetch("cifar10", small.folder)
    assert small.target.read_bytes() == small.data
    assert [how for how, _ in small.server.asked] == [bad, "good"]


def test_a_cut_answer_is_resumed(small: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrors(small, monkeypatch, "short", "good")
    download.fetch("cifar10", small.folder)
    assert small.target.read_bytes() == small.data
    ranges = [wanted for _, wanted in small.server.asked]
    assert ranges[0] == ""
    assert ranges[1] == f"bytes={len(small.data) // 2}-"
    assert len(small.server.asked) <= download.TRIES + 1


def test_a_part_from_an_earlier_try_is_resumed(small: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrors(small, monkeypatch, "good")
    put(small.part, small.data[:1000])
    download.fetch("cifar10", small.folder)
    assert small.target.read_bytes() == small.data
    assert small.server.asked == [("good", "bytes=1000-")]


def test_a_server_without_ranges_gives_it_whole(small: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrors(small, monkeypatch, "norange")
    put(small.part, small.data[:1000])
    download.fetch("cifar10", small.folder)
    assert small.target.read_bytes() == small.data


@pytest.mark.parametrize("junk", [b"junk", b"long junk" * 10**5])
def test_a_wrong_part_is_started_again(junk: bytes, small: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrors(small, monkeypatch, "good")
    put(small.part, junk)
    download.fetch("cifar10", small.folder)
    assert small.target.read_bytes() == small.data
    assert small.server.asked[-1] == ("good", "")


def test_no_more_than_announced_is_written(small: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrors(small, monkeypatch, "endless")
    with refused("download-failed"):
        download.fetch("cifar10", small.folder)
    assert small.part.stat().st_size <= len(small.data)
    assert not small.target.exists()


@pytest.mark.parametrize("how", ["link", "hard link", "pipe", "dangling link"])
def test_a_link_or_a_pipe_is_replaced_not_followed(how: str, small: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrors(small, monkeypatch, "good")
    other = put(small.folder / "precious", b"precious")
    small.target.parent.mkdir()
    for path in (small.part, small.target):
        if how == "pipe":
            os.mkfifo(path)
        elif how == "hard link":
            path.hardlink_to(other)
        else:
            path.symlink_to(other if how == "link" else small.folder / "nowhere")
    assert download.fetch("cifar10", small.folder) == [small.target]
    assert small.target.read_bytes() == small.data
    assert not small.target.is_symlink()
    assert other.read_bytes() == b"precious"
    assert not (small.folder / "nowhere").exists()


def test_a_download_is_on_the_disk_before_it_is_named(small: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrors(small, monkeypatch, "good")
    synced: list[Path] = []
    monkeypatch.setattr(download, "sync_folder", lambda folder: synced.append(Path(folder)))
    files: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: files.append(os.fstat(handle).st_size))
    download.fetch("cifar10", small.folder)
    assert len(small.data) in files
    assert synced == [small.target.parent]


def test_all_mirrors_fail(small: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrors(small, monkeypatch, "gone", "lying", "portal")
    file = SOURCES["cifar10"].published[0]
    dead = replace(file, urls=(*file.urls, "http://127.0.0.1:9/a.tar.gz"))
    with_source(monkeypatch, replace(SOURCES["cifar10"], published=(dead,)))
    with pytest.raises(InputError) as caught:
        download.fetch("cifar10", small.folder)
    text = str(caught.value)
    for reason in ("answered 404", "md5 expected", "offers 27 bytes instead of", "refused"):
        assert reason in text
    assert f"no network? put the files into {small.target.parent} yourself: cifar-10-binary.tar.gz" in text
    assert "\n" not in text
    assert not small.target.exists()


def test_a_damaged_file_is_replaced(small: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrors(small, monkeypatch, "good")
    put(small.target, small.data[:-100])
    download.fetch("cifar10", small.folder)
    assert small.target.read_bytes() == small.data


def test_a_damaged_file_of_another_form_is_left_to_its_owner(small: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrors(small, monkeypatch, "good")
    path = put(small.folder / "cifar10" / "cifar-10-batches-bin" / "data_batch_1.bin", b"x")
    with pytest.raises(InputError, match="delete it, then"):
        download.fetch("cifar10", small.folder)
    assert path.read_bytes() == b"x"


def test_a_full_disk_is_found_before(small: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrors(small, monkeypatch, "good", size=10**18)
    with pytest.raises(InputError, match="1000000000000 MB are needed in"):
        download.fetch("cifar10", small.folder)
    assert small.server.asked == []


def test_a_place_that_cannot_be_written(small: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrors(small, monkeypatch, "good")
    (small.folder / "cifar10").write_text("a file")
    with pytest.raises(InputError, match="cannot write"):
        download.fetch("cifar10", small.folder)


def test_unknown_name() -> None:
    with pytest.raises(UnknownNameError, match="'digit': choose from mnist, fashion-mnist, svhn, cifar10"):
        download.fetch("digit")


def test_every_published_file_serves_a_part() -> None:
    for source in SOURCES.values():
        places = {place.path: place.md5 for part in source.parts for place in part.places}
        for file in source.published:
            assert places[file.path] == file.md5
            assert len(file.md5) == 32
            assert len(file.urls) >= 2
