"""The options of jobs on a Slurm cluster: their names, their values, and how submitit calls them."""

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial

from sihg.errors import InputError, UnknownNameError
from sihg.parse import parse_int, parse_number

TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<clock>\d+(?::\d+){0,2})")  # as sbatch takes it
DEFAULT_MINUTES = 240  # a job that takes longer is requeued and continues
GENERIC = {"time": "timeout_min", "name": "name"}  # by submitit's names; others keep theirs, or get the prefix slurm_
COMMON = ("timeout_min", "name", "mem_gb", "cpus_per_task", "gpus_per_node")

Value = str | int | float | list[str]


def parse_slurm_options(given: Iterable[str] | Mapping[str, object]) -> dict[str, Value]:
    """Check options such as "partition=gpu", or {"partition": "gpu"}; return their values.

    Raises:
        InputError: If an option is unknown, twice there, or has a value that Slurm would not take.

    >>> parse_slurm_options(["partition=gpu", "time=1-12:00", "setup=module load cuda"])
    {'partition': 'gpu', 'time': 2160, 'setup': ['module load cuda']}
    """
    pairs = list(given.items()) if isinstance(given, Mapping) else [_split(text) for text in given]
    found: dict[str, Value] = {}
    for name, value in pairs:
        if name not in OPTIONS:
            raise UnknownNameError("slurm option", name, sorted(OPTIONS))
        if name == "setup":
            found["setup"] = [*_lines(found.get("setup", [])), *_lines(value)]
        elif name in found:
            raise InputError("slurm-option-twice", name=name)
        else:
            found[name] = OPTIONS[name](name, value)
    return found


def submitit_parameters(options: Mapping[str, Value], *, at_once: int, threads: int) -> dict[str, Value]:
    """Return the options under the names that submitit gives them, with defaults for those that are missing."""
    whole = {"name": "sihg", "time": DEFAULT_MINUTES, "cpus_per_task": threads, "array_parallelism": at_once, **options}
    renamed = {GENERIC.get(name, name): value for name, value in whole.items()}
    return {name if name in COMMON else f"slurm_{name}": value for name, value in renamed.items()}


def _split(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError("slurm-option-form", text=text)
    return name.strip().replace("-", "_"), value


def _text(name: str, value: object) -> str:
    text = str(value)
    if not text.strip() or not text.isprintable():
        raise InputError("slurm-option-value", name=name, value=value, wanted="text without line breaks")
    return text


def _lines(value: object) -> list[str]:
    return [_text("setup", line) for line in (value if isinstance(value, list | tuple) else [value])]


def _count(name: str, value: object, least: int = 1) -> int:
    with suppress(InputError):
        if (count := parse_int(value)) >= least:
            return count
    raise InputError("slurm-option-value", name=name, value=value, wanted=f"an integer >= {least}")


def _gigabytes(name: str, value: object) -> float:
    with suppress(InputError):
        if 1 / 1024 <= (gigabytes := parse_number(value)) < float("inf"):
            return gigabytes
    wanted = "a number of gigabytes, such as 16 or 0.5"
    raise InputError("slurm-option-value", name=name, value=value, wanted=wanted)


def _minutes(name: str, value: object) -> int:
    """Convert a time as sbatch takes it: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes]."""
    found = TIME.fullmatch(str(value).strip())
    if found is not None:
        parts = [int(part) for part in found["clock"].split(":")]
        units = [60, 1] if found["days"] is None and len(parts) < 3 else [3600, 60, 1]
        seconds = 86400 * int(found["days"] or 0) + sum(a * b for a, b in zip(parts, units, strict=False))
        if seconds:
            return -(-seconds // 60)
    wanted = "minutes, or a time such as 2:30:00 or 1-12:00"
    raise InputError("slurm-option-value", name=name, value=value, wanted=wanted)


OPTIONS: dict[str, Callable[[str, object], Value]] = {
    **dict.fromkeys(("account", "comment", "constraint", "exclude", "gres", "mail_type", "mail_user", "name"), _text),
    **dict.fromkeys(("nodelist", "partition", "qos"), _text),
    **dict.fromkeys(("cpus_per_task", "signal_delay_s"), _count),
    "gpus_per_node": partial(_count, least=0),
    "mem_gb": _gigabytes,
    "setup": lambda _, value: _lines(value),
    "time": _minutes,
}
