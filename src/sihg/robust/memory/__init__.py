"""The perturbation memory: one perturbation per sample, kept from one epoch to the next.

It lives in RAM or in mapped files. Several processes share one memory without sending rows: each owns the samples
i = rank mod world_size.

Example:
    >>> from sihg.robust.memory import DTYPES
    >>> list(DTYPES)
    ['int8', 'fp16', 'fp32']
"""

from sihg.robust.memory._row_format import DTYPES, check_dtype
from sihg.robust.memory.perturbation_memory import PerturbationMemory

__all__ = ["DTYPES", "PerturbationMemory", "check_dtype"]
