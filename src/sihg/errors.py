"""The errors a user can meet. errors.toml has a message for every code: what is wrong, which value, what to do."""

import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Self


class SihgError(Exception):
    """Base of every error that sihg raises on purpose. The command line prints it without a traceback.

    Args:
        code: A short name that stays the same when the words change, such as "eps-range"; a key of errors.toml.
            In a user's own method or attack: the message itself. Its code is then "".
        **values: The values that the message names. They are kept in `values`, for programs that react to the error.
    Example:
        >>> try:
        ...     raise InputError("eps-range", eps=-1)
        ... except SihgError as error:
        ...     error.code, error.values
        ('eps-range', {'eps': -1})
    """

    def __init__(self, code: str, /, **values: object) -> None:
        is_text = code not in messages() or (not values and "{" in messages()[code])  # a user's own words
        super().__init__(code if is_text else messages()[code].format(**values))
        self.code, self.values = "" if is_text else code, values

    printed_by: int | None = None  # the process that prints it, if several have it (None: the first)

    @classmethod
    def told(cls, message: str, code: str) -> Self:
        """Return an error that another process has told of."""
        error = cls(message)
        error.code = code
        return error

    def within(self, place: object) -> Self:
        """Put the name of a file or the like before the message, and return the error."""
        self.args = (f"{place}: {self}",)
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return Exception.__new__, (type(self), *self.args), self.__dict__  # copied and pickled without its message


class InputError(SihgError, ValueError):
    """An argument, a file or a setting that cannot be used as it is.

    Example:
        >>> str(InputError("my method needs a stem"))  # in a method of your own, words instead of a code
        'my method needs a stem'
    """


class UnknownNameError(InputError):
    """A name that is not among the choices; the message lists them and suggests the nearest.

    Args:
        kind: What is named, such as "attack". The code is "unknown-" and this.
        name: The unknown name.
        choices: The names that exist.
        meant: What users may type and the choice it stands for (default: the choices themselves).
    Example:
        >>> UnknownNameError("attack", "pdg", ["natural", "pgd"]).code
        'unknown-attack'
    """

    def __init__(self, kind: str, name: object, choices: Sequence[str], meant: Mapping[str, str] | None = None) -> None:
        meant = meant or {choice: choice for choice in choices}
        near = get_close_matches(str(name).lower(), list(meant), n=1, cutoff=0.75)
        hint = f" (did you mean {meant[near[0]]!r}?)" if near else ""
        super().__init__("unknown-name", kind=kind, name=name, hint=hint, choices=", ".join(choices))
        self.code, self.values = f"unknown-{kind.replace(' ', '-')}", {"name": name, "choices": tuple(choices)}


class NotFiniteError(InputError):
    """A loss, gradient or input that is NaN or infinite.

    Example:
        >>> issubclass(NotFiniteError, ValueError)
        True
    """


class StepSizeError(InputError):
    """A step size for which a step of the method is not well defined.

    Example:
        >>> issubclass(StepSizeError, ValueError)
        True
    """


class StepSizeWarning(UserWarning):
    """A step size outside the condition under which its theorem guarantees convergence.

    Example:
        >>> import warnings
        >>> warnings.simplefilter("error", StepSizeWarning)  # end a script instead of going on
    """


class EstimateWarning(UserWarning):
    """A result that rests on a local estimate, or on an inner iteration that ran out of steps.

    Example:
        >>> import warnings
        >>> warnings.simplefilter("error", EstimateWarning)  # end a script instead of going on
    """


@cache
def messages() -> dict[str, str]:
    """Return the message of every code, with {names} where values go.

    Example:
        >>> "eps-range" in messages()
        True
    """
    return tomllib.loads(files("sihg").joinpath("errors.toml").read_text(encoding="utf-8"))
