"""Compare a training step when malloc keeps freed memory, as `sihg/robust/_fast_passes.py` asks, and when it does not.

The setting of glibc holds for a whole process, so each repetition is a new process. It makes some steps of PGD AT on
noise and counts the page faults.
"""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from statistics import median

from benchmarks.timing import MIN_REPETITIONS, Report, SkipBenchmark, paired_ratio
from sihg.robust._fast_passes import USER_VARIABLES

MODEL, BATCH, STEPS, T = "preact-resnet8", 100, 4, 10
VARIANTS = {"kept": "", "returned": "gradients.keep_freed_memory = lambda: None"}
CODE = """
import json, resource, time, torch
from sihg.robust import gradients
from sihg.robust.data.batches import batches
from sihg.robust.methods import PGDAT
from sihg.robust.models import build
torch.set_num_threads(1)
{variant}
torch.manual_seed(0)
n = {batch} * ({steps} + 1)
data = torch.rand(n, 3, 32, 32), torch.arange(n) % 10
model, method = build({model!r}, (3, 32, 32), 10), PGDAT(eps=8 / 255, steps={T})
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for i, batch in enumerate(batches(data, size={batch}, seed=0, epochs=1)):
    if i == 1:  # the first step warms up
        wall, cpu = time.perf_counter(), time.process_time()
        pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    method.step(model, batch, optimizer)
pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - pages
print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu, pages]))
"""


def run(repetitions: int, out: Path | None) -> Report:  # noqa: ARG001
    """Run both variants in turn."""
    if platform.libc_ver()[0] != "glibc":
        raise SkipBenchmark("only glibc can be told to keep freed memory")
    measured: dict[str, list[list[float]]] = {variant: [] for variant in VARIANTS}
    for _ in range(min(repetitions, MIN_REPETITIONS)):
        for variant, code in VARIANTS.items():
            measured[variant].append(measure_steps(code))
    wall, cpu = (
        paired_ratio(*([times[i] for times in measured[variant]] for variant in ("returned", "kept"))) for i in range(2)
    )
    return Report(
        f"a step of PGD AT with freed memory kept takes at most the time without ({MODEL}, batch {BATCH}, T = {T})",
        wall.median >= 1,
        {"returned over kept": wall, "ratio of CPU time": cpu, "repetitions": len(measured["kept"]), "seed": 0},
        {
            "one step": [
                {
                    "freed memory": variant,
                    "ms": 1e3 * median(run[0] for run in runs) / STEPS,
                    "CPU, ms": 1e3 * median(run[1] for run in runs) / STEPS,
                    "page faults": median(run[2] for run in runs) / STEPS,
                }
                for variant, runs in measured.items()
            ]
        },
    )


def measure_steps(variant: str) -> list[float]:
    """Run steps in a new process; return their wall seconds, CPU seconds and page faults."""
    code = CODE.format(variant=variant, batch=BATCH, steps=STEPS, model=MODEL, T=T)
    environment = {name: value for name, value in os.environ.items() if name not in USER_VARIABLES}
    finished = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    measurement: list[float] = json.loads(finished.stdout)
    return measurement
