"""MNIST models and images that evaluations are timed on.

`robust` is a run of the preset mnist-robust, `natural` three epochs of natural training. They are trained once, by the
command line, and kept in `--out`. Their weights are frozen, which spares peers that call `backward` the gradients in
weights.
"""

from pathlib import Path

from torch import Tensor, nn

from benchmarks.timing import NotRun
from sihg.cli.main import main as sihg
from sihg.errors import InputError
from sihg.robust.data import load, stratified_split
from sihg.robust.training.weights import load as load_model

EPS = 0.4
RECIPES = {
    "robust": ("--preset", "mnist-robust"),
    "natural": ("--preset", "mnist-fast", "--method", "natural", "--epochs", "3"),
}
OUT = Path("runs/bench")  # where models are kept if no folder is named


def images(n: int) -> tuple[Tensor, Tensor]:
    """Test images and their labels, each class in proportion, always the same ones."""
    try:
        _, test = load("mnist")
    except InputError as error:
        raise NotRun(str(error)) from error
    some = stratified_split(test, n)[1]
    return some.floats(), some.y


def model(kind: str, out: Path | None) -> nn.Module:
    """The trained model; a run of its name in `out` is taken up where it ended."""
    folder = (out or OUT) / f"mnist-{kind}"
    if (folder / "config.toml").is_file():
        words = ["resume", str(folder)]
    else:
        words = ["train", *RECIPES[kind], "--threads", "1", "--out", str(folder)]
    if sihg(words) != 0:
        raise RuntimeError(f"the {kind} MNIST model is not trained: see above")
    return load_model(folder).requires_grad_(False)
