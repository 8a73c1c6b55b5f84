"""Accuracy under a list of attacks, with the reasons to doubt it."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sihg.errors import InputError
from sihg.robust.attacks.base import Attack, check_module
from sihg.robust.attacks.no_attack import Natural
from sihg.robust.attacks.registry import Plan, build_plan
from sihg.robust.attacks.runner import Ledger, Outcome, Progress, device_of, run_attacks
from sihg.robust.attacks.user_function import FunctionAttack
from sihg.robust.data.samples import Samples, as_samples, stratified_subset
from sihg.robust.evaluation import diagnostics as trust
from sihg.robust.evaluation.diagnostics import Check, State
from sihg.robust.evaluation.reattack import again
from sihg.robust.gradients import evaluation_mode
from sihg.robust.threat import Ball, Bounds

Z95 = 1.959963984540054  # the normal distribution's 97.5 % point
Attacks = str | Sequence[str] | Mapping[str, str | Attack | Callable[[Tensor, Tensor], Tensor]]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What the attacks found, and what the checks say of it."""

    ball: Ball
    outcomes: tuple[Outcome, ...]
    checks: tuple[Check, ...]
    checks_seconds: float

    @property
    def broken(self) -> Tensor:
        """Which samples do not hold under some attack; where none was asked for, which are not proven to."""
        attacks = [one.broken for one in self.outcomes if not one.proof]
        return torch.stack(attacks or [one.broken for one in self.outcomes]).any(0)

    @property
    def accuracy(self) -> float:
        """The share of samples that hold under all attacks."""
        return int((~self.broken).sum()) / len(self.broken)

    @property
    def errors(self) -> list[Check]:
        """Checks that say that the figures are wrong."""
        return [one for one in self.checks if one.result == "error"]

    @property
    def warnings(self) -> list[Check]:
        """Checks that say that the figures may mislead."""
        return [one for one in self.checks if one.result == "warning"]

    def __getitem__(self, attack: str) -> Outcome:
        """The outcome of one attack."""
        for one in self.outcomes:
            if one.attack == attack:
                return one
        raise InputError(f"{attack!r} was not asked for: there is {', '.join(one.attack for one in self.outcomes)}")

    def rows(self) -> list[dict[str, Any]]:
        """A row for each attack, and for all of them: natural errors count too, which an attack may not look at."""
        rows = [_row(one) for one in self.outcomes if not one.proof]
        n, held = len(self.broken), int((~self.broken).sum())
        if len(rows) > 1:
            costs = {key: sum(row[key] for row in rows) for key in ("passes", "forwards", "seconds")}
            rows.append({"attack": "all", **_share(held, n), **_per_sample(costs, n)})
        return rows + [_row(one) for one in self.outcomes if one.proof]

    def __str__(self) -> str:
        lines = [f"{'attack':<12} accuracy %   95 % interval   ({shown(self.ball)}, {len(self.broken)} samples)"]
        lines += [
            f"{row['attack']:<12} {100 * row['accuracy']:>10.2f}   {100 * row['low']:.2f} - {100 * row['high']:.2f}"
            for row in self.rows()
        ]
        lines += [f"note: {one.attack}: {one.remark}" for one in self.outcomes if one.remark]
        lines += [f"{one.result}: {one.message}" for one in (*self.errors, *self.warnings)]
        return "\n".join([*lines, f"checks: {trust.counted([one.result for one in self.checks])}"])


