"""Write the epochs of runs for TensorBoard; needs the extra sihg[tensorboard]."""

from importlib import import_module
from pathlib import Path
from typing import Any

from sihg.errors import InputError
from sihg.report.read.runs import folder_name, run_folders
from sihg.store.run_folder import RunFolder
from sihg.store.tables import read_table


def write_events(folder: Path) -> list[Path]:
    """Write report/tensorboard/RUN for each run in a folder, replacing earlier ones; return their paths.

    Every column of metrics.csv is a scalar over the steps. Its time is the training time in seconds.
    """
    try:
        writer: Any = import_module("tensorboardX").SummaryWriter
    except ImportError as error:
        raise InputError("tensorboard-missing", error=error) from error
    return [_write(writer, run, folder / "report" / "tensorboard" / folder_name(run)) for run in run_folders(folder)]


def _write(writer: Any, run: Path, out: Path) -> Path:
    for old in out.glob("events.out.tfevents.*"):
        old.unlink()
    metrics = RunFolder(run).metrics
    rows = read_table(metrics) if metrics.is_file() else []
    with writer(str(out)) as events:
        for row in rows:
            step, seconds = int(row["step"]), float(row["seconds"] or 0)
            for name, value in row.items():
                if name != "step" and value:
                    events.add_scalar(name, float(value), step, walltime=seconds)
    return out
