"""Run a grid: check it, estimate its cost, run its cells in processes, summarise them, write the page."""

import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sihg.errors import InputError, SihgError, UnknownNameError
from sihg.experiments._slurm import SlurmLauncher
from sihg.experiments._slurm_options import parse_slurm_options
from sihg.experiments.grid import Cell, Grid, count_cores
from sihg.experiments.grid_summary import GridWarning, MethodSummary, collect_warnings, summarise
from sihg.experiments.launcher import Event, Job, JobEnded, JobStarted, Launcher
from sihg.experiments.time_left import TimeLeft, schedule_length
from sihg.experiments.torchrun import hear_first, joined_processes
from sihg.interrupt import stop_on_interrupt
from sihg.parse import parse_names
from sihg.robust.training import config
from sihg.robust.training.lengths import change_preset

if TYPE_CHECKING:
    from sihg.core.processes import Processes

DEFAULT_METHODS = ("pgd", "dat", "yopo", "msi-hg")
LAUNCHERS = ("local", "slurm")
DEFAULT_ATTACKS = ("natural", "pgd-20", "pgd-50-10")
# Settings of a run that a grid sets itself, and by which argument.
GRID_ARGUMENTS = {
    "method": "methods",
    "method.name": "methods",
    "seed": "trials",
    "threads": "threads",
    "data": "the name of the data set",
}
INTERRUPTED = 130  # exit code

Costs = dict[str, dict[str, float]]  # seconds per phase, by method


@dataclass(frozen=True)
class GridResult:
    """The result of a grid.

    Args:
        grid: The grid.
        methods: The numbers of each method over its finished trials.
        warnings: The failed checks of the evaluations.
        failed: Why cells failed, by their names.
        interrupted: Whether Ctrl-C stopped it; running it again continues.
        queued: The numbers of jobs that stay in the queue of a cluster, or run there.
        page: The report, if there is one.
        page_error: Why there is no report.
    Example:
        >>> result = run_grid(Grid(Path("runs/none"), {}, trials=1, attacks=("natural",)))
        >>> result.finished, result.methods, result.failed
        (True, [], {})
    """

    grid: Grid
    methods: list[MethodSummary]
    warnings: list[GridWarning]
    failed: dict[str, str]
    interrupted: bool = False
    queued: tuple[str, ...] = ()
    page: Path | None = None
    page_error: str = ""

    @property
    def finished(self) -> bool:
        """Whether all cells are done."""
        return not (self.failed or self.interrupted)