def evaluate(
    model: nn.Module,
    data: object,
    *,
    eps: float,
    norm: str = "linf",
    bounds: Bounds = (0.0, 1.0),
    attacks: Attacks = ("natural", "standard"),
    samples: int | None = None,
    seed: int = 0,
    last_iterate: bool = False,
    trained_with: str | None = None,
    progress: Callable[[str, int], Progress] = lambda _name, _total: lambda _done: None,
    ledger: Ledger | None = None,
) -> Evaluation:
    """Attack a model's samples and say how many hold, and what speaks against believing it.

    `data` is a pair (x, y), a torch Dataset or Samples, uint8 standing for value / 255; `samples` draws so many, each
    class in proportion. Attacks are names (see `sihg evaluate --help`), or a dict of names, of attacks and of functions
    (x, y) -> x_adv. `trained_with` is the method that the model was trained with, if known; `progress(attack, total)`
    gives what is then told how many samples are done. The model stays where it is.
    """
    check_module(model)
    whole, ball = as_samples(data), Ball(eps, norm, bounds)
    plans = planned(attacks, ball, last_iterate=last_iterate)
    some = stratified_subset(whole, samples, seed)
    return examine(
        model,
        some,
        len(whole),
        ball,
        plans,
        seed=seed,
        trained_with=trained_with,
        progress=progress,
        ledger=ledger,
    )


def examine(
    model: nn.Module,
    samples: Samples,
    total: int,
    ball: Ball,
    plans: Mapping[str, Plan],
    *,
    seed: int,
    trained_with: str | None,
    progress: Callable[[str, int], Progress],
    ledger: Ledger | None,
) -> Evaluation:
    """Carry out the plans on the samples, which are of `total` ones, and the checks."""
    begin = time.perf_counter()
    with evaluation_mode(model):
        state = State(model)
        check_model(model, samples)
        attacked = any(not isinstance(attack, Natural) for one in plans.values() for attack in one.values())
        check_range(samples, ball if attacked else Ball(0.0, ball.norm, ball.bounds))  # without attack eps is nothing
        check_plans(model, samples, plans)
        checks = list(trust.before(model, samples, ball, seed, attacked=attacked))
        spent = time.perf_counter() - begin
        outcomes = run_attacks(model, samples, plans, seed=seed, progress=progress, ledger=ledger)
        begin = time.perf_counter()
        checks += trust.after(samples, total, plans, outcomes, trained_with)
        checks += again(model, samples, ball, plans, outcomes, seed, spent=spent)
        checks.append(state.check())
    return Evaluation(ball, tuple(outcomes), tuple(checks), spent + time.perf_counter() - begin)


def planned(
    attacks: Attacks,
    ball: Ball,
    *,
    last_iterate: bool = False,
    source: Callable[[str], nn.Module] | None = None,
) -> dict[str, Plan]:
    """What stands behind the names of attacks."""
    if not isinstance(attacks, str | Sequence | Mapping):
        raise InputError(f"attacks is a {type(attacks).__name__}: give names, such as natural,pgd-20, or a dict")
    if not isinstance(attacks, Mapping):
        names = attacks.split(",") if isinstance(attacks, str) else list(attacks)
        for name in names:
            if not isinstance(name, str):
                raise InputError(f"a {type(name).__name__} is no name: give attacks of your own in a dict, by names")
        attacks = {name.strip(): name.strip() for name in names if name.strip()}
    if not attacks:
        raise InputError("no attack is named: such as natural,pgd-20")
    plans: dict[str, Plan] = {}
    for name, attack in attacks.items():
        if isinstance(attack, str):
            parts = build_plan(attack, ball, last_iterate=last_iterate, source=source)
            plans[name] = parts if len(parts) > 1 else {name: next(iter(parts.values()))}
        else:
            plans[name] = {name: _given(name, attack, ball)}
    return plans


def _given(name: str, attack: Attack | Callable[[Tensor, Tensor], Tensor], ball: Ball) -> Attack:
    if isinstance(attack, Attack):
        if not (isinstance(attack, Natural) or attack.ball.same_as(ball)):
            raise InputError(f"{name} attacks within {attack.ball}, not within {ball}: give both the same")
        return attack
    if not callable(attack):
        raise InputError(f"{name} is a {type(attack).__name__}: give a name, an attack or a function (x, y) -> x_adv")
    return FunctionAttack(eps=ball.eps, norm=ball.norm, bounds=ball.bounds, function=attack, name=name)


