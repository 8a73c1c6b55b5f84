"""What a result was made with: versions and hardware, for anybody who wants to repeat it."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def environment() -> dict[str, str]:
    """Versions of what computes, the processor and its cores."""
    versions = {name: _version(name) for name in ("sihg", "torch", "numpy")}
    return {"python": platform.python_version(), **versions, "processor": _processor(), "cores": str(os.cpu_count())}


def _version(name: str) -> str:
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
