"""What one SSI-HG iteration costs: in full gradients, and against the number of blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from benchmarks.timing import Ratio, Report, Row, interleaved
from sihg.core.draw import generator
from sihg.core.prox import LinfBall
from sihg.minimax import Problem, solve
from sihg.minimax.measure import estimate_curvature
from sihg.report.figures.style import QUIET, figure_style, number_log_axis, save_figure
from sihg.report.read.palette import look

SEED = 0
SAMPLES, FEATURES, HIDDEN, CLASSES = 16384, 128, 256, 10  # the network's, in all blocks together
ROWS, COLUMNS = 16384, 512  # the bilinear coupling's, likewise
BLOCKS = [1, 4, 16, 64, 256]
HEADLINE, MOST = 64, 1.3  # n, and the full gradients that an iteration may cost there
LEAST_MS = 20.0  # a full gradient shorter than this would measure Python
SIGMA = 0.5
LONGER = [0.01, 0.1]  # tau L22 beyond 1/(6n), which is the most that the paper's simplified condition allows


def run(repetitions: int, out: Path | None) -> Report:
    """Time one iteration against one full gradient, for a small network and for a matrix."""
    L22 = estimate_curvature(network(HEADLINE))
    whole, whole_matrix = network(1), matrix(1)
    nonlinear = [measure(network(n, L22), whole, 1 / (6 * n * L22), repetitions) for n in BLOCKS]
    longer = [measure(network(HEADLINE, L22), whole, q / L22, repetitions) for q in LONGER]
    bilinear = [measure(matrix(n), whole_matrix, 1 / (6 * n), repetitions) for n in BLOCKS]
    headline = nonlinear[BLOCKS.index(HEADLINE)]
    if out:
        with figure_style():
            save_figure(figure(nonlinear, bilinear), out, "iteration_cost")
    return Report(
        f"one SSI-HG iteration with n = {HEADLINE} and a small network costs at most {MOST} full gradients",
        headline.ratio.median <= MOST and headline.gradient >= LEAST_MS,
        {
            "measured": headline.ratio,
            "by arithmetic, (n+1+T)/n": headline.arithmetic,
            "T": headline.T,
            "n": HEADLINE,
            "repetitions": repetitions,
            "seed": SEED,
            "dtype": "float32",
            "network": f"{FEATURES}-{HIDDEN}-{CLASSES} tanh, {SAMPLES} perturbed samples in all blocks",
            "matrix": f"{ROWS} x {COLUMNS} in all blocks",
        },
        {
            "network, tau L22 = 1/(6n)": [cost.row() for cost in nonlinear],
            f"network, tau L22 = {' and '.join(map(str, LONGER))}": [cost.row() for cost in longer],
            "bilinear": [cost.row() for cost in bilinear],
        },
    )


@dataclass(frozen=True)
class Cost:
    """One iteration at one n: milliseconds, its ratio to a full gradient, and what counting block gradients says."""

    n: int
    T: float  # block gradients in delta, an iteration
    iteration: float
    gradient: float
    ratio: Ratio
    cpu_ratio: Ratio
    arithmetic: float

    def row(self) -> Row:
        """The row of the table."""
        return {
            "n": self.n,
            "T": self.T,
            "iteration, ms": self.iteration,
            "full gradient, ms": self.gradient,
            "ratio": self.ratio,
            "ratio of CPU time": self.cpu_ratio,
            "by arithmetic": self.arithmetic,
        }


def measure(problem: Problem, whole: Problem, tau: float, repetitions: int) -> Cost:
    """Iterate from a warm state beside as many full gradients in w there, of the same coupling in one block."""
    warm = solve(problem, sigma=SIGMA, tau=tau, iterations=5, record_every=None, seed=SEED).state
    w, delta = warm.inner.w, warm.inner.delta

    def gradients(count: int) -> None:
        with torch.no_grad():
            for _ in range(count):
                whole.gradient_w(w, delta, whole.all)

    count = 50 if problem.bilinear_in_both else 2
    timed = interleaved(
        {
            "iteration": lambda: solve(problem, state=warm, iterations=count, record_every=None).state,
            "gradient": lambda: gradients(count),
        },
        repetitions,
    )
    after = timed["iteration"].value
    T = (after.delta_gradients - warm.delta_gradients) / count
    in_w = (after.w_gradients - warm.w_gradients) / count
    milliseconds = {name: times.milliseconds(count) for name, times in timed.items()}
    ratios = timed["iteration"].over(timed["gradient"])
    return Cost(problem.n, T, **milliseconds, ratio=ratios[0], cpu_ratio=ratios[1], arithmetic=(in_w + T) / problem.n)


def network(n: int, L22: float | None = None) -> Problem:
    """phi_i: the share of block i in the mean cross-entropy of a two-layer network on perturbed samples."""
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
    """phi_i = <A_i w, delta_i>, A cut into n blocks of rows."""
    A = torch.randn(n, ROWS // n, COLUMNS, generator=generator(SEED, "matrix")) / ROWS**0.5
    return Problem.bilinear(A, w0=torch.ones(COLUMNS), g=LinfBall(0.1))


def figure(nonlinear: Sequence[Cost], bilinear: Sequence[Cost]) -> Figure:
    """An iteration's cost in full gradients against n, measured and by arithmetic."""
    drawn = Figure(figsize=(6.0, 4.0), layout="constrained")
    axes = drawn.add_subplot(xscale="log", yscale="log")
    for costs, name, colour in (
        (nonlinear, "network", look("ssi-hg").colour),
        (bilinear, "bilinear", look("spdhg").colour),
    ):
        axes.plot(BLOCKS, [c.arithmetic for c in costs], color=colour, linewidth=1, label=f"{name}, by arithmetic")
        axes.vlines(BLOCKS, [c.ratio.least for c in costs], [c.ratio.largest for c in costs], color=colour)
        axes.plot(BLOCKS, [c.ratio.median for c in costs], "o", color=colour, label=f"{name}, measured")
    axes.axhline(1, color=QUIET, linewidth=0.8, linestyle=":")
    axes.set_xticks(BLOCKS, [str(n) for n in BLOCKS])
    axes.minorticks_off()
    axes.grid(visible=True)
    number_log_axis(axes.yaxis, numbered=True)
    axes.set_xlabel("blocks n, at a fixed total size")
    axes.set_ylabel("one SSI-HG iteration, in full gradients")
    axes.legend(frameon=False)
    return drawn
