"""How many bytes a perturbation memory takes: the arithmetic for Tiny-ImageNet, checked against measured bytes.

    python -m benchmarks.memory_bytes

A memory of fewer samples of the same shape is made and filled: in RAM, where the private memory of the process grows,
and in files, whose blocks on the disk are counted.
"""

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.timing import Row, format_table
from sihg.robust.memory import PerturbationMemory
from sihg.robust.methods import ATTA, FGSMPGI, MSIHG

TINY_IMAGENET, SHAPE, EPS = 100_000, (3, 64, 64), 8 / 255
PUBLISHED = 18.57  # GB on the GPU in a training by FGSM-PGI on Tiny-ImageNet, in the benchmark of fast methods
BATCH = 100
ROWS = {  # the shape of a row, and its number format
    "FGSM-PGI": (FGSMPGI(eps=EPS).row_shape(SHAPE), "int8"),
    "FGSM-PGI without momentum": (FGSMPGI(eps=EPS, momentum_decay=0.0).row_shape(SHAPE), "int8"),
    "ATTA": (ATTA(eps=EPS).row_shape(SHAPE), "int8"),
    "MSI-HG": (MSIHG(eps=EPS).row_shape(SHAPE), "int8"),
    "MSI-HG, float32": (MSIHG(eps=EPS).row_shape(SHAPE), "fp32"),
}


def private_bytes() -> int:
    """Return the memory of this process that no file backs."""
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    return 1024 * int(fields["RssAnon"].split()[0])


def fill(memory: PerturbationMemory) -> None:
    """Write both generations of every sample."""
    for epoch in range(2):
        for index in torch.arange(memory.n).split(BATCH):
            memory.write(index, epoch, torch.full((len(index), *memory.shape), EPS))
    memory.flush()


def measure(shape: tuple[int, ...], dtype: str, samples: int) -> dict[str, float]:
    """Return the bytes per sample: by arithmetic, in RAM and in files."""
    small = PerturbationMemory(BATCH, shape, EPS, dtype=dtype)
    fill(small)  # what the first writes allocate is not of the memory
    before = private_bytes()
    memory = PerturbationMemory(samples, shape, EPS, dtype=dtype)
    fill(memory)
    in_ram = private_bytes() - before
    with TemporaryDirectory() as folder:
        fill(PerturbationMemory(samples, shape, EPS, dtype=dtype, folder=Path(folder)))
        in_files = sum(512 * path.stat().st_blocks for path in Path(folder).rglob("*") if path.is_file())
    return {"arithmetic": memory.nbytes / samples, "in RAM": in_ram / samples, "in files": in_files / samples}


def table(samples: int) -> str:
    """Return the table: bytes per sample, and what they make for Tiny-ImageNet."""
    rows: list[Row] = []
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # what is freed goes back to the system at once
    fresh = ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1)  # nothing freed to use again
    for name, (shape, dtype) in ROWS.items():
        found = fresh.submit(measure, shape, dtype, samples).result()
        rows.append(
            {
                "memory of": name,
                **{f"bytes per sample, {where}": f"{value:,.0f}" for where, value in found.items()},
                "Tiny-ImageNet, GB": f"{TINY_IMAGENET * found['arithmetic'] / 1e9:.2f}",
                f"of {PUBLISHED} GB": f"{TINY_IMAGENET * found['arithmetic'] / 1e9 / PUBLISHED:.0%}",
            }
        )
    return format_table(rows)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory_bytes", description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=int, default=2000, metavar="N", help="samples to measure (default: 2000)")
    print(table(parser.parse_args().samples))
    return 0


if __name__ == "__main__":
    sys.exit(main())
