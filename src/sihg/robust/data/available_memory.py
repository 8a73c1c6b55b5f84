"""How much memory data may take: the least that the machine, its control group and the limits of the process leave."""

import os
from contextlib import suppress
from pathlib import Path

from sihg.launch import local_world_size

UNKNOWN_MEMORY = 2**34  # bytes, assumed where the system does not tell
SHARE = 0.5  # of what is available, for one set of samples: models, copies and the other set need the rest


def max_memory() -> int:
    """Return the most bytes that one set of samples may take in memory; each process of a machine has its own copy."""
    return int(SHARE * available_memory() / local_world_size())


def available_memory() -> int:
    """Return how many bytes this process can still take, as far as the system tells."""
    limits = (_free_in_machine(), _free_in_control_group(), _free_in_address_space())
    return max(0, min((limit for limit in limits if limit is not None), default=UNKNOWN_MEMORY))


def _free_in_machine() -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with suppress(AttributeError, ValueError, OSError):  # Windows
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def _free_in_control_group(system: Path = Path("/")) -> int | None:
    """Return what the control groups of the process leave, such as those of a container; the least one counts."""
    found: list[int] = []
    with suppress(OSError, ValueError):
        for line in (system / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            names = ("memory.max", "memory.current", "inactive_file")
            if controllers:
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            root = system / "sys/fs/cgroup" / ("memory" if controllers else "")
            group = root / path.lstrip("/")
            found += [left for home in {group, *group.parents, root} if (left := _left(home, *names)) is not None]
    return min(found, default=None)


def _left(group: Path, limit: str, usage: str, files: str) -> int | None:
    """Return a group's limit minus its use; file pages that were not used lately can be taken back."""
    with suppress(OSError, ValueError):  # "max": no limit
        statistics = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
        used = int((group / usage).read_text(encoding="ascii")) - int(statistics.get(files, 0))
        return int((group / limit).read_text(encoding="ascii")) - used
    return None


def _free_in_address_space() -> int | None:
    """Return what RLIMIT_AS leaves, as `ulimit -v` sets it."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    used = 0
    with suppress(OSError, ValueError, IndexError):
        used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    return limit - used
