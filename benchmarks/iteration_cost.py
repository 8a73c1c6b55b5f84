"""Measure the cost of one SSI-HG iteration in full gradients, by number of blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from benchmarks.timing import Ratio, Report, Row, time_interleaved
from sihg.core.draw import generator
from sihg.core.prox import LinfBall
from sihg.minimax import Problem, solve
from sihg.minimax.measure import estimate_curvature
from sihg.report.figures.style import QUIET, figure_style, number_log_axis, save_figure
from sihg.report.read.palette import look

SEED = 0
SAMPLES, FEATURES, HIDDEN, CLASSES = 16384, 128, 256, 10  # of the network; samples in all blocks together
ROWS, COLUMNS = 16384, 512  # of the bilinear coupling; rows in all blocks together
BLOCKS = [1, 4, 16, 64, 256]
HEADLINE_N, MAX_RATIO = 64, 1.3  # the claim: one iteration at this n costs at most so many full gradients
MIN_GRADIENT_MS = 20.0  # for a shorter full gradient the overhead of Python would dominate
SIGMA = 0.5
LARGER_TAU_L22 = [0.01, 0.1]  # above 1/(6n), the largest value that the paper's simplified condition allows


def run(repetitions: int, out: Path | None) -> Report:
    """Compare the time of one iteration with one full gradient, for a small network and for a matrix."""
    L22 = estimate_curvature(network(HEADLINE_N))
    whole, whole_matrix = network(1), matrix(1)
    nonlinear = [measure(network(n, L22), whole, 1 / (6 * n * L22), repetitions) for n in BLOCKS]
    larger_tau = [measure(network(HEADLINE_N, L22), whole, q / L22, repetitions) for q in LARGER_TAU_L22]
    bilinear = [measure(matrix(n), whole_matrix, 1 / (6 * n), repetitions) for n in BLOCKS]
    headline = nonlinear[BLOCKS.index(HEADLINE_N)]
    if out:
        with figure_style():
            save_figure(draw_figure(nonlinear, bilinear), out, "iteration_cost")
    return Report(
        f"one SSI-HG iteration with n = {HEADLINE_N} and a small network costs at most {MAX_RATIO} full gradients",
        headline.ratio.median <= MAX_RATIO and headline.gradient >= MIN_GRADIENT_MS,
        {
            "measured": headline.ratio,
            "by arithmetic, (n+1+T)/n": headline.counted,
            "T": headline.T,
            "n": HEADLINE_N,
            "repetitions": repetitions,
            "seed": SEED,
            "dtype": "float32",
            "network": f"{FEATURES}-{HIDDEN}-{CLASSES} tanh, {SAMPLES} perturbed samples in all blocks",
            "matrix": f"{ROWS} x {COLUMNS} in all blocks",
        },
        {
            "network, tau L22 = 1/(6n)": [cost.row() for cost in nonlinear],
            f"network, tau L22 = {' and '.join(map(str, LARGER_TAU_L22))}": [cost.row() for cost in larger_tau],
            "bilinear": [cost.row() for cost in bilinear],
        },
    )


@dataclass(frozen=True)
class Cost:
    """The cost of one iteration at one n: milliseconds, and ratio to a full gradient, measured and by counting."""

    n: int
    T: float  # block gradients in delta per iteration
    iteration: float
    gradient: float
    ratio: Ratio
    cpu_ratio: Ratio
    counted: float

    def row(self) -> Row:
        """Return the row of the table."""
        return {
            "n": self.n,
            "T": self.T,
            "iteration, ms": self.iteration,
            "full gradient, ms": self.gradient,
            "ratio": self.ratio,
            "ratio of CPU time": self.cpu_ratio,
            "by arithmetic": self.counted,
        }


def measure(problem: Problem, whole: Problem, tau: float, repetitions: int) -> Cost:
    """Time iterations from a warm state, and as many full gradients in w of the same coupling in one block."""
    warm = solve(problem, sigma=SIGMA, tau=tau, iterations=5, record_every=None, seed=SEED).state
    w, delta = warm.inner.w, warm.inner.delta

    def gradients(count: int) -> None:
        with torch.no_grad():
            for _ in range(count):
                whole.gradient_w(w, delta, whole.all)

    count = 50 if problem.bilinear_in_both else 2
    timings = time_interleaved(
        {
            "iteration": lambda: solve(problem, state=warm, iterations=count, record_every=None).state,
            "gradient": lambda: gradients(count),
        },
        repetitions,
    )
    after = timings["iteration"].value
    T = (after.delta_gradients - warm.delta_gradients) / count
    in_w = (after.w_gradients - warm.w_gradients) / count
    milliseconds = {name: times.milliseconds(count) for name, times in timings.items()}
    ratios = timings["iteration"].over(timings["gradient"])
    return Cost(problem.n, T, **milliseconds, ratio=ratios[0], cpu_ratio=ratios[1], counted=(in_w + T) / problem.n)


def network(n: int, L22: float | None = None) -> Problem:
    """Build phi_i, block i's part of the mean cross-entropy of a two-layer network on perturbed samples."""
    draw = generator(SEED, "network")
    x = torch.randn(n, SAMPLES // n, FEATURES, generator=draw)
    y = torch.randint(CLASSES, x.shape[:2], generator=draw)
    w0 = {
        "hidden": torch.randn(HIDDEN, FEATURES, generator=draw) / FEATURES**0.5,
        "hidden bias": torch.zeros(HIDDEN),
        "out": torch.randn(CLASSES, HIDDEN, generator=draw) / HIDDEN**0.5,
        "out bias": torch.zeros(CLASSES),
    }

    def phi(w: dict[str, Tensor], delta: Tensor, index: Tensor) -> Tensor:
        hidden = torch.tanh(linear((x[index] + delta).flatten(0, 1), w["hidden"], w["hidden bias"]))
        losses = cross_entropy(linear(hidden, w["out"], w["out bias"]), y[index].flatten(), reduction="none")
        return losses.view(len(index), -1).sum(1) / SAMPLES

    return Problem(phi, w0, torch.zeros_like(x), g=LinfBall(0.1), constants={} if L22 is None else {"L22": L22})


def matrix(n: int) -> Problem:
    """Build phi_i = <A_i w, delta_i>, with A cut into n blocks of rows."""
    A = torch.randn(n, ROWS // n, COLUMNS, generator=generator(SEED, "matrix")) / ROWS**0.5
    return Problem.bilinear(A, w0=torch.ones(COLUMNS), g=LinfBall(0.1))


def draw_figure(nonlinear: Sequence[Cost], bilinear: Sequence[Cost]) -> Figure:
    """Draw the cost of an iteration in full gradients against n, measured and by counting gradients."""
    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    axes = figure.add_subplot(xscale="log", yscale="log")
    for costs, name, colour in (
        (nonlinear, "network", look("ssi-hg").colour),
        (bilinear, "bilinear", look("spdhg").colour),
    ):
        axes.plot(BLOCKS, [cost.counted for cost in costs], color=colour, linewidth=1, label=f"{name}, by arithmetic")
        axes.vlines(
            BLOCKS, [cost.ratio.smallest for cost in costs], [cost.ratio.largest for cost in costs], color=colour
        )
        axes.plot(BLOCKS, [cost.ratio.median for cost in costs], "o", color=colour, label=f"{name}, measured")
    axes.axhline(1, color=QUIET, linewidth=0.8, linestyle=":")
    axes.set_xticks(BLOCKS, [str(n) for n in BLOCKS])
    axes.minorticks_off()
    axes.grid(visible=True)
    number_log_axis(axes.yaxis, numbered=True)
    axes.set_xlabel("blocks n, at a fixed total size")
    axes.set_ylabel("one SSI-HG iteration, in full gradients")
    axes.legend(frameon=False)
    return figure
