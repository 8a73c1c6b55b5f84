"""Write the trained model of a run in another format."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from sihg.errors import InputError, UnknownNameError
from sihg.formats.graph_files import MAX_DIFFERENCE, write_onnx, write_torch_export
from sihg.formats.hub_export import write_hub_folder
from sihg.formats.robustbench_info import write_robustbench_info
from sihg.formats.source_run import SourceRun, open_source_run
from sihg.robust.data.samples import Samples, open_samples
from sihg.robust.data.sources import open_data
from sihg.store.files import make_parents, status

FORMATS = {
    "hf": "a folder for the Hugging Face hub: model.safetensors, config.json and a model card, README.md",
    "robustbench": "RobustBench's model_info: a .json file, or a folder that gets model_info/DATA/NORM/NAME.json",
    "onnx": "an ONNX file with a dynamic batch size",
    "torch-export": "a .pt2 file of torch.export with a dynamic batch size",
}
GRAPHS = {"onnx": write_onnx, "torch-export": write_torch_export}


@dataclass(frozen=True)
class Exported:
    """What an export wrote.

    Args:
        files: The files.
        notes: What the user has to know, such as fields to fill in.
        difference: Of a graph: the largest difference of a logit to torch's, on `samples` real samples.
    Example:
        >>> Exported((Path("model.onnx"),), difference=1e-7, samples=256).notes
        ()
    """

    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()
    difference: float | None = None
    samples: int = 0


def export(
    run: str | Path,
    out: str | Path,
    *,
    to: str,
    checkpoint: str = "last",
    model: str | nn.Module | None = None,
    data: object = None,
    data_dir: str | Path | None = None,
    samples: int = 256,
    overwrite: bool = False,
    trust: bool = False,
) -> Exported:
    """Write the trained model of a run in another format, as `sihg export` does.

    Args:
        run: The run folder.
        out: Where to write: a folder for "hf", a file for "onnx" and "torch-export", either for "robustbench".
        to: "hf", "robustbench", "onnx" or "torch-export".
        checkpoint: "last" or "best".
        model: The architecture, for a run of `fit` with a model of your own: a module, or path.py:name.
        data: For "onnx" and "torch-export", the samples on which the file is compared with the model: the name of a
            data set, a pair (x, y) or a Dataset (default: the test samples of the run).
        data_dir: The folder of the data files.
        samples: How many of them.
        overwrite: Replace what is there.
        trust: Whether code that the run folder names may run although no command of yours made it.
    Returns:
        The files, notes, and for a graph the largest difference of a logit.
    Raises:
        InputError: The run cannot be loaded, `out` exists, a package is missing, or the file computes something else.
    Example:
        >>> export("runs/first", "model", to="hf")  # doctest: +SKIP
        Exported(files=(PosixPath('model/model.safetensors'), ...
    """
    if to not in FORMATS:
        raise UnknownNameError("format", to, list(FORMATS))
    out = Path(out)
    source = open_source_run(Path(run), checkpoint, model=model, trust=trust)
    if to == "hf":
        return Exported(tuple(write_hub_folder(source, out, overwrite=overwrite)))
    if to == "robustbench":
        file, notes = write_robustbench_info(source, out, overwrite=overwrite)
        return Exported((file,), tuple(notes))
    if status(out) is not None and not (overwrite and out.is_file()):
        raise InputError("export-exists", out=out)
    x = _test_samples(source, data, data_dir, samples)
    make_parents(out)
    difference = GRAPHS[to](source.build().eval(), x, out)
    return Exported((out,), difference=difference, samples=len(x))


def describe_difference(exported: Exported) -> str:
    """Return how far a graph is from the model, in words."""
    return (
        f"largest difference of a logit on {exported.samples} samples: {exported.difference:.2g} "
        f"(at most {MAX_DIFFERENCE:g}, times the largest logit if that is above 1)"
    )


def _test_samples(source: SourceRun, data: object, data_dir: str | Path | None, count: int) -> torch.Tensor:
    """Return real samples, of all classes if they are shuffled."""
    if count < 1:
        raise InputError("export-samples", samples=count)
    folder = None if data_dir is None else Path(data_dir)
    where = source.weights.settings.data if data is None else data
    try:
        found: Samples = (
            open_data(where, folder or source.weights.data_dir)[1] if isinstance(where, str) else open_samples(where)
        )
    except InputError as error:
        if error.code != "data-in-memory":
            raise
        raise InputError("export-data-in-memory", run=source.folder.path) from error
    rows: Sequence[int] = range(min(count, len(found)))
    x = found.floats(torch.tensor(rows))
    if source.weights.shape not in (None, tuple(x.shape[1:])):
        raise InputError("weights-shape", source=source.folder.path, shape=source.weights.shape, found=x.shape[1:])
    return x
