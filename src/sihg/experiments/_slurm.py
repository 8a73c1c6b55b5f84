"""Run jobs on a Slurm cluster through submitit: each is submitted once, also if the command is stopped and repeated.

`SIHG_SUBMITIT_CLUSTER=local` lets submitit run the jobs on this machine instead, to try it.
"""

import os
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from sihg.errors import InputError
from sihg.experiments._slurm_options import Value, submitit_parameters
from sihg.experiments.grid import Cell
from sihg.experiments.launcher import Event, Job, JobEnded, JobProgressed, JobQueued, JobStarted, Progress, last_lines
from sihg.interrupt import stop_on_interrupt
from sihg.store.files import make_folder, refuse_link, status
from sihg.store.schema import SubmittedJob, SubmittedJobs, read_record, write_record

FOLDER = "submitit"  # in the folder of the grid: scripts, pickles and output of the jobs
CLUSTER = "SIHG_SUBMITIT_CLUSTER"
MAX_ARRAY = 1000  # jobs in an array; Slurm's own limit is 1001
MAX_TIMEOUTS = 50  # after which a job is not requeued again
SECONDS_BETWEEN_LOOKS = 2.0  # at the folders of the cells
SECONDS_BETWEEN_CHECKS = 0.1  # for Ctrl-C
REASON_LINES = 3


class SlurmLauncher:
    """Runs the cells of a grid as jobs of a cluster; `interrupted` says whether Ctrl-C or SIGTERM ended the waiting.

    The jobs go on then; `queued` has their numbers. submitit's results are pickles, which are never read here: whether
    a cell is done is seen in its folder.
    """

    def __init__(
        self, folder: Path, cells: Sequence[Cell], options: Mapping[str, Value], *, at_once: int, threads: int
    ) -> None:
        self.folder, self.cells = folder / FOLDER, {cell.name: cell for cell in cells}
        self.cluster = os.environ.get(CLUSTER, "slurm")
        self.parameters = submitit_parameters(options, at_once=at_once, threads=threads)
        self.interrupted = False
        self.queued: tuple[str, ...] = ()
        try:
            self._submitit: Any = import_module("submitit")
        except ImportError as error:
            raise InputError("slurm-extra-missing", error=error) from error
        if self.cluster == "slurm" and shutil.which("srun") is None:
            raise InputError("slurm-missing")

    def run(self, jobs: Iterable[Job]) -> Generator[Event]:
        """Submit the jobs that are neither in the queue nor running, wait for all, and yield what happens."""
        refuse_link(self.folder)
        make_folder(self.folder)
        with stop_on_interrupt() as is_interrupted:
            waiting = self._find(jobs := list(jobs))
            ready = []
            for job in (job for job in jobs if job.name not in waiting):
                try:
                    job.prepare()
                    ready.append(job)
                except (InputError, OSError) as error:
                    yield JobStarted(job.name)
                    yield JobEnded(job.name, 2, 0.0, str(error))
            waiting |= self._submit(ready)
            for name, submitted in waiting.items():
                yield JobQueued(name, submitted.number)
            while waiting and not is_interrupted():
                for name, submitted in list(waiting.items()):
                    yield from submitted.look()
                    if submitted.has_ended:
                        del waiting[name]
                _sleep_unless(is_interrupted, SECONDS_BETWEEN_LOOKS if waiting else 0.0)
            self.interrupted = bool(waiting)
            self.queued = tuple(submitted.number for submitted in waiting.values())

    def _find(self, jobs: Sequence[Job]) -> dict[str, "_ClusterJob"]:
        """Return those that an earlier command has submitted and that have not ended."""
        known = self._read()
        names = [job.name for job in jobs if job.name in known]
        found = [_ClusterJob(self.cells[name], self._open(known[name]), known[name]) for name in names]
        return {job.cell.name: job for job in found if not job.is_over()}

    def _submit(self, jobs: Sequence[Job]) -> dict[str, "_ClusterJob"]:
        """Submit jobs as arrays, and note their numbers."""
        known, submitted = self._read(), dict[str, _ClusterJob]()
        for first in range(0, len(jobs), MAX_ARRAY):
            part = jobs[first : first + MAX_ARRAY]
            sizes = [_size(job.log) for job in part]
            for job, size, opened in zip(part, sizes, self._submit_array(part), strict=True):
                known[job.name] = SubmittedJob(opened.job_id, size)
                submitted[job.name] = _ClusterJob(self.cells[job.name], opened, known[job.name])
            write_record(self._path, SubmittedJobs(cluster=self.cluster, jobs=known))
        return submitted

    def _submit_array(self, jobs: Sequence[Job]) -> list[Any]:
        from sihg.experiments._slurm_job import CellJob

        submitit, here = self._submitit, Path.cwd()
        try:
            executor = submitit.AutoExecutor(self.folder, self.cluster, slurm_max_num_timeout=MAX_TIMEOUTS)
            executor.update_parameters(**self.parameters)
            with executor.batch():
                submitted = [executor.submit(CellJob(job.command, job.log, here)) for job in jobs]
        except (RuntimeError, ValueError, OSError) as error:  # of sbatch, with its words
            raise InputError("slurm-refused", reason=" ".join(str(error).split())) from error
        return submitted

    @property
    def _path(self) -> Path:
        return self.folder / "jobs.json"

    def _read(self) -> dict[str, SubmittedJob]:
        """Return the jobs that earlier commands have submitted to this cluster, by cell."""
        if status(self._path) is None:
            return {}
        remedy = "cancel the jobs that still run, then remove the file"
        record = read_record(self._path, SubmittedJobs, remedy)
        return dict(record.jobs) if record.cluster == self.cluster else {}

    def _open(self, known: SubmittedJob) -> Any:
        """Return submitit's view of a job that another process has submitted."""
        if self.cluster == "local":
            return self._submitit.LocalJob(self.folder, known.job, process=_LocalProcess(int(known.job)))
        return self._submitit.SlurmJob(self.folder, known.job)


