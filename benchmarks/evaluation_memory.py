"""Compare the peak memory of evaluations of 1,000 and of 10,000 samples.

`sihg evaluate` runs natural,pgd-20 on a small-cnn and noise images from an .npz file, in a new process whose peak
resident memory is read. Labels are the model's predictions and eps is tiny, so no sample breaks and all steps are
made. Records are written, as for a run.
"""

import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch
from safetensors.torch import save_file

from benchmarks.timing import MIN_REPETITIONS, Report, paired_ratio
from sihg.core.draw import generator
from sihg.robust.data import as_samples
from sihg.robust.gradients import evaluation_mode
from sihg.robust.models import build

FEW, MANY = 1000, 10_000  # samples
SHAPE, CLASSES, EPS, SEED = (1, 28, 28), 10, 1e-6, 0
MAX_RATIO = 1.2
PRINT_PEAK = (  # run by a small process: the peak of a child starts at the memory of its parent
    "import resource, subprocess, sys\n"
    "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
)


def run(repetitions: int, out: Path | None) -> Report:  # noqa: ARG001
    """Evaluate few and many samples in turn, each in a new process."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder)
        peaks: dict[int, list[float]] = {FEW: [], MANY: []}
        for repetition in range(min(repetitions, MIN_REPETITIONS)):
            for n, peak in peaks.items():
                peak.append(measure_peak(n, folder, folder / f"records-{repetition}"))
    measured = paired_ratio(peaks[MANY], peaks[FEW])
    return Report(
        f"evaluating {MANY:,} samples takes at most {MAX_RATIO} times the peak memory of {FEW:,}",
        measured.median <= MAX_RATIO,
        {
            "measured ratio of peaks": measured,
            "model": f"small-cnn, noise of {SHAPE}, natural,pgd-20",
            "repetitions": len(peaks[FEW]),
            "seed": SEED,
        },
        {
            "peak resident memory": [
                {"samples": f"{n:,}", "peak, MB": median(peak), f"over {FEW:,}": paired_ratio(peak, peaks[FEW])}
                for n, peak in peaks.items()
            ]
        },
    )


def write_inputs(folder: Path) -> None:
    """Write a model, and one data file for each number of samples."""
    model = build("small-cnn", SHAPE, CLASSES, seed=SEED)
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, folder / "model.safetensors")
    noise = torch.randint(256, (MANY, *SHAPE), generator=generator(SEED, "memory"), dtype=torch.uint8)
    x = as_samples((noise, torch.zeros(MANY, dtype=torch.int64)))
    with evaluation_mode(model), torch.no_grad():
        y = torch.cat([model(x.floats(rows)).argmax(1) for rows in torch.arange(MANY).split(FEW)])
    for n in (FEW, MANY):
        np.savez(
            folder / f"{n}.npz",
            x=noise[:CLASSES].numpy(),
            y=np.arange(CLASSES),
            x_test=noise[:n].numpy(),
            y_test=y[:n].numpy(),
        )


def measure_peak(n: int, folder: Path, records: Path) -> float:
    """Return the peak resident memory of an evaluation of n samples, in MB."""
    sihg = [sys.executable, "-m", "sihg", "evaluate", str(folder / "model.safetensors")]
    inputs = ["--model", "small-cnn", "--data", f"npz:{folder / f'{n}.npz'}", "--eps", str(EPS)]
    attacks = ["--attacks", "natural,pgd-20", "--out", str(records / str(n))]
    finished = subprocess.run(
        [sys.executable, "-c", PRINT_PEAK, *sihg, *inputs, *attacks], check=True, capture_output=True, text=True
    )
    return int(finished.stdout) / (1 << 20 if sys.platform == "darwin" else 1 << 10)