def wilson(hits: int, n: int) -> tuple[float, float]:
    """The 95 % Wilson interval of a share."""
    share, z2 = hits / n, Z95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def shown(ball: Ball) -> str:
    """The attacker in words, eps as a float and, where values are bound to a range of 1, in steps of 8-bit images."""
    low, high = (0.0, 0.0) if ball.bounds is None else ball.bounds
    unit = ball.norm == "linf" and bool((torch.as_tensor(high) - torch.as_tensor(low) == 1).all())
    pixels = f" = {255 * ball.eps:.3g}/255" if unit else ""
    return f"{ball.norm}, eps {ball.eps:.4g}{pixels}"


def _row(outcome: Outcome) -> dict[str, Any]:
    n, held = len(outcome.broken), int((~outcome.broken).sum())
    costs = {"passes": outcome.passes, "forwards": outcome.forwards, "seconds": outcome.seconds}
    row: dict[str, Any] = {"attack": outcome.attack, **_share(held, n), **_per_sample(costs, n)}
    row |= {"proof": True} if outcome.proof else {}
    row |= {"remark": outcome.remark} if outcome.remark else {}
    row |= {"attacked": int(outcome.attacked.sum())} if not bool(outcome.attacked.all()) else {}
    row |= {"stages": [_row(one) for one in outcome.stages]} if outcome.stages else {}
    return row


def _share(held: int, n: int) -> dict[str, Any]:
    low, high = wilson(held, n)
    return {"accuracy": held / n, "low": low, "high": high, "samples": n, "broken": n - held}


def _per_sample(costs: dict[str, Any], n: int) -> dict[str, Any]:
    return {**costs, "passes_per_sample": costs["passes"] / n, "forwards_per_sample": costs["forwards"] / n}


def check_range(samples: Samples, ball: Ball) -> None:
    """Refuse a radius in another unit than the data's, and data outside the bounds, which no delta brings inside."""
    ball.check_scale(samples.x)
    for first in range(0, len(samples) if ball.bounds is not None else 0, 4096):
        ball.around(samples.floats(slice(first, first + 4096)))


def check_plans(model: nn.Module, samples: Samples, plans: Mapping[str, Plan]) -> None:
    """Refuse a model that one of the attacks is not for."""
    x = samples.floats(slice(0, 1)).to(device_of(model))
    for attack in (attack for one in plans.values() for attack in one.values()):
        attack.check(model, x)


def check_model(model: nn.Module, samples: Samples) -> None:
    """Refuse a model that does not take these samples or has fewer outputs than classes."""
    x = samples.floats(slice(0, 1)).to(device_of(model)).clone()
    try:
        with evaluation_mode(model), torch.no_grad():
            out = model(x)
    except InputError:
        raise
    except Exception as error:
        why = (str(error) or repr(error)).splitlines()[0]
        half = next((p.dtype for p in model.parameters() if p.dtype in trust.HALF), None)
        remedy = (
            "give it data of its size and type"
            if half is None
            else f"it is {half}, evaluate model.float(), on data of its size"
        )
        raise InputError(
            f"the model does not take samples of shape {samples.shape} and type {x.dtype} ({why}): {remedy}"
        ) from error
    if not x.is_inference() and x._version:  # which counts what was done in place
        raise InputError("the model changes its input: write x = x - 0.5 instead of x -= 0.5, and the like, in forward")
    shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
    if not isinstance(out, Tensor) or out.dim() != 2 or len(out) != 1:
        raise InputError(
            f"the model gives an output of shape {shape} for one sample of {samples.name}, which has "
            f"{len(samples.classes)} classes: it must be (n, classes)"
        )
    if not out.is_floating_point():
        raise InputError(f"the model gives {out.dtype}: it must give logits, which are floats")
    if out.shape[1] < len(samples.classes):
        row = int(samples.y.argmax())
        raise InputError(
            f"{samples.name} has {len(samples.classes)} classes (the label of row {row} is {int(samples.y[row])}), the "
            f"model {out.shape[1]} outputs: labels count from 0, look at both"
        )


def checked_device(name: str) -> str:
    """The device of that name, if it can be used here."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0]
        raise InputError(f"device {name!r} cannot be used here ({why}): take cpu") from error
    return name
