"""Run the cells of a grid one after the other in this process, which is quicker than a process each for short runs."""

import torch

from sihg.experiments.cell import evaluate_cell, train_cell
from sihg.experiments.grid import Grid


def run_cells(grid: Grid) -> None:
    """Train and attack the cells that are not done; Ctrl-C ends at a checkpoint, and the same call continues."""
    torch.set_num_threads(grid.threads)
    with grid.opened():
        for cell in grid.cells():
            if cell.record() is None:
                cell.begin(grid.threads)
                if not train_cell(cell.folder, report=_silent):
                    raise SystemExit("interrupted: the same command continues")
                evaluate_cell(cell.folder, report=_silent)
                print(f"{grid.folder.name}/{cell.name}", flush=True)


def _silent(_: object) -> None:
    """Report nothing."""
