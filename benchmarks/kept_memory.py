"""A training step with the memory kept that passes free, as `robust/allocator.py` asks for, and without.

What glibc keeps cannot be told apart within one process, so each repetition is a process of its own, which takes some
steps of PGD AT on noise and counts the pages that it had to ask for.
"""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from statistics import median

from benchmarks.timing import FEWEST, NotRun, Report, ratio
from sihg.robust._malloc import USER_VARIABLES

MODEL, BATCH, STEPS, T = "preact-resnet8", 100, 4, 10
WAYS = {"kept": "", "given back": "passes.keep_freed_memory = lambda: None"}
CODE = """
import json, resource, time, torch
from sihg.robust import gradients as passes
from sihg.robust.data.batches import batches
from sihg.robust.methods import PGDAT
from sihg.robust.models import build
torch.set_num_threads(1)
{way}
torch.manual_seed(0)
n = {batch} * ({steps} + 1)
data = torch.rand(n, 3, 32, 32), torch.arange(n) % 10
model, method = build({model!r}, (3, 32, 32), 10), PGDAT(eps=8 / 255, steps={T})
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for i, batch in enumerate(batches(data, size={batch}, seed=0, epochs=1)):
    if i == 1:  # the first warms up
        wall, cpu = time.perf_counter(), time.process_time()
        pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    method.step(model, batch, optimizer)
pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - pages
print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu, pages]))
"""


def run(repetitions: int, out: Path | None) -> Report:  # noqa: ARG001
    """Both ways in turn."""
    if platform.libc_ver()[0] != "glibc":
        raise NotRun("it is glibc that is told to keep memory")
    found: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    for _ in range(min(repetitions, FEWEST)):
        for way, code in WAYS.items():
            found[way].append(steps(code))
    wall, cpu = (ratio(*([one[i] for one in found[way]] for way in reversed(WAYS))) for i in range(2))
    return Report(
        f"memory that is kept makes no step of PGD AT slower ({MODEL}, batch {BATCH}, T = {T})",
        wall.median >= 1,
        {"given back over kept": wall, "of CPU time": cpu, "repetitions": len(found["kept"]), "seed": 0},
        {
            "a step": [
                {
                    "freed memory": way,
                    "ms": 1e3 * median(one[0] for one in times) / STEPS,
                    "CPU, ms": 1e3 * median(one[1] for one in times) / STEPS,
                    "pages asked for": median(one[2] for one in times) / STEPS,
                }
                for way, times in found.items()
            ]
        },
    )


def steps(way: str) -> list[float]:
    """The seconds by the clock and of the processor of some steps, and the pages they asked for."""
    code = CODE.format(way=way, batch=BATCH, steps=STEPS, model=MODEL, T=T)
    plain = {name: value for name, value in os.environ.items() if name not in USER_VARIABLES}
    done = subprocess.run([sys.executable, "-c", code], env=plain, check=True, capture_output=True, text=True)
    measured: list[float] = json.loads(done.stdout)
    return measured
