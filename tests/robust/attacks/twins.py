"""PGD as plain as can be: sample by sample, run by run, no sample ever leaves."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sihg.core.draw import generator
from sihg.robust.attacks import PGD
from tests.robust.l1_twins import plain_projection, plain_step


@dataclass
class Found:
    """Whether any iterate, and whether the end of any run, is misclassified; passes until the first is found."""

    any_iterate: list[bool]
    any_end: list[bool]
    passes: int


def _limits(attack: PGD, x: Tensor) -> tuple[Tensor, Tensor]:
    if attack.bounds is None:
        return torch.full_like(x, -torch.inf), torch.full_like(x, torch.inf)
    low, high = (torch.as_tensor(b, dtype=x.dtype).expand_as(x) - x for b in attack.bounds)
    return low, high


def _inside(attack: PGD, delta: Tensor, low: Tensor, high: Tensor) -> Tensor:
    if attack.norm == "linf":
        return delta.clamp(-attack.eps, attack.eps).clamp(low, high)
    if attack.norm == "l1":
        d, lowest, highest = (part.flatten().numpy() for part in (delta, low, high))
        near = plain_projection(d, lowest, highest, attack.eps)
        return torch.from_numpy(near).view(delta.shape)
    return (delta * min(1.0, attack.eps / max(float(delta.norm()), 1e-300))).clamp(low, high)


def _ahead(attack: PGD, delta: Tensor, g: Tensor, low: Tensor, high: Tensor, eta: float) -> Tensor:
    if attack.norm == "l1":
        d, slope, lowest, highest = (part.flatten().numpy() for part in (delta, g, low, high))
        new = plain_step(d, slope, lowest, highest, eta)
        return torch.from_numpy(new).view(delta.shape)
    return delta + eta * (g.sign() if attack.norm == "linf" else g / g.norm())


def starts(attack: PGD, x: Tensor, seed: int, run: int) -> Tensor:
    """The noise before it is projected; 64 rows share a generator, which does not mind that there may be fewer."""
    parts = []
    for block in range(-(-len(x) // 64)):
        rows, draw = x.new_empty(64, *x.shape[1:]), generator(seed, "attack start", run, block)
        if attack.norm == "linf":
            parts.append((torch.rand(rows.shape, generator=draw, dtype=x.dtype) * 2 - 1) * attack.eps)
        elif attack.norm == "l1":
            v = torch.rand(rows.shape, generator=draw, dtype=x.dtype).flatten(1) * 2 - 1
            u = torch.rand((len(rows), *[1] * (x.dim() - 1)), generator=draw, dtype=x.dtype).flatten(1)
            sizes = -(1 - v.abs()).log()
            share = sizes / (sizes.sum(1, keepdim=True) - (1 - u).log())
            parts.append((v.sign() * share * attack.eps).view(rows.shape))
        else:
            direction = torch.randn(rows.shape, generator=draw, dtype=x.dtype).flatten(1)
            u = torch.rand((len(rows), *[1] * (x.dim() - 1)), generator=draw, dtype=x.dtype).flatten(1)
            length = attack.eps * u ** (1 / direction.shape[1])
            parts.append((direction / direction.norm(dim=1, keepdim=True) * length).view(rows.shape))
    return torch.cat(parts)[: len(x)]


def plain_pgd(attack: PGD, model: nn.Module, x: Tensor, y: Tensor, seed: int = 0) -> Found:
    """Attack a model in evaluation mode."""
    found = Found([], [], 0)
    lows, highs = _limits(attack, x)
    eta = attack.step_size or 2.5 * attack.eps / attack.steps
    noise = [
        starts(attack, x, seed, run) if attack.random_start else torch.zeros_like(x) for run in range(attack.restarts)
    ]
    for i in range(len(x)):
        image, label = x[i : i + 1], y[i : i + 1]
        low, high = lows[i : i + 1], highs[i : i + 1]
        iterate_wrong = end_wrong = False
        for run in range(attack.restarts):
            delta = _inside(attack, noise[run][i : i + 1], low, high)
            for _ in range(attack.steps):
                found.passes += not (end_wrong if attack.last_iterate else iterate_wrong)
                point = (image + delta).requires_grad_()
                logits = model(point)
                iterate_wrong |= int(logits.argmax()) != int(label)
                (g,) = torch.autograd.grad(cross_entropy(logits, label), point)
                delta = _inside(attack, _ahead(attack, delta, g, low, high, eta), low, high)
            wrong = int(model(image + delta).argmax()) != int(label)
            iterate_wrong |= wrong
            end_wrong |= wrong
        found.any_iterate.append(iterate_wrong)
        found.any_end.append(end_wrong)
    return found
