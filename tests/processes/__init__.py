"""Kill workers, agents and nodes of trainings under torchrun: they finish by themselves, bitwise as if undisturbed.

`python -m tests.processes` calls `run(points: int | None) -> Tally` of every module here that has it, with its number
FEW of kills, or with None for all.
"""
