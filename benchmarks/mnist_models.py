"""MNIST models and images for the benchmarks of evaluations.

`robust` is a run of the preset mnist-robust, `natural` has three epochs of natural training. The command line trains
them once and `--out` keeps them. Their weights are frozen, so peers that call `backward` compute no gradients of
weights.
"""

from pathlib import Path

from torch import Tensor, nn

from benchmarks.timing import SkipBenchmark
from sihg.cli.main import main as sihg
from sihg.errors import InputError
from sihg.robust.data import load, stratified_split
from sihg.robust.training.weights import load as load_run

EPS = 0.4
RECIPES = {
    "robust": ("--preset", "mnist-robust"),
    "natural": ("--preset", "mnist-fast", "--method", "natural", "--epochs", "3"),
}
DEFAULT_OUT = Path("runs/bench")  # keeps the models if --out is not given


def load_images(n: int) -> tuple[Tensor, Tensor]:
    """Return n test images and their labels: a stratified subset, always the same."""
    try:
        _, test = load("mnist")
    except InputError as error:
        raise SkipBenchmark(str(error)) from error
    subset = stratified_split(test, n)[1]
    return subset.floats(), subset.y


def load_model(kind: str, out: Path | None) -> nn.Module:
    """Return the trained model; a run that already exists in `out` is resumed."""
    folder = (out or DEFAULT_OUT) / f"mnist-{kind}"
    if (folder / "config.toml").is_file():
        command = ["resume", str(folder)]
    else:
        command = ["train", *RECIPES[kind], "--threads", "1", "--out", str(folder)]
    if sihg(command) != 0:
        raise RuntimeError(f"training the {kind} MNIST model failed: see the output above")
    return load_run(folder).requires_grad_(False)
