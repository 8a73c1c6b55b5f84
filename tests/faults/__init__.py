"""Faults on purpose: kills, full disks, power cuts and damaged files, and whether everything recovers.

`python -m tests.faults` runs every module here that has a function `run(points: int | None) -> Tally`.
"""
