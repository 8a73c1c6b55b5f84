"""Find the module whose gradient does not say what the module does: the one to replace by `bpda`."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sihg.core.draw import generator, seeded
from sihg.robust.gradients import evaluation_mode
from sihg.robust.models.outputs import Logits
from sihg.robust.threat import Ball, extreme_noise
from sihg.store.schema import Check

SYMPTOMS = ("black box", "one step", "radius")  # checks that find masked gradients by what attacks break
MAX_SAMPLES = 8
MIN_EXPLAINED = (
    0.4  # of a module's change by its gradient; ReLU, whose kinks are the worst of usual layers, has 0.5 or more
)
MIN_CHANGE = 1e-6  # of a module's output, relative: less is rounding


@dataclass(frozen=True)
class MaskingModule:
    """A module whose gradient explains too little of how it changes."""

    name: str
    kind: str  # its class
    keeps_shape: bool  # its output has the shape of its input

    def __str__(self) -> str:
        replacement = "'identity'" if self.keeps_shape else "a differentiable function"
        return f"module '{self.name}' ({self.kind}) hides its gradient: give bpda={{'{self.name}': {replacement}}}"


def find_masking_module(model: nn.Module, x: Tensor, ball: Ball, seed: int) -> MaskingModule | None:
    """Return the module whose gradient explains the least of its change from x to random corners of the ball.

    Of a module f from a to b = f(a), with a', b' at the corners, the explained share is <b' - b, J (a' - a)> over
    |b' - b|^2: about 1 for layers that are smooth or have kinks, 0 for rounding, -1 for a reversed gradient. Modules
    without children come first; one with children is only looked at if no module in it explains too little.

    Args:
        model: The model.
        x: Samples; the first few are taken.
        ball: The ball.
        seed: Of the corners, and of a random model's draws, which are the same in all passes.
    Returns:
        The module, or None if there is none below `MIN_EXPLAINED`.
    """
    model, x = model.model if isinstance(model, Logits) else model, x[:MAX_SAMPLES].detach()  # named as the user does
    noise = extreme_noise(
        ball.norm, shape=x.shape, radius=ball.eps, dtype=x.dtype, generator=generator(seed, "masking")
    )
    corner = x + ball.around(x).project_(noise.to(x))
    with evaluation_mode(model):
        here, there = _record_passes(model, x, seed), _record_passes(model, corner, seed)
        modules = {name: module for name, module in model.named_modules() if name}
        for has_children in (False, True):
            shares = {}
            for name in (n for n, m in modules.items() if bool(next(m.children(), None)) == has_children):
                share = _explained(modules[name], here.get(name), there.get(name), seed)
                if share is not None and share < MIN_EXPLAINED:
                    shares[name] = share
            if shares:
                name = min(shares, key=lambda key: shares[key])
                a, b = here[name]
                return MaskingModule(name, type(modules[name]).__name__, a.shape == b.shape)
    return None


def suggest_bpda(model: nn.Module, x: Tensor, ball: Ball, seed: int) -> str:
    """Return which module to replace by `bpda`, in words; empty if none is found."""
    try:
        found = find_masking_module(model, x, ball, seed)
    except Exception:  # such as compiled modules, which may take no hooks; advice is no reason to fail
        found = None
    return "" if found is None else str(found)


def add_advice(checks: Sequence[Check], model: nn.Module, x: Tensor, ball: Ball, seed: int) -> list[Check]:
    """Return the checks; warnings that gradients are masked, found by attacks, also say which module to replace."""
    symptoms = [check for check in checks if check.name in SYMPTOMS and check.result == "warning"]
    advice = suggest_bpda(model, x, ball, seed) if symptoms else ""
    if not advice:
        return list(checks)
    return [Check(c.name, c.result, f"{c.message}; {advice}") if c in symptoms else c for c in checks]


def _record_passes(model: nn.Module, x: Tensor, seed: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the input and output of each module in its first call, where each is one tensor of floats."""
    found: dict[str, tuple[Tensor, Tensor]] = {}
    names = {module: name for name, module in model.named_modules() if name}

    begun: dict[nn.Module, Tensor] = {}

    def keep(module: nn.Module, inputs: tuple[object, ...]) -> None:  # before the module may change it
        a = inputs[0] if len(inputs) == 1 else None
        begun.pop(module, None)
        if isinstance(a, Tensor) and a.is_floating_point():
            begun[module] = a.clone()

    def record(module: nn.Module, _inputs: tuple[object, ...], output: object) -> None:
        if isinstance(output, Tensor) and module in begun:
            found.setdefault(names[module], (begun.pop(module), output.clone()))

    hooks = [module.register_forward_pre_hook(keep) for module in names]
    hooks += [module.register_forward_hook(record) for module in names]
    try:
        with torch.no_grad(), seeded(seed, "masking", device=x.device):
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _explained(
    module: nn.Module, here: tuple[Tensor, Tensor] | None, there: tuple[Tensor, Tensor] | None, seed: int
) -> float | None:
    """Return the share of the module's change that its gradient explains; None if it does not change."""
    if here is None or there is None or here[1].shape != there[1].shape:
        return None
    (a, b), change = here, (there[1] - here[1]).double()
    size = float(change.square().sum())
    if not size > (MIN_CHANGE * float(b.double().abs().max())) ** 2:
        return None
    point = a.requires_grad_()
    try:
        with torch.enable_grad(), seeded(seed, "masking", device=a.device):
            out = module(point.clone())  # some modules change their input
            (g,) = torch.autograd.grad(out, point, change.to(out.dtype))
    except RuntimeError:  # the module has no derivative
        return 0.0
    return float((g.double() * (there[0] - a.detach()).double()).sum()) / size
