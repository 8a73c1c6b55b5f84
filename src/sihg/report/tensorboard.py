"""The epochs of runs as TensorBoard shows them; needs the extra sihg[tensorboard]."""

from importlib import import_module
from pathlib import Path
from typing import Any

from sihg.errors import InputError
from sihg.report.read.runs import called, run_folders
from sihg.store.run_folder import RunFolder
from sihg.store.tables import read_table

REMEDY = "install it, pip install 'sihg[tensorboard]', or leave out --tensorboard"


def write_events(folder: Path) -> list[Path]:
    """Write report/tensorboard/RUN of each run there, in place of an earlier one; give their paths.

    Every column of metrics.csv is a scalar over the steps, at the time of training that it was written.
    """
    try:
        writer: Any = import_module("tensorboardX").SummaryWriter
    except ImportError as error:
        raise InputError(f"--tensorboard needs tensorboardX, which is not here ({error}): {REMEDY}") from error
    return [_write(writer, path, folder / "report" / "tensorboard" / called(path)) for path in run_folders(folder)]


def _write(writer: Any, run: Path, out: Path) -> Path:
    for old in out.glob("events.out.tfevents.*"):
        old.unlink()
    metrics = RunFolder(run).metrics
    rows = read_table(metrics) if metrics.is_file() else []
    with writer(str(out)) as events:
        for row in rows:
            step, at = int(row["step"]), float(row["seconds"] or 0)
            for name, value in row.items():
                if name != "step" and value:
                    events.add_scalar(name, float(value), step, walltime=at)
    return out