class GridRun:
    """A grid that is checked and measured, ready to run.

    Iterate over `events()` to run the cells that are not done; then `result()` summarises all of them. Of several
    `processes` of torchrun each runs its part of the cells, and the first one yields what became of all.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        jobs: int | None = None,
        data_dir: Path | None = None,
        launcher: str = "local",
        slurm: Iterable[str] | Mapping[str, object] = (),
        processes: "Processes | None" = None,
    ) -> None:
        from sihg.core.processes import ALONE

        self.grid, self.data_dir, self.processes = grid, data_dir, processes or ALONE
        if jobs is not None and jobs < 1:
            raise InputError("jobs-range", jobs=jobs)
        options = parse_slurm_options(slurm)
        if launcher not in LAUNCHERS:
            raise UnknownNameError("launcher", launcher, LAUNCHERS)
        if options and launcher != "slurm":
            raise InputError("slurm-options-alone", launcher=launcher)
        if launcher == "slurm" and self.processes.size > 1:
            raise InputError("launcher-in-torchrun", size=self.processes.size)
        grid.check()
        self.cells = grid.cells()
        self.left = [cell for cell in self.cells if cell.record() is None]
        self.costs: Costs = {}
        self._ended: dict[str, JobEnded] = {}
        self.is_on_cluster = launcher == "slurm"
        if self.is_on_cluster:
            self.jobs = len(self.left) or 1 if jobs is None else jobs
            self._launcher: Launcher | SlurmLauncher = SlurmLauncher(
                grid.folder, self.cells, options, at_once=self.jobs, threads=grid.threads
            )
        else:
            fitting = max(1, count_cores() // grid.threads) if self.processes.size == 1 else 1
            self.jobs = fitting if jobs is None else jobs
            self._launcher = Launcher(self.jobs)
        self._interrupted = False

    def measure(self) -> None:
        """Measure a few steps of each method that is left; mistakes in settings, data or attacks show here."""
        from sihg.experiments._cost import estimate_costs

        starting = time.process_time()  # what this process took to get here, the process of a cell takes too
        for method in dict.fromkeys(cell.method for cell in self.left):
            settings = self.grid.settings[method]
            if self.is_on_cluster:  # whose devices are not here
                settings = replace(settings, device="cpu")
            measured = estimate_costs(
                settings, self.grid.attacks, self.grid.samples, data_dir=self.data_dir, threads=self.grid.threads
            )
            self.costs[method] = {"starting": starting, **measured}

    def seconds(self) -> float:
        """Return the estimated seconds until all cells are done."""
        return schedule_length([cell.remaining(self.costs[cell.method]) for cell in self.left], self.at_once)

    @property
    def at_once(self) -> int:
        """How many cells run at a time, in all processes."""
        return self.jobs * self.processes.size

    def time_left(self) -> TimeLeft:
        """Return an estimate that can be kept up to date with the events."""
        return TimeLeft({cell.name: self.costs[cell.method] for cell in self.left}, self.at_once)

    def is_done(self, name: str) -> bool:
        """Return whether the cell with this name is trained and evaluated."""
        return any(cell.record() is not None for cell in self.cells if cell.name == name)

    def events(self) -> Generator[Event]:
        """Run the cells that are left, each in its process, and yield what happens.

        Closing it kills processes of this machine; jobs of a cluster go on.
        """
        first, own = self.processes.is_first, self.cells[self.processes.rank :: self.processes.size]
        jobs = [self._job(cell) for cell in self.left if cell in own]
        with self.grid.opened() if first else nullcontext():
            if first:
                hear_first(self.processes)
            with closing(self._launcher.run(jobs)) as events:
                for event in events:
                    if isinstance(event, JobEnded):
                        self._ended[event.name] = event
                    yield event
            yield from self._collect()

    def _collect(self) -> Generator[Event]:
        """Wait for the other processes, and yield what became of their cells."""
        with stop_on_interrupt() as is_interrupted:  # they are interrupted, too, and end at a safe point
            own = [msgspec.to_builtins(ended) for ended in self._ended.values()]
            parts = self.processes.gather((own, self._launcher.interrupted))
            self._interrupted = is_interrupted() or any(interrupted for _, interrupted in parts)
        for ended in (msgspec.convert(values, JobEnded) for part, _ in parts for values in part):
            if ended.name not in self._ended:
                self._ended[ended.name] = ended
                yield JobStarted(ended.name)
                yield ended

    def _job(self, cell: Cell) -> Job:
        command = [sys.executable, "-m", "sihg.experiments.cell", str(cell.folder)]
        command += [] if self.data_dir is None else [str(self.data_dir)]
        return Job(cell.name, command, cell.log, prepare=partial(cell.begin, self.grid.threads, self.data_dir))

    def result(self) -> GridResult:
        """Summarise the finished cells and write the page."""
        lost = [self._ended[cell.name] for cell in self.left if cell.name in self._ended and cell.record() is None]
        interrupted = self._interrupted
        failed = {end.name: end.reason for end in lost if not (interrupted and end.code == INTERRUPTED)}
        page, page_error = _write_page(self.grid.folder) if self.processes.is_first else (None, "")
        summaries, warnings = summarise(self.grid), collect_warnings(self.grid)
        queued = self._launcher.queued if isinstance(self._launcher, SlurmLauncher) else ()
        return GridResult(self.grid, summaries, warnings, failed, interrupted, queued, page, page_error)


def run_grid(
    grid: Grid,
    *,
    jobs: int | None = None,
    data_dir: str | Path | None = None,
    launcher: str = "local",
    slurm: Iterable[str] | Mapping[str, object] = (),
    on_event: Callable[[Event], object] | None = None,
) -> GridResult:
    """Train and evaluate the cells of a grid that are not done, and summarise all of them.

    Ctrl-C stops at a safe point; the same call continues. Each cell runs in its own process, so a script that calls
    this at its top level needs no `if __name__ == "__main__"`. With the launcher "slurm" each cell is a job of a
    cluster. There Ctrl-C only ends the waiting: the jobs go on, and the same call waits for them. In a script that
    torchrun has started, each process runs a part of the cells; only the first one writes the page.

    Args:
        grid: Methods, seeds, attacks and the folder.
        jobs: How many cells run at a time (default: as many as there are cores for).
        data_dir: The folder of the data files (default: as in `sihg data`).
        launcher: "local" for processes of this machine, "slurm" for jobs of a cluster.
        slurm: Options of the jobs, such as {"partition": "gpu", "time": "4:00:00"}.
        on_event: Receives JobQueued, JobStarted, JobProgressed and JobEnded.
    Returns:
        Accuracies and costs per method, warnings, failures, and the path of the report.
    Raises:
        InputError: If the folder has other runs, or the settings, data or attacks cannot be used.
    Example:
        >>> run_grid(Grid(Path("runs/none"), {}, trials=1, attacks=("natural",))).finished
        True
    """
    data_dir = None if data_dir is None else Path(data_dir)
    with joined_processes() as processes:
        if not processes.is_first:
            hear_first(processes)
        run = GridRun(grid, jobs=jobs, data_dir=data_dir, launcher=launcher, slurm=slurm, processes=processes)
        if processes.is_first:
            run.measure()
        with closing(run.events()) as events:
            for event in events:
                if on_event is not None:
                    on_event(event)
        return run.result()


def build_grid(
    data: str,
    *,
    methods: str | Iterable[str] = DEFAULT_METHODS,
    trials: int = 5,
    attacks: str | Iterable[str] = DEFAULT_ATTACKS,
    samples: int | None = None,
    preset: str | None = None,
    out: str | Path | None = None,
    threads: int = 1,
    trust: bool = False,
    settings: Mapping[str, object] | None = None,
) -> Grid:
    """Build the grid of `sihg reproduce`: several methods with several seeds on a data set.

    Args:
        data: The data set, or a preset, which names its data set.
        methods: Names of methods.
        trials: The number of seeds, from 0.
        attacks: Names of attacks, as in `evaluate`.
        samples: How many test samples are attacked (default: all).
        preset: The settings to begin with (default: the preset of the data set).
        out: The folder of the runs (default: runs/reproduce-PRESET).
        threads: The threads of each cell.
        trust: Whether to continue in a folder that no command of yours made, with the results in it.
        settings: Settings of the runs by name; each goes to the methods that have it. With another eps, the lengths of
            the preset that are not among them follow: `Grid.remarks` says which.
    Returns:
        The grid, ready for `run_grid`.
    Raises:
        InputError: If a name is unknown or a number is out of range.
    Example:
        >>> grid = build_grid("digits", methods="pgd,msi-hg", trials=3, settings={"epochs": 8, "tau": "1/16"})
        >>> len(grid.cells()), grid.settings["msi-hg"].epochs
        (6, 8)
    """
    given = settings or {}
    for name in given:
        if name in GRID_ARGUMENTS:
            raise InputError("setting-of-the-grid", setting=name, argument=GRID_ARGUMENTS[name])
    data, base = _data_and_preset(data, preset)
    for name, value in (("trials", trials), ("samples", samples), ("threads", threads)):
        if value is not None and value < 1:
            raise InputError("grid-count-range", name=name, value=value)
    names = _names(methods, "methods", "pgd,dat")
    chosen = {name: config.read_preset(base, name).with_values({"data": data}) for name in names}
    runs = {
        name: change_preset(f"preset {base}", run, _settings_of(name, names, given)) for name, run in chosen.items()
    }
    return Grid(
        folder=Path("runs") / f"reproduce-{base}" if out is None else Path(out),
        settings={name: run for name, (run, _) in runs.items()},
        trials=trials,
        attacks=tuple(_names(attacks, "attacks", "natural,pgd-20")),
        samples=samples,
        threads=threads,
        trust=trust,
        remarks=tuple(f"{name}: {line}" for name, (_, lines) in runs.items() for line in lines),
    )


def _data_and_preset(data: str, preset: str | None) -> tuple[str, str]:
    """Return the data set and the preset that a grid's name and `preset` stand for."""
    if preset is not None:
        return data, preset
    presets = config.read_presets()
    if data not in presets:
        raise UnknownNameError("data set", data, list(presets))
    return presets[data]["data"], data


def _names(text: str | Iterable[str], what: str, example: str) -> list[str]:
    if not (names := parse_names(text)):
        raise InputError("names-empty", name=what, example=example)
    return names


def _settings_of(method: str, methods: list[str], given: Mapping[str, object]) -> dict[str, object]:
    """Return the given settings that a method has; one that no method has is refused."""
    for name in given:
        if not any(_has(other, name) for other in methods):
            config.resolve_name(name, method)  # raises the error that says why
    return {name: value for name, value in given.items() if _has(method, name)}


def _has(method: str, setting: str) -> bool:
    try:
        config.resolve_name(setting, method)
    except InputError:
        return False
    return True


def _write_page(folder: Path) -> tuple[Path | None, str]:
    """Write the report of the runs; return its path, or the reason why it could not be written."""
    from sihg.report.read.runs import run_folders
    from sihg.report.training_report import report_training

    if not run_folders(folder):
        return None, ""
    try:
        report_training(folder)
    except SihgError as error:
        return None, str(error)
    return folder / "index.html", ""
