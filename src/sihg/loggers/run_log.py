"""Report one run to several loggers. A logger that fails is dropped with one warning; the others go on."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from sihg.errors import InputError
from sihg.loggers.base import LoggedRun, Logger, LoggerWarning
from sihg.loggers.evaluation_scalars import evaluation_notes, evaluation_scalars
from sihg.loggers.registry import check_names, make_logger
from sihg.loggers.sent import Received, Sent
from sihg.store.files import status
from sihg.store.run_folder import RunFolder
from sihg.store.schema import CurveRecord, Environment, EvaluationRecord, MetricsRow, read_evaluation, read_run_config
from sihg.store.tables import read_json_lines, read_table

LIVE_POINTS = 500  # per run: numbers of the epoch so far
LIVE_COLUMNS = ("loss", "accuracy", "lr")


class RunLog:
    """Passes on what a run does: numbers of the epoch so far, rows of metrics.csv, warnings, evaluations.

    Each logger receives everything once, however often the run is interrupted and resumed.

    Args:
        loggers: Those that have begun, by name.
        sent: What they have received.
    """

    def __init__(self, loggers: Mapping[str, Logger], sent: Sent) -> None:
        self._loggers, self._sent = dict(loggers), sent

    @property
    def names(self) -> tuple[str, ...]:
        """Return the loggers that have not failed."""
        return tuple(self._loggers)

    def live(self, row: MetricsRow, steps: int) -> None:
        """Send the numbers of the epoch so far, of at most LIVE_POINTS of all steps of a run."""
        if row.step % max(1, -(-steps // LIVE_POINTS)):
            return
        values = {f"step/{name}": float(value) for name in LIVE_COLUMNS if (value := getattr(row, name)) is not None}
        done = self._each(lambda logger: logger.scalars(values, row.step), lambda has: has.live < row.step)
        self._sent.add(done, live=row.step)

    def epoch(self, row: MetricsRow) -> None:
        """Send a row of metrics.csv, under the names of its columns."""
        cells = {name: value for name, value in row.cells().items() if name != "step"}
        values = {name: float(value) for name, value in cells.items() if value is not None}
        done = self._each(lambda logger: logger.scalars(values, row.step), lambda has: has.epoch < row.step)
        self._sent.add(done, epoch=row.step)

    def warning(self, text: str, step: int) -> None:
        """Send a warning."""
        done = self._each(lambda logger: logger.note("warnings", text, step), lambda has: text not in has.warnings)
        self._sent.add(done, warning=text)

    def evaluation(
        self, name: str, record: EvaluationRecord | CurveRecord, step: int, to: Sequence[str] | None = None
    ) -> None:
        """Send the accuracies and the warnings of an evaluation to some loggers (default: to all)."""

        def send(logger: Logger) -> None:
            logger.results(evaluation_scalars(name, record), step)
            for text in evaluation_notes(record):
                logger.note(f"evaluation/{name}", text, step)

        self._each(send, to=to)

    def catch_up(self, folder: RunFolder) -> None:
        """Send the rows and the warnings in the records of a run that a logger has not received."""
        cells = read_table(folder.metrics, sealed=True) if status(folder.metrics) is not None else []
        rows = [MetricsRow.from_cells(row) for row in cells]
        entries = read_json_lines(folder.log, sealed=True) if status(folder.log) is not None else []
        for row in rows:
            self.epoch(row)
            for entry in entries:
                if entry.get("event") == "warning" and entry.get("epoch") == row.epoch:
                    self.warning(str(entry.get("text")), row.step)

    def close(self, *, finished: bool) -> None:
        """End the runs of the loggers."""
        self._each(lambda logger: logger.end(finished=finished))
        self._loggers.clear()

    def _each(
        self,
        call: Callable[[Logger], None],
        wants: Callable[[Received], bool] = lambda _: True,
        to: Sequence[str] | None = None,
    ) -> tuple[str, ...]:
        """Call each logger that wants it; return the names of those that have received it."""
        done = []
        for name, logger in list(self._loggers.items()):
            if wants(self._sent.of(name)) and (to is None or name in to):
                try:
                    call(logger)
                    done.append(name)
                except Exception as error:  # a logger may raise anything
                    del self._loggers[name]
                    warn_of_failure(name, error)
        return tuple(done)


def warn_of_failure(name: str, error: BaseException) -> None:
    """Give the one warning of a logger that failed."""
    why = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}".rstrip(": ")
    text = f"the logger {name} failed ({why}) and gets nothing more of this run; the work goes on"
    warnings.warn(text, LoggerWarning, stacklevel=2)


@contextmanager
def open_run_log(names: Sequence[str], run: LoggedRun, *, finished: Callable[[], bool]) -> Iterator[RunLog]:
    """Begin a run with these loggers, or continue the run of each that has begun; close them at the end.

    Args:
        names: The loggers that the user asks for: an error if one cannot begin. Those that the run has begun with are
            continued too, if the user's own command made its folder: a warning if one cannot.
        run: The run. What its records hold and a logger has not received is sent first.
        finished: Whether the run has come to its end.
    """
    check_names(names)
    sent = Sent(run.folder)
    folder = None if run.folder is None else RunFolder(run.folder)
    if folder is not None and not folder.is_own():
        sent.by_name.clear()  # somebody else's logger runs
    earlier = [name for name, has in sent.by_name.items() if has.known is not None]
    with _closing(_begin(run, sent, names, earlier), finished) as log:
        if folder is not None:
            log.catch_up(folder)
        yield log


@contextmanager
def continue_run_log(folder: RunFolder, *, trust: bool = False) -> Iterator[RunLog | None]:
    """Continue the logger runs of a finished run, for its evaluations; None if it has none.

    Nothing that goes wrong is an error: the evaluation itself is kept. A folder that no command of the user's made
    must not choose where results are sent.

    Args:
        folder: The run.
        trust: Whether the user trusts a foreign folder.
    """
    sent = Sent(None)
    if status(folder.path) is not None and (trust or folder.is_own()):
        try:
            sent = Sent(folder.path)
        except InputError as error:
            warn_of_failure("of the run", error)
    earlier = [name for name, has in sent.by_name.items() if has.known is not None]
    if not earlier:
        yield None
        return
    with _closing(_begin(describe_run(folder), sent, (), earlier), lambda: True) as log:
        yield log


def replay(folder: RunFolder, names: Sequence[str]) -> None:
    """Send the records of a run to loggers: what they have not received, and to new ones also its evaluations.

    Args:
        folder: The run.
        names: The loggers.
    """
    new = [name for name in names if Sent(folder.path).of(name).known is None]
    with open_run_log(names, describe_run(folder), finished=lambda: True) as log:
        step = last_step(folder)
        for path in sorted(folder.evaluation.glob("*.json")):
            log.evaluation(path.stem, read_evaluation(path), step, to=new)


def describe_run(folder: RunFolder) -> LoggedRun:
    """Return what a logger is told of a run in a folder."""
    config = {**read_run_config(folder.config).settings, **describe_versions(folder.read_environment())}
    return LoggedRun(folder.path.resolve().name, config, folder.path)


def last_step(folder: RunFolder) -> int:
    """Return the step at the end of the last epoch; 0 before the first."""
    rows = read_table(folder.metrics, sealed=True) if status(folder.metrics) is not None else []
    return MetricsRow.from_cells(rows[-1]).step if rows else 0


def describe_versions(environment: Environment) -> dict[str, str]:
    """Return what a run was made with, by the names that it has among settings."""
    names = ("python", "sihg", "torch", "numpy", "processor")
    return {f"environment.{name}": getattr(environment, name) for name in names}


def _begin(run: LoggedRun, sent: Sent, names: Sequence[str], earlier: Iterable[str]) -> RunLog:
    """Begin with each logger; an error if one of `names` fails, a warning if only the records name it."""
    begun: dict[str, Logger] = {}
    for name in dict.fromkeys([*names, *earlier]):
        known = sent.of(name).known if name in earlier else None
        try:
            logger = make_logger(name)
            kept = logger.begin(run, known)
            if known is not None and (last := logger.last_steps()) is not None:
                sent.of(name).correct(*last)
        except Exception as error:  # a logger may raise anything
            if name not in names:
                warn_of_failure(name, error)
                continue
            RunLog(begun, sent).close(finished=False)
            if isinstance(error, InputError):
                raise
            raise InputError("logger-failed", name=name, error=error) from error
        begun[name] = logger
        if known is None:
            sent.add([name], known=kept)
    return RunLog(begun, sent)


@contextmanager
def _closing(log: RunLog, finished: Callable[[], bool]) -> Iterator[RunLog]:
    """Close a log when the block ends; after an error, the run is not finished."""
    done = False
    try:
        yield log
        done = finished()
    finally:
        log.close(finished=done)
