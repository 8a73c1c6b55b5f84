"""Time steps of training and an evaluation in float32 and in bfloat16, and show what `auto` chooses.

The samples of the evaluation are labelled as the model classifies them and the ball is tiny, so that all of them last
through the 20 steps.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import SGD

from benchmarks.timing import Ratio, Report, Row, time_interleaved
from sihg.core.draw import generator
from sihg.core.hybrid import HybridGradient
from sihg.robust.attacks import PGD
from sihg.robust.attacks.runner import attack_batch
from sihg.robust.data.batches import Batch
from sihg.robust.data.samples import Samples
from sihg.robust.gradients import compute_logits
from sihg.robust.memory import PerturbationMemory
from sihg.robust.methods import MSIHG, PGDAT
from sihg.robust.methods.base import Method
from sihg.robust.models import build
from sihg.robust.precision import FORMATS, number_formats
from sihg.robust.training.config import Settings
from sihg.robust.training.preflight import preflight

SEED = 0
CASES = [
    ("small-cnn", (1, 28, 28), 256),
    ("preact-resnet8", (3, 32, 32), 100),
    ("preact-resnet18", (3, 32, 32), 50),
]
EPS, TINY = 0.1, 1e-5
SECONDS = 60.0  # time limit per row
MIN_SPEEDUP = 1.8  # of residual networks, where the processor has AVX512-BF16
MIN_AUTO = 0.95  # of what `auto` chose: never slower, up to noise


def run(repetitions: int, out: Path | None) -> Report:  # noqa: ARG001
    """Time both formats in turn, for each model: a step of MSI-HG, one of PGD AT, and PGD-20 on a batch."""
    rows = [row for case in CASES for row in measure(*case, repetitions)]
    has_bfloat16 = "avx512_bf16" in read_cpu_flags()
    bounds = {"float32": 0.0, "bfloat16": MIN_AUTO}
    resnets = [row["float32 over bfloat16"] for row in rows if "resnet" in str(row["model"])]
    fast = all(isinstance(ratio, Ratio) and ratio.median >= MIN_SPEEDUP for ratio in resnets)
    ratios = [(row["float32 over bfloat16"], bounds[str(row["auto chooses"])]) for row in rows]
    never_slower = all(isinstance(ratio, Ratio) and ratio.median >= least for ratio, least in ratios)
    return Report(
        f"bfloat16 is at least {MIN_SPEEDUP} times as fast for the residual networks on this processor, which has "
        "AVX512-BF16, and what auto chooses is never slower"
        if has_bfloat16
        else "what auto chooses is never slower (this processor has no AVX512-BF16)",
        (fast or not has_bfloat16) and never_slower,
        {"processor has AVX512-BF16": str(has_bfloat16), "seed": SEED},
        {"float32 time over bfloat16 time": rows},
    )


def measure(name: str, shape: tuple[int, int, int], size: int, repetitions: int) -> list[Row]:
    """Time one model."""
    draw = generator(SEED, "precision")
    x = torch.randint(256, (size, *shape), generator=draw, dtype=torch.uint8)
    samples = Samples(x, torch.randint(10, (size,), generator=draw), tuple("0123456789"), "noise")
    work: dict[str, Callable[[str], Callable[[], Any]]] = {
        "MSI-HG step, T = 5": lambda form: training_step(build(name, shape, 10, seed=SEED), "msi-hg", samples, form),
        "PGD AT step, T = 10": lambda form: training_step(build(name, shape, 10, seed=SEED), "pgd", samples, form),
        "PGD-20 evaluation": lambda form: evaluation(build(name, shape, 10, seed=SEED), samples, form),
    }
    settings = Settings().with_values(
        {"method": "pgd", "eps": EPS, "batch_size": size, "precision": "auto", "train_precision": "auto"}
    )
    chosen = preflight(build(name, shape, 10, seed=SEED), samples, settings)
    rows: list[Row] = []
    for title, prepare in work.items():
        timings = time_interleaved({form: prepare(form) for form in FORMATS}, repetitions, SECONDS)
        wall, cpu = timings["float32"].over(timings["bfloat16"])
        rows.append(
            {
                "model": name,
                "batch": size,
                "work": title,
                "float32, ms": timings["float32"].milliseconds(1),
                "bfloat16, ms": timings["bfloat16"].milliseconds(1),
                "float32 over bfloat16": wall,
                "ratio of CPU time": cpu,
                "auto chooses": chosen.settings.precision,
                "for training": chosen.settings.train_precision,
                "repetitions": len(timings["float32"].wall),
            }
        )
    return rows


def training_step(model: nn.Module, method: str, samples: Samples, form: str) -> Callable[[], object]:
    """Return a step on the whole batch, with all passes in one format."""
    x, y, n = samples.floats(), samples.y, len(samples)
    memory = PerturbationMemory(n, samples.shape, EPS)
    chosen: Method = MSIHG(eps=EPS, memory=memory) if method == "msi-hg" else PGDAT(eps=EPS)
    plain = SGD(model.parameters(), lr=1e-4, momentum=0.9)
    optimizer = HybridGradient(plain, theta=1.0) if method == "msi-hg" else plain
    batch = Batch(x, y, torch.arange(n), epoch=0, step=0, seed=SEED, size=n)

    def step() -> None:
        with number_formats(model.train(), ascent=form, training=form):
            chosen.step(model, batch, optimizer)

    return step


def evaluation(model: nn.Module, samples: Samples, form: str) -> Callable[[], object]:
    """Return PGD-20 on the whole batch."""
    x = samples.floats()
    y = compute_logits(model, x).argmax(1)
    attack = PGD(eps=TINY, steps=20)
    return lambda: attack_batch(attack, model, x, y, precision=form)


def read_cpu_flags() -> set[str]:
    """Return what the processor announces; nothing where the system does not tell."""
    try:
        return set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return set()
