"""Find the problem that a user means: a name of the zoo, a callable of the user's own, or the problem itself."""

from collections.abc import Mapping
from functools import partial

from sihg.errors import InputError
from sihg.minimax import zoo
from sihg.minimax.problem import Problem
from sihg.parse import Value, expand_home
from sihg.user_code import load_callable

Source = str | Problem | zoo.Benchmark
IN_PYTHON = " (given in Python)"  # ends the name of a problem that no command line builds


def absolute_name(problem: str) -> str:
    """Make the path in PATH.py:NAME absolute: a resume in another folder must not run another file of that name."""
    file, _, name = problem.rpartition(":")
    return f"{expand_home(file).resolve()}:{name}" if file.endswith(".py") else problem


def recipe(problem: Source, benchmark: zoo.Benchmark, options: Mapping[str, Value]) -> tuple[str, dict[str, Value]]:
    """Return the name and the options that build a problem again, or a name that ends in `IN_PYTHON`."""
    if isinstance(problem, str):
        return absolute_name(problem), dict(options)
    if options:
        raise InputError("options-of-object", name=min(options))
    if benchmark.options is None or not all(map(_is_plain, benchmark.options.values())):
        return benchmark.name + IN_PYTHON, {}
    return benchmark.name, dict(benchmark.options)  # type: ignore[arg-type]


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return type(value) in (bool, int, float, str)


def load_benchmark(problem: Source, options: Mapping[str, Value]) -> zoo.Benchmark:
    """Return a problem of the zoo, or the one that a user's callable builds, or the given one."""
    if isinstance(problem, zoo.Benchmark):
        return problem
    if isinstance(problem, Problem):
        return zoo.Benchmark("your problem", "a problem given in Python", problem, None)
    if not isinstance(problem, str):  # such as the function itself
        raise InputError("problem-type", problem=getattr(problem, "__name__", problem), type=type(problem).__name__)
    make = load_callable("problem", problem) if ":" in problem else partial(zoo.get, problem)
    try:
        made = make(**options)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            "problem-not-built", problem=problem, options=dict(options) or "no options", error=error
        ) from error
    if isinstance(made, Problem):
        return zoo.Benchmark(problem, "a problem of your own", made, None)
    if isinstance(made, zoo.Benchmark):
        return made
    raise InputError("problem-type", problem=problem, type=type(made).__name__)
