"""hf:PATH, data sets that the package datasets wrote to the disk."""

import json
import random
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

from sihg.errors import InputError
from sihg.robust.data import load
from sihg.robust.data.sources import open_data
from tests.refused import refused
from tests.robust.data.lazy_sets import SHAPE, N, images, labels, png

datasets = pytest.importorskip("datasets")
pa = pytest.importorskip("pyarrow")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        pytest.fail("opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    datasets.disable_progress_bars()


def of_images(n: int = N, image: str = "image", label: str = "label") -> Any:
    features = datasets.Features(
        {
            image: datasets.Image(),
            label: datasets.ClassLabel(names=["cat", "dog", "cow", "hen"]),
        }
    )
    content = {image: [{"bytes": png(x), "path": None} for x in images(n)], label: labels(n).tolist()}
    return datasets.Dataset.from_dict(content, features=features)


def of_arrays(x: Any, kind: str) -> Any:
    features = datasets.Features({"x": datasets.Array3D(x.shape[1:], kind), "y": datasets.Value("int64")})
    return datasets.Dataset.from_dict({"x": list(x), "y": labels(len(x)).tolist()}, features=features)


def test_images_with_splits(tmp_path: Path) -> None:
    datasets.DatasetDict({"train": of_images(24), "validation": of_images(8)}).save_to_disk(str(tmp_path / "a"))
    train, test = open_data(f"hf:{tmp_path / 'a'}")
    assert train.lazy is not None
    assert (len(train), len(test), train.classes) == (24, 8, ("cat", "dog", "cow", "hen"))
    assert torch.equal(train.settled().x, torch.from_numpy(images(24)))
    assert torch.equal(test.floats([3, 1]), torch.from_numpy(images(8))[[3, 1]].float().div(255))


def test_one_set_of_arrays_keeps_its_type(tmp_path: Path) -> None:
    floats = (images() / 255).astype(np.float32)
    for x, kind in ((images(), "uint8"), (floats, "float32")):
        of_arrays(x, kind).save_to_disk(str(tmp_path / kind))
        train, test = load(f"hf:{tmp_path / kind}")
        assert (len(train), len(test), train.shape) == (32, 8, SHAPE)
        both = torch.cat([train.x, test.x]).flatten(1)
        assert torch.equal(both.unique(dim=0), torch.from_numpy(x).flatten(1).unique(dim=0))


def test_columns_of_other_names_are_asked_for(tmp_path: Path) -> None:
    of_images(8, image="photo").save_to_disk(str(tmp_path / "a"))
    with refused("hf-column", wanted="image", columns="photo, label"):
        load(f"hf:{tmp_path / 'a'}")
    of_images(8, label="kind").save_to_disk(str(tmp_path / "b"))
    with refused("hf-column", wanted="label"):
        load(f"hf:{tmp_path / 'b'}")


def test_an_image_that_is_a_path_or_an_address_is_not_followed(tmp_path: Path) -> None:
    for path in ("/etc/passwd", "http://localhost/x.png"):
        features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
        content = {"image": [{"bytes": None, "path": path}] * 4, "label": [0, 1, 0, 1]}
        folder = tmp_path / str(len(path))
        table = datasets.Dataset.from_dict(content, features=features)
        folder.mkdir()
        with pa.OSFile(str(folder / "data.arrow"), "wb") as out, pa.ipc.new_stream(out, table.data.schema) as writer:
            writer.write_table(table.data.table)
        (folder / "state.json").write_text(json.dumps(state("data.arrow")))
        table.info.write_to_directory(str(folder))
        with refused("hf-image-bytes", row=0):
            load(f"hf:{folder}")


def state(*files: str) -> dict[str, Any]:
    names = [{"filename": name} for name in files]
    about: dict[str, Any] = {"_fingerprint": "a", "_format_columns": None, "_format_kwargs": {}, "_format_type": None}
    return {"_data_files": names, **about, "_output_all_columns": False, "_split": None}


@pytest.mark.parametrize("name", ["../data.arrow", "/etc/passwd", "lost.arrow"])
def test_files_elsewhere_are_not_read(name: str, tmp_path: Path) -> None:
    of_images(8).save_to_disk(str(tmp_path / "a"))
    (tmp_path / "a" / "state.json").write_text(json.dumps(state(name)))
    with refused("hf-unreadable"):
        load(f"hf:{tmp_path / 'a'}")


def test_a_folder_without_a_set_and_a_machine_without_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with refused("no-hf-folder"):
            load(f"hf:{path}")
    of_images(8).save_to_disk(str(tmp_path / "a"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with refused("hf-not-installed"):
        load(f"hf:{tmp_path / 'a'}")


def test_a_changed_or_cut_file_loads_or_is_refused(tmp_path: Path) -> None:
    of_images(8).save_to_disk(str(tmp_path / "a"))
    rng = random.Random(0)
    loads = 0
    for path in sorted((tmp_path / "a").iterdir()):
        whole = path.read_bytes()
        for number in range(25):
            data = bytearray(whole)
            if number % 5 == 0:
                del data[rng.randrange(len(data)) :]
            else:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
            with suppress(InputError):
                load(f"hf:{tmp_path / 'a'}")
                loads += 1
        path.write_bytes(whole)
    assert 0 < loads < 75
