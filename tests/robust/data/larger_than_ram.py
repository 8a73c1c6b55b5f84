"""Train and evaluate on data that does not fit in a limited address space; print figures as one line of JSON.

python larger_than_ram.py dataset --samples 60000 --workers 1     # the whole epoch: some minutes
"""

import argparse
import json
import resource
import time
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import sihg
from sihg.robust.data import load
from sihg.robust.data.samples import open_samples
from sihg.robust.data.sources import open_data
from tests.refused import refused

LIMIT = 4 * 2**30
N, SHAPE, CLASSES = 60_000, (3, 64, 64), 10
TESTED = 64
BLOCKS = 140  # of 16 MB of zeros


class Photographs(Dataset[Any]):
    """Images made from the hash of their row, brightened at random whenever they are read."""

    def __init__(self, n: int = N) -> None:
        self.targets = (np.arange(n) % CLASSES).tolist()

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(row)
        x = 0.1 * torch.rand(SHAPE, generator=generator) + 0.08 * self.targets[row]
        return x + 0.1 * torch.rand(()), self.targets[row]


def model() -> nn.Module:
    layers = (nn.AvgPool2d(8), nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, CLASSES))
    return nn.Sequential(*layers)


def status() -> dict[str, int]:
    """Return the bytes of address space and of memory that the process had at most."""
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "peak_address_space": 1024 * int(lines["VmPeak"].split()[0]),
        "peak_memory": 1024 * int(lines["VmHWM"].split()[0]),
    }


def train_and_evaluate(kind: str, path: str, method: str, samples: int, workers: int) -> dict[str, object]:
    warnings.simplefilter("ignore")
    data = Photographs() if kind == "dataset" else open_data(f"npy:{path}")[0]
    whole = open_samples(data)
    assert whole.lazy is not None
    torch.manual_seed(0)
    net, begin = model(), time.perf_counter()
    settings: dict[str, Any] = {
        "samples": samples,
        "batch_size": 64,
        "epochs": 2 if samples < N else 1,
        "workers": workers,
    }
    trained = sihg.fit(net, data, method=method, steps=1, eps="1/255", lr=0.1, **settings)
    middle = time.perf_counter()
    found = sihg.evaluate(net, data, eps="1/255", attacks="natural,pgd-2", samples=TESTED, workers=workers)
    return {
        "needed": whole.lazy.bytes_in_memory,
        "lazy": whole.settled().lazy is not None,
        "epochs_differ": not torch.equal(whole.floats([7], epoch=0), whole.floats([7], epoch=1)),
        "loss": trained.history[-1].loss if len(trained.history) else None,
        "evaluated": len(found.outcomes[0].broken),
        "accuracy": found.accuracy,
        "train_seconds": middle - begin,
        "evaluate_seconds": time.perf_counter() - middle,
        **status(),
    }


def refuse_compressed(folder: Path) -> dict[str, object]:
    """Load an .npz file of 2.3 GB of zeros, which is small because it is compressed."""
    zeros = bytes(2**24)
    with zipfile.ZipFile(folder / "a.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("x.npy", "w", force_zip64=True) as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": (BLOCKS * 2**24 // 64, 64)}
            np.lib.format.write_array_header_1_0(file, header)
            for _ in range(BLOCKS):
                file.write(zeros)
        with archive.open("y.npy", "w") as file:
            np.lib.format.write_array(file, np.zeros(BLOCKS * 2**24 // 64, np.uint8))
    with refused("data-too-large") as caught:
        load(f"npz:{folder / 'a.npz'}")
    return {key: caught.value.values[key] for key in ("bytes", "limit")}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("dataset", "npy", "compressed"))
    parser.add_argument("--path", default="")
    parser.add_argument("--method", default="msi-hg")
    parser.add_argument("--samples", type=int, default=N)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    if args.kind == "compressed":
        print(json.dumps(refuse_compressed(Path(args.path))))
    else:
        print(json.dumps(train_and_evaluate(args.kind, args.path, args.method, args.samples, args.workers)))


if __name__ == "__main__":
    main()
