"""Pass the events of a training on to loggers: those of other programs by name, and a user's own."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from sihg.errors import InputError
from sihg.loggers import LoggedRun, LoggerWarning, RunLog, check_names, open_run_log, split_names
from sihg.loggers.run_log import describe_versions
from sihg.robust.training.config import Settings
from sihg.robust.training.events import EpochDone, Event, OnEvent, StepDone, WarningRaised
from sihg.store.run_folder import RunFolder, describe_environment
from sihg.store.schema import flatten_settings
from sihg.user_code import call_user_code, load_callable


class TrainingLoggers:
    """The loggers that a user asks for, found before a training begins.

    Args:
        names: Such as "tensorboard,mlflow", or path.py:Name for a function or class of the user's own.
        is_first: Whether this process is the first: the others log nothing.
    Raises:
        InputError: A logger is unknown, its package is not installed, or the user's own cannot be loaded.
    Example:
        >>> TrainingLoggers("tensorboard").names
        ('tensorboard',)
    """

    def __init__(self, names: str | Iterable[str] = (), *, is_first: bool = True) -> None:
        asked = split_names(names) if is_first else ()
        self.is_first = is_first
        self.names = tuple(name for name in asked if ":" not in name)
        check_names(self.names)
        self._own = {name: _load(name) for name in asked if ":" in name}

    @contextmanager
    def open(
        self,
        settings: Settings,
        folder: RunFolder | None,
        on_event: OnEvent | None,
        is_finished: Callable[[], bool],
    ) -> Iterator[OnEvent | None]:
        """Begin with the loggers; give a function that passes events on to them, and to `on_event` first.

        A resumed run continues the logger runs that it began with. A logger that fails later gives one LoggerWarning.

        Args:
            settings: Those of the run.
            folder: That of the run.
            on_event: Called with each event too; what it raises stops the training.
            is_finished: Whether the run has come to its end, asked when the block ends.
        """
        if not self.is_first:
            yield on_event
            return
        with open_run_log(self.names, _describe(settings, folder), finished=is_finished) as log:
            yield _Events(log, dict(self._own), on_event)


class _Events:
    """Passes on events."""

    def __init__(self, log: RunLog, own: dict[str, Callable[..., object]], on_event: OnEvent | None) -> None:
        self._log, self._own, self._on_event = log, own, on_event
        self._step = 0

    def __call__(self, event: Event) -> None:
        if self._on_event is not None:
            self._on_event(event)
        if isinstance(event, StepDone):
            self._log.live(event.row, event.steps)
        elif isinstance(event, EpochDone):
            self._step = event.row.step
            self._log.epoch(event.row)
        elif isinstance(event, WarningRaised):
            self._log.warning(event.text, self._step)
        for name, logger in list(self._own.items()):
            try:
                call_user_code("logger", name, logger, event)
            except InputError as error:
                del self._own[name]
                warnings.warn(f"{error}; the training goes on without this logger", LoggerWarning, stacklevel=2)


def _load(name: str) -> Callable[..., object]:
    found = load_callable("logger", name)
    made = call_user_code("logger", name, found) if isinstance(found, type) else found
    if not callable(made):
        raise InputError("logger-not-callable", name=name)
    return made


def _describe(settings: Settings, folder: RunFolder | None) -> LoggedRun:
    environment = describe_environment() if folder is None else folder.read_environment()
    config = {**flatten_settings(settings.complete().as_dict()), **describe_versions(environment)}
    if folder is None:
        return LoggedRun(settings.method.name, config)
    return LoggedRun(folder.path.resolve().name, config, folder.path)
