"""The errors a user can meet. Every message says what is wrong, which value it has, and what to do."""

from collections.abc import Mapping
from difflib import get_close_matches


class SihgError(Exception):
    """Base of all errors raised on purpose by sihg; the command line prints it without a traceback."""


class InputError(SihgError, ValueError):
    """An argument, a file or a setting that cannot be used as it is."""


class UnknownNameError(InputError):
    """A name that stands for nothing; the message lists the choices.

    What may have been `meant` are the choices themselves, unless it is said.
    """

    def __init__(self, kind: str, name: object, choices: list[str], meant: Mapping[str, str] | None = None) -> None:
        meant = meant or {choice: choice for choice in choices}
        near = get_close_matches(str(name).lower(), list(meant), n=1, cutoff=0.75)
        hint = f" (did you mean {meant[near[0]]!r}?)" if near else ""
        super().__init__(f"unknown {kind} {name!r}{hint}: choose from {', '.join(choices)}")


class NotFiniteError(InputError):
    """A number that is none, nan or inf, where training or an attack needs one."""


class StepSizeError(InputError):
    """A step size for which a step of the method is not well defined."""


class StepSizeWarning(UserWarning):
    """A step size outside the condition under which its theorem promises convergence."""


class EstimateWarning(UserWarning):
    """A result that rests on a local estimate or on an inner iteration that ran out of steps."""
