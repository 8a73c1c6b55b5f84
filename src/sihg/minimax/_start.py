"""Begin or continue a solve: the method with its step sizes, chosen or checked, and its first state."""

import warnings
from collections.abc import Mapping
from dataclasses import fields, replace
from math import isfinite, sqrt
from weakref import WeakKeyDictionary

from sihg.errors import InputError, StepSizeError, StepSizeWarning, UnknownNameError
from sihg.minimax import adaptive
from sihg.minimax.auto import CANDIDATES, choose
from sihg.minimax.constants import Constants
from sihg.minimax.measure import estimate_constants, estimate_curvature
from sihg.minimax.problem import Problem
from sihg.minimax.solve_state import SolveState
from sihg.minimax.solvers import AnyMethod, method_class, method_name
from sihg.minimax.step_sizes import StepSizes

Settings = dict[str, float]  # of a method, by name
STEPS = ("sigma", "tau", "theta")
RULES = ("theorem", "adaptive")
AUTO = "auto"  # stands for the best of CANDIDATES
# What was estimated before, since "auto" and comparisons begin many solves of one problem.
_estimates: WeakKeyDictionary[Problem, Constants] = WeakKeyDictionary()
_curvatures: WeakKeyDictionary[Problem, float] = WeakKeyDictionary()


def start_solve(
    problem: Problem,
    method: str,
    settings: Settings,
    seed: int | None,
    state: SolveState | None,
    rule: str | None = None,
) -> SolveState:
    """Return the state before the next iteration.

    Args:
        problem: The problem.
        method: The name of the method.
        settings: Its settings that are given: step sizes, and further ones such as ascent_steps.
        seed: The seed of the drawn blocks; None for 0, or for that of `state`.
        state: A state to continue; None to begin.
        rule: Where step sizes that are not given come from, one of `RULES`; None for "theorem", or for that of `state`.
    """
    check_rule(rule)
    _check_steps(settings)
    if method == AUTO:
        if settings:
            raise InputError("auto-settings", name=min(settings))
        if state is None:
            return _choose(problem, seed or 0, rule)
        method = method_name(state.method)
    if state is None:
        at = _begin(problem, method, settings, seed or 0, warn=rule != "adaptive")
    else:
        at = _continue(problem, method, settings, seed, state)
        if rule == "theorem" and at.adaptive:
            raise InputError("state-is-adaptive")
    searches = rule == "adaptive" and not at.adaptive and not at.method.adapts_itself
    return _adaptive(problem, at, settings) if searches else at


def _choose(problem: Problem, seed: int, rule: str | None) -> SolveState:
    """Return where the best candidate got to; `rule` takes each method once, with such steps."""
    candidates = [(name, rule) for name in dict(CANDIDATES)] if rule else CANDIDATES
    starts, error = [], None
    noted: dict[str, list[warnings.WarningMessage]] = {}
    for name, kind in candidates:
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                starts.append((kind, start_solve(problem, name, {}, seed, None, kind)))
            noted[f"{name}, {kind}"] = caught
        except InputError as found:
            if found.code != "not-coupled":
                raise
            error = found  # the theorems choose no steps; the others may
    if not starts and error:
        raise error
    at, kind = choose(problem, starts)
    for warning in noted[f"{method_name(at.method)}, {kind}"]:  # those of the others say nothing of this solve
        warnings.warn(warning.message, stacklevel=4)
    return at


def _adaptive(problem: Problem, at: SolveState, given: Settings) -> SolveState:
    """Begin the line search from these steps; theta follows them unless it is given."""
    method, source = at.method, f"{adaptive.NOTE}; first steps: {at.steps.source}"
    if "theta" in settings_of(method) and "theta" not in given:
        method = replace(method, theta=1.0)  # type: ignore[call-arg]
    steps = replace(at.steps, theta=settings_of(method).get("theta", 1.0), source=source)
    balances = adaptive.may_balance(problem, method)
    if not balances and not {"sigma", "tau"} & set(given):
        step = sqrt(method.sigma * method.tau)
        method = replace(method, sigma=step, tau=step)
        steps = replace(steps, sigma=step, tau=step)
    search = adaptive.begin(method, at.inner, problem.n, at.iteration, balances=balances)
    return replace(at, method=method, steps=steps, adaptive=search)


def check_rule(rule: str | None) -> None:
    """Raise UnknownNameError unless it is one of `RULES`, or None."""
    if rule is not None and rule not in RULES:
        raise UnknownNameError("steps", rule, RULES)


def step_numbers(steps: str | Mapping[str, float] | None) -> Settings:
    """Return the numbers among the forms that `solve(steps=...)` takes."""
    if steps is None or isinstance(steps, str):
        return {}
    if not isinstance(steps, Mapping) or not steps:
        raise InputError("steps-form", got=steps)
    if unknown := set(steps) - set(STEPS):
        raise InputError("steps-form", got=sorted(unknown))
    return {name: step_number(name, value) for name, value in steps.items()}


