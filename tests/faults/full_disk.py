"""Let each call that changes the file system fail; the command says so in a message, and recovers once all is well."""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tests.faults.calls import Call, intercept
from tests.faults.child import Ended, run_in_child
from tests.faults.crashes import count_calls
from tests.faults.tally import Tally, spread
from tests.faults.workloads import Bench, Workload, benches, differences

FEW, MORE = 30, 42  # points in `make test`, quick and slow
TAKES_SPACE = ("open", "write", "mkdir", "posix_fallocate", "truncate", "ftruncate")
NEEDS_PERMISSION = ("open", "mkdir", "replace", "rename", "unlink", "rmdir", "truncate")


@dataclass(frozen=True)
class Failure:
    """A way in which calls fail."""

    name: str
    code: int
    concerns: Callable[[str], bool]  # whether a call of this name can fail so
    lasts: bool = False  # whether all later calls of these names fail too
    is_short: bool = False  # whether the first write takes half of its bytes


FAILURES = (
    Failure("full disk", errno.ENOSPC, lambda name: name in TAKES_SPACE, lasts=True),
    Failure("short write, then full disk", errno.ENOSPC, lambda name: name == "write", lasts=True, is_short=True),
    Failure("full for a moment", errno.ENOSPC, lambda name: name in TAKES_SPACE),
    Failure("no permission", errno.EACCES, lambda name: name in NEEDS_PERMISSION),
    Failure("disk error", errno.EIO, lambda _name: True),
)


def run(points: int | None) -> Tally:
    """Let `points` calls fail, spread over all commands and failures; None for every call."""
    tally = Tally("full disk, no permission, disk error")
    with benches() as all_benches:
        for bench in all_benches:
            calls = count_calls(bench)
            trials = [(i, way) for i, call in enumerate(calls) for way in FAILURES if way.concerns(_name(call))]
            for number, way in spread(trials, points and max(1, points // len(all_benches))):
                failure = _find_fault(bench, number, way)
                tally.add(failure and f"{bench.workload.name}, {way.name} at {calls[number]}: {failure}")
    return tally


def _name(call: str) -> str:
    return call.split(" ")[2]


def _find_fault(bench: Bench, number: int, way: Failure) -> str | None:
    with bench.copy() as folder:
        ended = run_in_child(partial(work_and_fail, bench.workload, number, way), folder)
        return _find_silence(bench, ended) or bench.fault_in_recovery(folder)


def _find_silence(bench: Bench, ended: Ended) -> str | None:
    """Return what is wrong with the way the command ended: it must succeed, warn, or fail with a message of ours."""
    if ended.value is None:
        return f"the command {ended}"
    code, result = ended.value
    if code != 0:
        is_ours = "sihg: error: " in ended.errors and "[os-error]" not in ended.errors
        return None if is_ours else f"the command {ended}"
    lost = result if isinstance(result, str) else differences(result, bench.expected)
    return f"the command succeeds without {lost}" if lost and not ended.new_warnings(bench.good) else None


def work_and_fail(workload: Workload, number: int, way: Failure) -> tuple[int, object]:
    """Work on a disk whose call of this number fails; return the exit code, and the result or the error."""
    is_well = False

    def before(call: Call) -> int | None:
        if (
            is_well
            or not way.concerns(call.name)
            or not (call.number == number or (way.lasts and call.number > number))
        ):
            return None
        if way.is_short and call.number == number:
            return 10
        raise OSError(way.code, os.strerror(way.code), str(call.place))

    intercept(before)
    code = workload.work()
    is_well = True
    try:
        return code, {} if code else workload.result()
    except Exception as error:
        return code, str(error)
