"""Everything a solve needs to go on exactly where it stopped, in memory or in a file."""

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from sihg.errors import InputError
from sihg.minimax.problem import Problem
from sihg.minimax.solvers import METHODS, method_name
from sihg.minimax.solvers.base import Method, State
from sihg.minimax.step_sizes import StepSizes
from sihg.store.files import write_bytes


@dataclass(frozen=True)
class SolveState:
    """A solve between two iterations: pass it to `solve(..., state=...)`, or `save` it and `load` it later."""

    iteration: int
    method: Method[Any]
    steps: StepSizes
    inner: State
    seed: int
    curvature: float
    w_gradients: int
    delta_gradients: int
    seconds: float

    def copied(self) -> "SolveState":
        """The same with a delta of its own, since stochastic methods write theirs in place."""
        return replace(self, inner=replace(self.inner, delta=self.inner.delta.clone()))

    def check_fits(self, problem: Problem) -> None:
        """Refuse a state of another problem."""
        for name, ours, theirs in (("w", self.inner.w, problem.w0), ("delta", self.inner.delta, problem.delta0)):
            if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
                raise InputError(
                    f"state has {ours.numel()} numbers of {ours.dtype} in {name}, the problem {theirs.numel()} of "
                    f"{theirs.dtype}: continue with the problem the state came from"
                )

    def save(self, path: str | Path) -> Path:
        """Write the state as safetensors, whole or not at all."""
        inner = {f.name: getattr(self.inner, f.name) for f in fields(self.inner)}
        tensors = {name: value.contiguous().clone() for name, value in inner.items() if isinstance(value, Tensor)}
        about = {
            "method": method_name(self.method),
            "settings": asdict(self.method),
            "steps": asdict(self.steps),
            "plain": {name: value for name, value in inner.items() if not isinstance(value, Tensor)},
        }
        about |= {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("method", "steps", "inner")}
        return write_bytes(path, save(tensors, metadata={"sihg": json.dumps(about)}))

    @staticmethod
    def load(path: str | Path) -> "SolveState":
        """Read a saved state; nothing is unpickled."""
        try:
            with safe_open(path, framework="pt") as file:
                about = json.loads((file.metadata() or {})["sihg"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            method = METHODS[about.pop("method")](**about.pop("settings"))
            inner = method.init(tensors.pop("w"), tensors.pop("delta"))
            inner = replace(inner, **tensors, **about.pop("plain"))
            return SolveState(method=method, steps=StepSizes(**about.pop("steps")), inner=inner, **about)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{path} is not a saved solve state ({error}): delete it to start that method anew"
            ) from error
