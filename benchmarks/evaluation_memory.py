"""Peak memory of an evaluation against the number of samples.

`sihg evaluate` attacks a small-cnn by natural,pgd-20 on images of noise in an .npz file, in a process of its own whose
largest resident memory is taken. Labels are the model's predictions and eps is tiny, so every sample is attacked to the
end; records are kept, as of a run.
"""

import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch
from safetensors.torch import save_file

from benchmarks.timing import FEWEST, Report, ratio
from sihg.core.draw import generator
from sihg.robust.data import as_samples
from sihg.robust.gradients import evaluation_mode
from sihg.robust.models import build

FEW, MANY = 1000, 10_000  # samples
SHAPE, CLASSES, EPS, SEED = (1, 28, 28), 10, 1e-6, 0
MOST = 1.2
WATCH = (  # in a process that has loaded nothing: a child's figure begins with the memory of the one that starts it
    "import resource, subprocess, sys\n"
    "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
)


def run(repetitions: int, out: Path | None) -> Report:  # noqa: ARG001
    """Evaluate few and many samples in turn."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        peaks: dict[int, list[float]] = {FEW: [], MANY: []}
        for repetition in range(min(repetitions, FEWEST)):
            for n, peak in peaks.items():
                peak.append(peak_of(n, folder, folder / f"records-{repetition}"))
    measured = ratio(peaks[MANY], peaks[FEW])
    return Report(
        f"evaluating {MANY:,} samples takes at most {MOST} times the peak memory of {FEW:,}",
        measured.median <= MOST,
        {
            "measured, peak over peak": measured,
            "model": f"small-cnn, noise of {SHAPE}, natural,pgd-20",
            "repetitions": len(peaks[FEW]),
            "seed": SEED,
        },
        {
            "peak resident memory": [
                {"samples": f"{n:,}", "peak, MB": median(peak), f"over {FEW:,}": ratio(peak, peaks[FEW])}
                for n, peak in peaks.items()
            ]
        },
    )


def write(folder: Path) -> None:
    """A model, and its data for each number of samples."""
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


def peak_of(n: int, folder: Path, records: Path) -> float:
    """The largest resident memory of an evaluation of so many samples, in MB."""
    sihg = [sys.executable, "-m", "sihg", "evaluate", str(folder / "model.safetensors")]
    what = ["--model", "small-cnn", "--data", f"npz:{folder / f'{n}.npz'}", "--eps", str(EPS)]
    attacks = ["--attacks", "natural,pgd-20", "--out", str(records / str(n))]
    watched = subprocess.run(
        [sys.executable, "-c", WATCH, *sihg, *what, *attacks], check=True, capture_output=True, text=True
    )
    return int(watched.stdout) / (1 << 20 if sys.platform == "darwin" else 1 << 10)
