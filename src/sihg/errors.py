"""The errors a user can meet. Each has a short code; its message says what is wrong, which value, and what to do."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches


class SihgError(Exception):
    """Base of every error that sihg raises on purpose. The command line prints it without a traceback.

    Args:
        message: What is wrong, which value it has, and what to do about it.
        code: A short name that stays the same when the words change, such as "eps-range". docs/errors.md lists all.
        **values: The values that the message names, for programs that react to the error.
    """

    def __init__(self, message: str, *, code: str = "", **values: object) -> None:
        super().__init__(message)
        self.code, self.values = code, values


class InputError(SihgError, ValueError):
    """An argument, a file or a setting that cannot be used as it is."""


class UnknownNameError(InputError):
    """A name that is not among the choices; the message lists them and suggests the nearest.

    Args:
        kind: What is named, such as "attack". The code is "unknown-" and this.
        name: The unknown name.
        choices: The names that exist.
        meant: What users may type and the choice it stands for (default: the choices themselves).
    """

    def __init__(self, kind: str, name: object, choices: Sequence[str], meant: Mapping[str, str] | None = None) -> None:
        meant = meant or {choice: choice for choice in choices}
        near = get_close_matches(str(name).lower(), list(meant), n=1, cutoff=0.75)
        hint = f" (did you mean {meant[near[0]]!r}?)" if near else ""
        message = f"unknown {kind} {name!r}{hint}: choose from {', '.join(choices)}"
        super().__init__(message, code=f"unknown-{kind.replace(' ', '-')}", name=name, choices=tuple(choices))


class NotFiniteError(InputError):
    """A loss, gradient or input that is NaN or infinite."""


class StepSizeError(InputError):
    """A step size for which a step of the method is not well defined."""


class StepSizeWarning(UserWarning):
    """A step size outside the condition under which its theorem guarantees convergence."""


class EstimateWarning(UserWarning):
    """A result that rests on a local estimate, or on an inner iteration that ran out of steps."""
