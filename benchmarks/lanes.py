"""Compare training steps in 1 and in 4 lanes, and on 2 processes with one thread and 1 process with two.

Threads hold for a whole process, so each repetition is a new one, or two under torchrun. It trains some steps on noise
and reports the median time of a step and the bytes that a process sends per step.
"""

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

from benchmarks.timing import MIN_REPETITIONS, Ratio, Report, Row, Value, paired_ratio

BATCH, STEPS, T = 128, 5, 5
MODELS = {"small-cnn": (1, 28, 28), "preact-resnet8": (3, 32, 32)}
KINDS = {  # lanes, processes, threads per process
    "1 lane, 1 process": (1, 1, 1),
    "4 lanes, 1 process": (4, 1, 1),
    "2 lanes, 1 process of 2 threads": (2, 1, 2),
    "2 lanes, 2 processes": (2, 2, 1),
}
MAX_LANES_RATIO = 2.0
CODE = """
import json, statistics, sys, time, torch
from sihg.core.processes import join_processes
from sihg.robust.data.samples import as_samples
from sihg.robust.models import build
from sihg.robust.training.config import Settings
from sihg.robust.training.events import StepDone
from sihg.robust.training.preflight import preflight
from sihg.robust.training.trainer import Trainer
torch.set_num_threads({threads})
torch.manual_seed(0)
n = {batch} * ({steps} + 1)
samples = as_samples((torch.rand(n, *{shape}), torch.arange(n) % 10))
values = dict(epochs=1, batch_size={batch}, eps="8/255", tau="4/255", steps={T}, lanes={lanes}, lr=0.01)
prepared = preflight(build({model!r}, {shape}, 10), samples, Settings().with_values(values))
with join_processes() as processes:
    trainer, times, begin, sent = Trainer(prepared, processes=processes), [], time.perf_counter(), 0
    for event in trainer.events():
        if isinstance(event, StepDone):
            times.append(time.perf_counter() - begin)
            before, sent = sent, processes.bytes_sent
            last = sent - before
            begin = time.perf_counter()
    if processes.is_first:
        weights = sum(p.numel() for p in prepared.model.parameters())
        print(json.dumps([statistics.median(times[1:]), last, weights]), flush=True)
"""


def run(repetitions: int, out: Path | None) -> Report:  # noqa: ARG001
    """Run all kinds in turn."""
    rows: list[Row] = []
    ratios: dict[str, dict[str, Ratio]] = {}
    for model in MODELS:
        measured: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
        for _ in range(min(repetitions, MIN_REPETITIONS)):
            for kind in KINDS:
                measured[kind].append(measure(model, kind))
        seconds = {kind: [run[0] for run in runs] for kind, runs in measured.items()}
        one, four, threads, processes = (seconds[kind] for kind in KINDS)
        ratios[model] = {"4 lanes": paired_ratio(four, one), "2 processes": paired_ratio(processes, threads)}
        for kind, runs in measured.items():
            rows.append(
                {
                    "model": model,
                    "computed by": kind,
                    "step, ms": 1000 * median(seconds[kind]),
                    "over 1 lane, 1 process": paired_ratio(seconds[kind], one),
                    "bytes sent per step and process": int(runs[0][1]),
                    "bytes of the gradient": 4 * int(runs[0][2]),
                }
            )
    worst = max(found["4 lanes"].median for found in ratios.values())
    about: dict[str, Value] = {}
    for model, found in ratios.items():
        about[f"{model}: 4 lanes over 1 lane, one thread"] = found["4 lanes"]
        about[f"{model}: 2 processes of one thread over 1 process of two"] = found["2 processes"]
    return Report(
        f"on one process, a step of MSI-HG in 4 lanes takes at most {MAX_LANES_RATIO} times a step in 1 lane",
        worst <= MAX_LANES_RATIO,
        {**about, "batch": BATCH, "ascent steps": T, "repetitions": min(repetitions, MIN_REPETITIONS), "seed": 0},
        {"one step": rows},
    )


def measure(model: str, kind: str) -> list[float]:
    """Return seconds per step, bytes sent per step and the number of weights, measured in new processes."""
    lanes, processes, threads = KINDS[kind]
    code = CODE.format(model=model, shape=MODELS[model], batch=BATCH, steps=STEPS, T=T, lanes=lanes, threads=threads)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "--no-python"]
    command = [sys.executable, *(launch if processes > 1 else []), *([sys.executable] if processes > 1 else [])]
    found = subprocess.run([*command, "-c", code], capture_output=True, text=True, check=True)
    values: list[float] = json.loads(found.stdout.strip().splitlines()[-1])
    return values
