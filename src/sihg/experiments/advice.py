"""Say what would make a machine faster or more useful, from what was found on it."""

import shutil
from collections.abc import Iterator, Mapping

from sihg.robust.precision import MIN_SPEEDUP

MIN_FREE_GIGABYTES = 5.0
BUSY = 0.5  # of the cores, taken by other processes


def advise(
    *,
    cores: int,
    load: float | None,
    bfloat16_speedup: float | None,
    devices: tuple[str, ...],
    data: Mapping[str, str],
    free_gigabytes: Mapping[str, float],
) -> tuple[str, ...]:
    """Return advice, one sentence with its reason and remedy each.

    Args:
        cores: The cores that this process may use.
        load: How many processes computed in the last minute; None where the system does not tell.
        bfloat16_speedup: The time of a pass in float32 over that in bfloat16; None if bfloat16 does not work.
        devices: The devices of torch.
        data: The state of each data set.
        free_gigabytes: The free space of some folders.
    Example:
        >>> rest = {"load": 0.1, "bfloat16_speedup": 2.0, "devices": ("cpu",), "data": {}, "free_gigabytes": {}}
        >>> advise(cores=1, **rest)[0].partition(" here")[0]
        'convolutions in bfloat16 are 2.0 times as fast'
    """
    return (
        *_threads(cores, load),
        *_formats(bfloat16_speedup, devices),
        *_data(data),
        *(
            f"{free:g} GB are free in {place}: checkpoints and perturbation memories may not fit; make room"
            for place, free in free_gigabytes.items()
            if free < MIN_FREE_GIGABYTES
        ),
    )


def _threads(cores: int, load: float | None) -> Iterator[str]:
    """Runs compute with one thread unless asked for more."""
    spare = round(cores - (load or 0.0))
    if load is not None and load > BUSY * cores:
        yield (
            f"others compute with {load:.1f} of {cores} cores: threads that wait for a core slow each other: stay with "
            "one thread, the default"
        )
    elif spare > 1:
        yield (
            f"runs compute with one thread unless asked otherwise, and {spare} cores are free: for a large network try "
            f"--threads {spare}; `sihg reproduce` uses them for several runs at a time"
        )


def _formats(bfloat16_speedup: float | None, devices: tuple[str, ...]) -> Iterator[str]:
    if bfloat16_speedup is not None and bfloat16_speedup >= MIN_SPEEDUP:
        yield (
            f"convolutions in bfloat16 are {bfloat16_speedup:.1f} times as fast here: --precision auto uses it for the "
            "ascent where it pays"
        )
    if devices == ("cpu",) and shutil.which("nvidia-smi"):
        yield "there is an NVIDIA driver, but this torch is for CPUs only: install its CUDA build for --device cuda"
    elif len(devices) > 1:
        yield f"runs compute on the CPU unless asked otherwise: use --device {devices[1].partition(' ')[0]}"


def _data(data: Mapping[str, str]) -> Iterator[str]:
    absent = [name for name, state in data.items() if state == "absent"]
    if absent:
        names = ", ".join(absent)
        yield f"not here: {names}: `sihg data get {absent[0]}`, or set SIHG_DATA to a folder that has them"
    for name, state in data.items():
        if state in ("partial", "damaged"):
            yield f"{name} is {state}: `sihg data check {name}` says which files"
