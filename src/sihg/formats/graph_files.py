"""Write a model as a graph, ONNX or torch.export, and compare what the file computes with the model."""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sihg.errors import InputError

MAX_DIFFERENCE = 1e-5  # of a logit, times the largest logit if that is above 1
INPUT, OUTPUT = "images", "logits"
EXPORTER = logging.getLogger("torch.onnx")
PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def write_onnx(model: nn.Module, x: Tensor, out: Path) -> float:
    """Write an ONNX file with a dynamic batch size; return the largest difference of a logit under onnxruntime.

    Args:
        model: The model in evaluation mode, on the CPU.
        x: Real samples.
        out: The file.
    Raises:
        InputError: A package is missing, the model cannot be exported, or the file computes something else.
    """
    for name in PACKAGES:
        try:
            import_module(name)
        except ImportError as error:
            raise InputError("onnx-missing", package=name, error=error) from error
    runtime: Any = import_module("onnxruntime")
    with _beside(out) as part:
        with _quiet("onnx"):
            torch.onnx.export(
                model,
                (x[:2],),
                str(part),
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
        session = runtime.InferenceSession(str(part), providers=["CPUExecutionProvider"])
        return _compare(model, x, lambda some: torch.from_numpy(session.run([OUTPUT], {INPUT: some.numpy()})[0]), out)


def write_torch_export(model: nn.Module, x: Tensor, out: Path) -> float:
    """Write a file of torch.export with a dynamic batch size; return the largest difference of a logit."""
    with _beside(out) as part:
        with _quiet("torch-export"):
            program = torch.export.export(model, (x[:2],), dynamic_shapes=({0: torch.export.Dim("batch")},))
            torch.export.save(program, str(part))
        return _compare(model, x, torch.export.load(str(part)).module(), out)


@contextmanager
def _beside(out: Path) -> Iterator[Path]:
    """Give a path for the new file, which takes the place of an earlier one only if the block ends without an error."""
    part = out.with_name(f".{out.stem}.part{out.suffix}")
    try:
        yield part
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)


class _quiet:  # noqa: N801
    """Turn what an exporter raises into an InputError, and keep what it prints and warns of to itself."""

    def __init__(self, to: str) -> None:
        self._to, self._warnings, self._stdout = to, warnings.catch_warnings(), redirect_stdout(StringIO())

    def __enter__(self) -> None:
        self._warnings.__enter__()
        warnings.simplefilter("ignore")
        self._level = EXPORTER.level
        EXPORTER.setLevel(logging.ERROR)  # such as that torchvision is not installed
        self._stdout.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._stdout.__exit__(kind, error, trace)
        self._warnings.__exit__(kind, error, trace)
        EXPORTER.setLevel(self._level)
        if isinstance(error, Exception):
            raise InputError("export-failed", to=self._to, why=(str(error) or repr(error)).split("\n")[0]) from error


def _compare(model: nn.Module, x: Tensor, compute: Callable[[Tensor], Tensor], out: Path) -> float:
    """Return the largest difference of a logit; raise InputError if it is too large.

    A single sample and an odd number of them show that the batch size is dynamic.
    """
    largest = 0.0
    with torch.no_grad():
        for part in (x, x[:1], x[:3]):
            wanted, found = model(part), compute(part)
            if found.shape != wanted.shape:
                raise InputError("export-shape", out=out, found=tuple(found.shape), wanted=tuple(wanted.shape))
            difference = float((found - wanted).abs().max())
            limit = MAX_DIFFERENCE * max(1.0, float(wanted.abs().max()))
            if not difference <= limit:  # nan too
                raise InputError("export-differs", out=out, difference=difference, limit=limit)
            largest = max(largest, difference)
    return largest
