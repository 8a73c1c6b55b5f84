"""Begin or continue a solve: the method with its step sizes, chosen or checked, and its first state."""

import warnings
from dataclasses import fields, replace
from math import isfinite

from sihg.errors import InputError, StepSizeError, StepSizeWarning
from sihg.minimax.constants import Constants
from sihg.minimax.measure import estimate_constants, estimate_curvature
from sihg.minimax.problem import Problem
from sihg.minimax.solve_state import SolveState
from sihg.minimax.solvers import AnyMethod, method_class, method_name
from sihg.minimax.step_sizes import StepSizes

Settings = dict[str, float]  # of a method, by name
STEPS = ("sigma", "tau", "theta")


def start_solve(
    problem: Problem, method: str, settings: Settings, seed: int | None, state: SolveState | None
) -> SolveState:
    """Return the state before the next iteration.

    Args:
        problem: The problem.
        method: The name of the method.
        settings: Its settings that are given: step sizes, and further ones such as ascent_steps.
        seed: The seed of the drawn blocks; None for 0, or for that of `state`.
        state: A state to continue; None to begin.
    """
    _check_steps(settings)
    if state is None:
        return _begin(problem, method, settings, seed or 0)
    return _continue(problem, method, settings, seed, state)


def check_suits(problem: Problem, method: str) -> type[AnyMethod]:
    """Return the class of a method, or raise InputError if it cannot solve the problem."""
    kind = method_class(method)
    if kind.bilinear_only and not problem.bilinear_in_both:
        raise InputError("method-bilinear-only", method=method)
    return kind


def _begin(problem: Problem, method: str, given: Settings, seed: int) -> SolveState:
    kind = check_suits(problem, method)
    steps = _steps(problem, kind, given)
    made = _make(kind, method, {**given, "sigma": steps.sigma, "tau": steps.tau, "theta": steps.theta})
    curvature = _curvature(problem, made, steps.tau)
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
        state = replace(state, method=made, steps=steps, curvature=_curvature(problem, made, steps.tau))
        _warn_outside_theorem(problem, made, steps)
    return state


def _steps(problem: Problem, kind: type[AnyMethod], given: Settings) -> StepSizes:
    """Return the step sizes: those given, the others by the method's rule."""
    named = {name: given[name] for name in STEPS if name in given}
    if "sigma" in given and "tau" in given:
        chosen = StepSizes(given["sigma"], given["tau"])
    else:
        chosen = kind.choose(problem, _lipschitz(problem))
        chosen = replace(chosen, source=", ".join([chosen.source, *(f"{name} given" for name in named)]))
    chosen = replace(chosen, **named)  # type: ignore[arg-type]
    return chosen if "theta" in named else replace(chosen, theta=kind.best_theta(problem, chosen.sigma, chosen.tau))


def _check_steps(given: Settings) -> None:
    for name in ("sigma", "tau"):
        if name in given and not (isfinite(given[name]) and given[name] > 0):
            raise StepSizeError("step-size-range", name=name, value=given[name])
    if not 0 <= given.get("theta", 1.0) <= 1:
        raise StepSizeError("theta-range", theta=given["theta"])


def _lipschitz(problem: Problem) -> Constants:
    """Return the problem's constants; missing L11, L12, L22 are estimated, times a safety factor."""
    known = problem.constants
    if known.lipschitz_known:
        return known
    seen = estimate_constants(problem)
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
    L22 = estimate_curvature(problem) if known is None else known
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
