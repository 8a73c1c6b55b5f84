"""Faults on purpose: kills, full disks, power cuts and damaged files, and whether everything recovers.

`python -m tests.faults` calls `run(points: int | None) -> Tally` of every module here that has it, with its number FEW
of points, or with None for all.
"""
