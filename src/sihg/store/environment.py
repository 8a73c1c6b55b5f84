"""Record the versions and hardware that a result was made with."""

import os
import platform
from pathlib import Path

from sihg.store.schema import Environment


def describe_environment(
    *, threads: int | None = None, dtype: str | None = None, data_folder: str | None = None
) -> Environment:
    """Return a record of the versions and the processor here, for files that say what a result was made with."""
    return Environment(
        python=platform.python_version(),
        sihg=_version("sihg"),
        torch=_version("torch"),
        numpy=_version("numpy"),
        processor=_processor(),
        cores=str(os.cpu_count()),
        threads=threads,
        dtype=dtype,
        data_folder=data_folder,
    )


def _version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version  # takes 10 ms

    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