class _ClusterJob:
    """A job of a cluster, seen through the folder of its cell."""

    def __init__(self, cell: Cell, job: Any, submitted: SubmittedJob) -> None:
        self.cell, self.job, self.submitted = cell, job, submitted
        self.has_ended = False
        self._began: float | None = None
        self._shown: Progress | None = None

    @property
    def number(self) -> str:
        """The number by which the cluster knows the job."""
        return self.submitted.job

    def is_over(self) -> bool:
        """Return whether the job has ended, successful or not."""
        return bool(self.job.done())

    def look(self) -> Generator[Event]:
        """Yield what has happened since the last look."""
        is_over = self.is_over()  # before the folder is read, which is then complete
        name = self.cell.name
        if self._began is None and (is_over or _size(self.cell.log) > self.submitted.log_bytes):
            self._began = time.monotonic()
            yield JobStarted(name)
        if is_over:
            self.has_ended = True
            is_done = self.cell.record() is not None
            seconds = time.monotonic() - (self._began or time.monotonic())
            yield JobEnded(name, 0 if is_done else 1, seconds, "" if is_done else self._reason())
        elif self._began is not None:
            with suppress(InputError):  # a file that is just being written; later looks see it
                progress = self.cell.progress()
                if progress != self._shown:
                    self._shown = progress
                    yield JobProgressed(name, progress)

    def _reason(self) -> str:
        """Return the last lines of the cell's own output, or of the job's if the cell wrote none."""
        job = f"job {self.number} is {self.job.state}"
        for log, after in ((self.cell.log, self.submitted.log_bytes), (self.job.paths.stderr, 0)):
            with suppress(OSError):
                lines = last_lines(log, REASON_LINES, after=after)
                if any(not line.startswith(f"job {self.number}:") for line in lines):
                    return f"{' | '.join(lines)} ({job}, its output: {self.job.paths.stderr})"
        return f"{job} and wrote nothing"


class _LocalProcess:
    """A process that another one has started, as submitit's local jobs ask for it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        """Return None while it runs."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, 0)
            return None
        return 0


def _size(path: Path) -> int:
    found = status(path)
    return 0 if found is None else found.st_size


def _sleep_unless(is_interrupted: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not is_interrupted():
        time.sleep(SECONDS_BETWEEN_CHECKS)
