"""Cut the power before each call that changes the file system, and after the last one.

What was announced before the cut must be there: a saved checkpoint or a newer one, and after the end the whole result.
Then the recovery must give the result of undisturbed work.
"""

from collections.abc import Collection
from functools import partial
from pathlib import Path

from tests.faults.calls import Call, intercept
from tests.faults.child import run_in_child
from tests.faults.crashes import count_calls
from tests.faults.shadow import Shadow, losses
from tests.faults.tally import Tally, spread
from tests.faults.workloads import Bench, Workload, announced, benches, differences, newest_step

FEW, MORE = 30, 42  # points in `make test`, quick and slow
Cut = tuple[int, str]  # the number of the next call, and what is lost


def run(points: int | None) -> Tally:
    """Cut the power at `points` calls, spread over all commands; None for every call and every loss."""
    tally = Tally("power cut")
    with benches() as all_benches:
        for bench in all_benches:
            calls = [*count_calls(bench), "the end, after the command returned"]
            cuts = [(number, loss.name) for number in range(len(calls)) for loss in losses(number)]
            chosen = spread(cuts, points and max(1, points // len(all_benches)))
            with bench.copy() as folder, bench.copy() as home:
                ended = run_in_child(partial(work_and_cut, bench.workload, chosen, home), folder)
                if ended.traceback or ended.signal:
                    raise AssertionError(f"{bench.workload.name} {ended}\n{ended.traceback}")
                for number, loss in chosen:
                    steps = ended.value[number, loss]
                    failure = _find_fault(bench, home / f"{number} {loss}", steps, at_end=number == len(calls) - 1)
                    where = f"{bench.workload.name}, power cut before {calls[number]}, {loss}"
                    tally.add(failure and f"{where}: {failure}")
    return tally


def work_and_cut(workload: Workload, cuts: Collection[Cut], home: Path) -> dict[Cut, list[int]]:
    """Work undisturbed, and write what the disk would hold at each cut; return what was announced until then."""
    shadow, told = Shadow(Path.cwd()), dict[Cut, list[int]]()

    def cut(number: int) -> None:
        for loss in losses(number):
            if (number, loss.name) in cuts:
                shadow.cut_power(home / f"{number} {loss.name}", loss)
                told[number, loss.name] = list(announced)

    count = 0

    def before(call: Call) -> None:
        nonlocal count
        count = call.number + 1
        cut(call.number)

    intercept(before, shadow.after)
    workload.work()
    cut(count)
    return told


def _find_fault(bench: Bench, folder: Path, steps: list[int], *, at_end: bool) -> str | None:
    if at_end:
        ended = run_in_child(bench.workload.result, folder)
        if ended.value is None:
            return f"the result cannot be read: {ended}"
        if found := differences(ended.value, bench.expected):
            return f"the result lacks {found}"
    if steps:
        ended = run_in_child(newest_step, folder)
        if ended.value is None or ended.value < steps[-1]:
            return f"the checkpoint of step {steps[-1]} was announced, the newest is {ended.value}"
    return bench.fault_in_recovery(folder)
