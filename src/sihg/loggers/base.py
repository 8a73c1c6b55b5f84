"""What a logger is: four calls, which may raise anything."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sihg.parse import Value

PROJECT = "sihg"  # where runs are kept together, unless the logger's own variables say otherwise


class LoggerWarning(UserWarning):
    """A logger failed. It gets nothing more, and the training goes on.

    Example:
        >>> issubclass(LoggerWarning, UserWarning)
        True
    """


@dataclass(frozen=True)
class LoggedRun:
    """What a logger is told of a run when it begins.

    Args:
        name: The name of the run.
        config: All settings by dotted name, and the versions it was made with.
        folder: The run folder (None: the run keeps nothing).
    Example:
        >>> LoggedRun("first", {"eps": 0.1}).folder is None
        True
    """

    name: str
    config: Mapping[str, Value]
    folder: Path | None = None


class Logger:
    """Base of the loggers: passes numbers and texts on to another program.

    Example:
        >>> Logger().scalars({"loss": 0.5}, step=26)
    """

    def begin(self, run: LoggedRun, known: Mapping[str, str] | None) -> dict[str, str]:  # noqa: ARG002
        """Open a run of the logger, or continue one.

        Args:
            run: The run.
            known: What this call returned when the run began; None for a new run.
        Returns:
            What it takes to continue the run, such as its id. It is kept in the run folder.
        """
        return {}

    def last_steps(self) -> tuple[int, int] | None:
        """Return the last step inside an epoch and the last end of an epoch that a continued run really has.

        Asked after `begin`, of loggers that write in the background, so that a kill can lose what they took. None: all
        that was taken is there.
        """
        return None

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Add numbers by name. Steps never decrease while a run trains."""

    def note(self, title: str, text: str, step: int) -> None:
        """Add a text, such as a warning."""

    def results(self, values: Mapping[str, float], step: int) -> None:
        """Add numbers that belong to the run as a whole, such as accuracies under attack."""
        self.scalars(values, step)

    def end(self, *, finished: bool) -> None:
        """Close the run; it may be continued later."""