def step_number(name: str, value: float) -> float:
    """Return a given step size, or theta, as a float; raise StepSizeError if it is not a number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        pass
    if name == "theta":
        raise StepSizeError("theta-range", theta=value)
    raise StepSizeError("step-size-range", name=name, value=value)


def check_suits(problem: Problem, method: str) -> None:
    """Raise InputError if there is no such method, or it cannot solve the problem."""
    if method != AUTO and method_class(method).bilinear_only and not problem.bilinear_in_both:
        raise InputError("method-bilinear-only", method=method)


def _begin(problem: Problem, method: str, given: Settings, seed: int, *, warn: bool) -> SolveState:
    check_suits(problem, method)
    kind = method_class(method)
    steps = _steps(problem, kind, given)
    made = _make(kind, method, {**given, "sigma": steps.sigma, "tau": steps.tau, "theta": steps.theta})
    curvature = _curvature(problem, made, steps.tau)
    if warn:
        _warn_outside_theorem(problem, made, steps)
    return SolveState(
        0, made, steps, made.state(problem.w0.clone(), problem.delta0.clone()), seed, curvature, 0, 0, 0.0
    )


def _continue(problem: Problem, method: str, given: Settings, seed: int | None, state: SolveState) -> SolveState:
    """Return a copy of the state; settings given anew replace the old ones."""
    state.check_fits(problem)
    if method_name(state.method) != method:
        raise InputError("state-of-another-method", method=method, found=method_name(state.method))
    state = state.copied()
    if seed is not None:
        state = replace(state, seed=seed)
    changed = {name: value for name, value in given.items() if value != getattr(state.method, name, None)}
    if changed:
        made = _make(type(state.method), method, {**settings_of(state.method), **changed})
        new_steps = {name: changed[name] for name in STEPS if name in changed}
        steps = replace(state.steps, **new_steps, source="given")
        state = replace(state, method=made, steps=steps, curvature=_curvature(problem, made, steps.tau), adaptive=None)
        _warn_outside_theorem(problem, made, steps)
    return state


def _steps(problem: Problem, kind: type[AnyMethod], given: Settings) -> StepSizes:
    """Return the step sizes: those given, the others by the method's rule."""
    named = {name: given[name] for name in STEPS if name in given}
    if "sigma" in given and "tau" in given:
        chosen = StepSizes(given["sigma"], given["tau"])
    else:
        chosen = kind.choose(problem, lipschitz_constants(problem) if kind.needs_constants else problem.constants)
        chosen = replace(chosen, source=", ".join([chosen.source, *(f"{name} given" for name in named)]))
    chosen = replace(chosen, **named)  # type: ignore[arg-type]
    return chosen if "theta" in named else replace(chosen, theta=kind.best_theta(problem, chosen.sigma, chosen.tau))


def _check_steps(given: Settings) -> None:
    for name in ("sigma", "tau"):
        if name in given and not (isfinite(given[name]) and given[name] > 0):
            raise StepSizeError("step-size-range", name=name, value=given[name])
    if not 0 <= given.get("theta", 1.0) <= 1:
        raise StepSizeError("theta-range", theta=given["theta"])


def lipschitz_constants(problem: Problem) -> Constants:
    """Return the problem's constants; missing L11, L12, L22 are estimated, times a safety factor."""
    known = problem.constants
    if known.lipschitz_known:
        return known
    if problem not in _estimates:
        _estimates[problem] = estimate_constants(problem)
    seen = _estimates[problem]
    factor = 1.05 if problem.bilinear_in_both else 2.0
    filled = {
        name: getattr(known, name) if getattr(known, name) is not None else factor * (getattr(seen, name) or 0.0)
        for name in ("L11", "L12", "L22")
    }
    block = known.L12_block if known.L12_block is not None else min(factor * (seen.L12_block or 0.0), filled["L12"])
    return replace(known, **filled, L12_block=block, source=f"{seen.source}, times {factor:g}")


def _curvature(problem: Problem, method: AnyMethod, tau: float) -> float:
    """Return L22 for the implicit step, known or estimated; raise StepSizeError if tau L22 >= 1."""
    if not method.implicit or problem.bilinear_in_both:
        return 0.0
    known = problem.constants.L22
    if known is None and problem.closed_form is not None:
        return 0.0
    if known is None and problem not in _curvatures:
        _curvatures[problem] = estimate_curvature(problem)
    L22 = _curvatures[problem] if known is None else known
    if tau * L22 >= 1:
        kind = "estimated at the start" if known is None else "the problem's"
        raise StepSizeError("implicit-step-tau", tau=tau, limit=1 / L22, L22=L22, kind=kind)
    # An estimate of zero does not prove that phi is linear in delta, which alone makes one Picard step exact.
    return L22 if known is not None else max(L22, 1e-3 / tau)


def _warn_outside_theorem(problem: Problem, method: AnyMethod, steps: StepSizes) -> None:
    c = problem.constants
    if c.L11 is None or c.L12 is None:
        return
    condition = method.condition(problem, c, steps)
    if condition is not None and not condition:
        text = f"outside the theorem: {condition.text}; going on"
        warnings.warn(text, StepSizeWarning, stacklevel=5)  # the caller of solve()


def _make(kind: type[AnyMethod], name: str, settings: Settings) -> AnyMethod:
    """Build the method; theta is dropped if the method has none and theta was not changed."""
    known = {field.name for field in fields(kind)}
    if "theta" not in known and settings.get("theta") in (None, 1.0):
        settings = {k: v for k, v in settings.items() if k != "theta"}
    unknown = set(settings) - known
    if unknown:
        raise InputError("unknown-method-setting", name=min(unknown), method=name, names=", ".join(sorted(known)))
    return kind(**settings)


def settings_of(method: AnyMethod) -> Settings:
    """Return the settings of a method by name."""
    return {field.name: getattr(method, field.name) for field in fields(method)}
