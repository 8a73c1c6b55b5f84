"""All that a solve needs to continue exactly where it stopped, in memory or in a file."""

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from sihg.errors import InputError
from sihg.minimax.adaptive import Adaptive, packed, unpacked
from sihg.minimax.problem import Problem
from sihg.minimax.solvers import METHODS, AnyMethod, method_name
from sihg.minimax.solvers.base import State
from sihg.minimax.step_sizes import StepSizes
from sihg.store.files import read_regular, write_bytes
from sihg.store.seal import NO_SUM, require_seal, seal

SEARCH = "adaptive."  # begins the names of the line search's tensors in a file
MAX_STATE_BYTES = 2**36


@dataclass(frozen=True)
class Candidate:
    """How far a candidate of "auto" got.

    Args:
        method: The method.
        steps: "theorem" or "adaptive".
        gradients: The block gradients of its trial, in w and in delta together.
        saddle_norm_squared: ||F||^2 at the end of its trial; infinite if it diverged.
    """

    method: str
    steps: str
    gradients: int
    saddle_norm_squared: float


@dataclass(frozen=True, repr=False)
class SolveState:
    """A solve between two iterations: pass it to `solve(..., state=...)`, or `save` it and `load` it later.

    Args:
        iteration: The number of iterations done.
        method: The method with its settings.
        steps: The step sizes and their source.
        inner: The state of the method, with the iterate as flat vectors.
        seed: The seed of the drawn blocks.
        curvature: L22, known or estimated, for the implicit step.
        w_gradients: The number of block gradients in w so far.
        delta_gradients: The number of block gradients in delta so far.
        seconds: The time of the iterations so far.
        adaptive: The line search of adaptive steps; None for fixed steps.
        candidates: What "auto" tried.
        config: Identifies the settings of the comparison that saved it; "" for a single solve.
    Example:
        >>> from sihg.minimax import solve, zoo
        >>> problem = zoo.get("ridge").problem
        >>> half = solve(problem, iterations=20)
        >>> half.state
        SolveState(ssi-hg, iteration 20, seed 0)
        >>> solve(problem, iterations=30, state=half.state).stopped
        '30 iterations done, 50 in all'
    """

    iteration: int
    method: AnyMethod
    steps: StepSizes
    inner: State
    seed: int
    curvature: float
    w_gradients: int
    delta_gradients: int
    seconds: float
    adaptive: Adaptive | None = None
    candidates: tuple[Candidate, ...] = ()
    config: str = ""

    def __repr__(self) -> str:
        return f"SolveState({method_name(self.method)}, iteration {self.iteration}, seed {self.seed})"

    def copied(self) -> "SolveState":
        """Return the state with a copy of delta, since stochastic methods overwrite delta in place."""
        return replace(self, inner=replace(self.inner, delta=self.inner.delta.clone()))

    def check_fits(self, problem: Problem) -> None:
        """Raise InputError if the state has other shapes or another dtype than the problem."""
        for name, ours, theirs in (("w", self.inner.w, problem.w0), ("delta", self.inner.delta, problem.delta0)):
            if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
                raise InputError(
                    "state-of-another-problem",
                    variable=name,
                    found=ours.numel(),
                    count=theirs.numel(),
                    dtype=theirs.dtype,
                    found_dtype=ours.dtype,
                )

    def save(self, path: str | Path) -> Path:
        """Write the state as safetensors, whole or not at all."""
        inner = {f.name: getattr(self.inner, f.name) for f in fields(self.inner)}
        tensors = {name: value.contiguous().clone() for name, value in inner.items() if isinstance(value, Tensor)}
        found, adaptive = packed(self.adaptive) if self.adaptive else ({}, None)
        tensors |= {SEARCH + name: value.contiguous().clone() for name, value in found.items()}
        about = {
            "adaptive": adaptive,
            "candidates": [asdict(candidate) for candidate in self.candidates],
            "method": method_name(self.method),
            "settings": asdict(self.method),
            "steps": asdict(self.steps),
            "plain": {name: value for name, value in inner.items() if not isinstance(value, Tensor)},
        }
        about |= {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if f.name not in ("method", "steps", "inner", "adaptive", "candidates")
        }
        return write_bytes(path, seal(save(tensors, metadata={"sihg": json.dumps(about), "seal": NO_SUM})))

    @staticmethod
    def load(path: str | Path) -> "SolveState":
        """Read a saved state; nothing is unpickled, and a changed bit is an error."""
        try:
            data = read_regular(path, MAX_STATE_BYTES)
            require_seal(Path(path), data)
            tensors = load(data)
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            about = json.loads(header["__metadata__"]["sihg"])
            method = METHODS[about.pop("method")](**about.pop("settings"))
            found = {name: tensors.pop(name) for name in list(tensors) if name.startswith(SEARCH)}
            found = {name.removeprefix(SEARCH): value for name, value in found.items()}
            plain = about.pop("adaptive", None)  # absent in files of earlier versions
            adaptive = unpacked(found, plain) if plain else None
            inner = method.state(tensors.pop("w"), tensors.pop("delta"))
            inner = replace(inner, **tensors, **about.pop("plain"))
            steps = StepSizes(**about.pop("steps"))
            candidates = tuple(Candidate(**candidate) for candidate in about.pop("candidates", ()))
            return SolveState(
                method=method, steps=steps, inner=inner, adaptive=adaptive, candidates=candidates, **about
            )
        except InputError:
            raise
        except (OSError, SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise InputError("state-unreadable", path=path, error=error) from error
