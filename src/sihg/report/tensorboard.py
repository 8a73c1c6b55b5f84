"""Write the epochs of runs for TensorBoard; needs the extra sihg[tensorboard]."""

from importlib import import_module
from pathlib import Path
from typing import Any

from sihg.errors import InputError
from sihg.report.read.runs import folder_name, read_run, run_folders
from sihg.store.files import refuse_link


def write_events(folder: Path) -> list[Path]:
    """Write report/tensorboard/RUN for each run in a folder, replacing earlier ones; return their paths.

    Every column of metrics.csv is a scalar over the steps. Its time is the training time in seconds.
    """
    try:
        writer: Any = import_module("tensorboardX").SummaryWriter
    except ImportError as error:
        raise InputError("tensorboard-missing", error=error) from error
    for place in (folder / "report", folder / "report" / "tensorboard"):
        refuse_link(place)
    return [_write(writer, run, folder / "report" / "tensorboard" / folder_name(run)) for run in run_folders(folder)]


def _write(writer: Any, run: Path, out: Path) -> Path:
    refuse_link(out)
    for old in out.glob("events.out.tfevents.*"):
        old.unlink()
    with writer(str(out)) as events:
        for row in read_run(run).rows:
            for name, value in row.cells().items():
                if name != "step" and value is not None:
                    events.add_scalar(name, float(value), row.step, walltime=row.seconds or 0.0)
    return out
