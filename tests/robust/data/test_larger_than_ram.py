"""60,000 float images of 3x64x64, 2.9 GB, train and are evaluated within 4 GiB of address space."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("resource")  # not on Windows

ROOT = Path(__file__).parents[3]
LIMIT = 4 * 2**30


def run(*words: object) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.robust.data.larger_than_ram", *map(str, words)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_a_lazy_dataset_trains_and_is_evaluated(workers: int) -> None:
    found = run("dataset", "--samples", 256, "--workers", workers)
    assert found["needed"] == 60_000 * 3 * 64 * 64 * 4 > LIMIT / 2
    assert found["lazy"]
    assert found["peak_address_space"] < LIMIT
    assert found["epochs_differ"]
    assert found["evaluated"] == 64


@pytest.mark.slow
def test_a_file_larger_than_the_limit_trains_and_is_evaluated(tmp_path: Path) -> None:
    shape = (120_000, 3, 64, 64)  # 5.9 GB, with holes that take no space on the disk
    header = np.lib.format.header_data_from_array_1_0(np.empty((0,), np.float32)) | {"shape": shape}
    with (tmp_path / "x_train.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + 4 * int(np.prod(shape)))
    np.save(tmp_path / "y_train.npy", np.arange(shape[0]) % 10)
    found = run("npy", "--path", tmp_path, "--samples", 256)
    assert found["needed"] > LIMIT
    assert found["peak_address_space"] < LIMIT
    assert found["evaluated"] == 64


@pytest.mark.slow
def test_what_cannot_be_read_by_row_is_refused_with_its_bytes(tmp_path: Path) -> None:
    found = run("compressed", "--path", tmp_path)
    assert found["bytes"] > found["limit"] > 0
