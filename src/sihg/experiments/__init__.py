"""Grids of runs, methods times seeds: build one, run its cells in processes, and summarise them over the seeds.

A cell is an ordinary run folder with its evaluation. Importing this room needs no torch.
"""

from sihg.experiments.grid import Grid
from sihg.experiments.grid_run import GridResult, build_grid, run_grid
from sihg.experiments.grid_summary import MethodSummary

__all__ = ["Grid", "GridResult", "MethodSummary", "build_grid", "run_grid"]
