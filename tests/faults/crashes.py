"""Kill a command before each call that changes the file system; then its recovery must give the same result."""

import os
import signal
from functools import partial

from tests.faults.calls import Call, intercept
from tests.faults.child import run_in_child
from tests.faults.tally import Tally, spread
from tests.faults.workloads import Bench, Workload, benches

FEW, MORE = 30, 42  # points in `make test`, quick and slow


def run(points: int | None) -> Tally:
    """Kill at `points` calls, spread over all commands; None for every call."""
    tally = Tally("kill before a file-system call")
    with benches() as all_benches:
        for bench in all_benches:
            calls = count_calls(bench)
            for number in spread(range(len(calls)), points and max(1, points // len(all_benches))):
                with bench.copy() as folder:
                    run_in_child(partial(work_and_die, bench.workload, number), folder)
                    failure = bench.fault_in_recovery(folder)
                    tally.add(failure and f"{bench.workload.name}, killed before {calls[number]}: {failure}")
    return tally


def count_calls(bench: Bench) -> list[str]:
    """Return the calls of undisturbed work."""
    with bench.copy() as folder:
        calls: list[str] = run_in_child(partial(work_and_list, bench.workload), folder).value
        return calls


def work_and_list(workload: Workload) -> list[str]:
    calls: list[str] = []
    intercept(lambda call: calls.append(str(call)))
    workload.work()
    return calls


def work_and_die(workload: Workload, number: int) -> None:
    def before(call: Call) -> None:
        if call.number == number:
            os.kill(os.getpid(), signal.SIGKILL)

    intercept(before)
    workload.work()
