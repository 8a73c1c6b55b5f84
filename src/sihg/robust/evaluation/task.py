"""What to evaluate, and how: the plan of one evaluation, by which its record and partial results are known."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from sihg.core.draw import seeded
from sihg.core.processes import ALONE, Processes
from sihg.errors import InputError
from sihg.parse import file_name
from sihg.robust.attacks.certified import Proof, has_interval_bounds
from sihg.robust.attacks.chunk_size import limit_rows
from sihg.robust.attacks.input_checks import check_module, load_rows
from sihg.robust.attacks.random_models import Draws
from sihg.robust.attacks.registry import Attacks, LoadSource, Plan, describe_plans, plan_attacks
from sihg.robust.attacks.replaced_gradients import (
    Bpda,
    StandIn,
    describe_stand_ins,
    find_stand_ins,
    replace_gradients,
)
from sihg.robust.attacks.targeted import aim_plans
from sihg.robust.attacks.transfer import Transfer
from sihg.robust.data.contents import sum_of
from sihg.robust.data.samples import Samples, stratified_subset
from sihg.robust.evaluation.findings import Evaluation, Findings, RadiusCurve
from sihg.robust.evaluation.model_identity import describe_model
from sihg.robust.evaluation.partial import PartialResults
from sihg.robust.evaluation.search_format import choose_precision
from sihg.robust.evaluation.targets import check_targeted, describe_targets, select_targets
from sihg.robust.gradients import device_of
from sihg.robust.models.outputs import unwrap_outputs
from sihg.robust.models.training_tag import read_tag
from sihg.robust.precision import FormatChoice
from sihg.robust.threat import Ball
from sihg.store.checkpoint import sha256_of_tensors
from sihg.store.run_folder import FolderHandle, describe_environment
from sihg.store.schema import EvaluationHeader, Json


@dataclass(frozen=True, eq=False)
class Task:
    """What to evaluate: a model on samples under attacks, and how the record is named."""

    model: nn.Module
    samples: Samples
    index: Tensor  # of each sample in its split
    ball: Ball  # of a curve: the largest
    plans: Mapping[str, Plan]
    header: EvaluationHeader
    name: str  # of the record
    trained_with: str | None = None  # the method, if known
    radii: tuple[float, ...] = ()  # of a curve
    remark: str = ""  # why `auto` chose the number format
    bpda: Mapping[str, StandIn] = field(default_factory=dict)  # by the name of the module
    batch_size: int | None = None  # the most samples to attack at once
    votes: int | None = None  # None: several if the model is random
    kind: type[Findings] = Evaluation

    def open_partial(
        self,
        folder: Path | None,
        *,
        points: bool = False,
        handle: FolderHandle | None = None,
        processes: Processes = ALONE,
    ) -> PartialResults | None:
        """Open the partial results in a folder, or in memory if only points are wanted; only process 0 writes them."""
        nearest = self.kind.keeps_nearest
        if folder is None:
            return PartialResults(None, self.name, {}, points=True, nearest=nearest) if points else None
        partial = PartialResults(folder, self.name, self.identity(), points=points, nearest=nearest, handle=handle)
        if len(set(processes.gather(partial.verdicts))) > 1:  # also waits: no process may have written yet
            raise InputError("partial-differs", folder=folder)
        if not processes.is_first:
            partial.stay_in_memory()
        return partial

    def identity(self) -> dict[str, Json]:
        """Return what tells this evaluation from others; the folder of the weights may move."""
        attacks = [attack for plan in self.plans.values() for attack in plan.values()]
        sources = [attack.source for attack in attacks if isinstance(attack, Transfer)]
        bounds = {str(i): torch.as_tensor(bound) for i, bound in enumerate(self.ball.bounds or ())}
        return {
            **msgspec.to_builtins(msgspec.structs.replace(self.header, weights="")),
            "eps": self.ball.eps,
            "radii": list(self.radii),
            "kind": self.kind.__name__,
            "bounds": sha256_of_tensors(bounds),
            "attacks": describe_plans(self.plans),
            "bpda": describe_stand_ins(self.bpda),
            "votes": self.votes,
            "sources": [{"sha256": sha256_of_tensors(s.state_dict()), **describe_model(s)} for s in sources],
            **describe_model(self.model),
            "version": describe_environment().sihg,
        }


def make_task(
    model: nn.Module,
    whole: Samples,
    attacks: Attacks,
    ball: Ball,
    radii: Sequence[float],
    count: int | None,
    seed: int,
    trained_with: str | None,
    *,
    last_iterate: bool,
    targets: Tensor | int | None = None,
    precision: str = "float32",
    bpda: Bpda | None = None,
    eot: int = 1,
    votes: int | None = None,
    source: "LoadSource | None" = None,
    weights: Mapping[str, Tensor] | None = None,
    workers: int = 0,
    batch_size: int | None = None,
    processes: Processes = ALONE,
) -> Task:
    """Plan the attacks, draw so many samples (None: all), and describe the evaluation for its record."""
    plans = plan_attacks(attacks, ball, radii, last_iterate=last_iterate, source=source)
    check_module(model)
    draws, found = Draws(eot, 1 if votes is None else votes), find_stand_ins(model, bpda)
    by_module = {module: found[name] for name, module in model.named_modules() if name in found}
    with seeded(seed, "preparation", device=device_of(model)), limit_rows(batch_size):
        bare, (model, note) = model, unwrap_outputs(model, whole.shape, len(whole.classes))
        stand_ins = find_stand_ins(model, by_module)  # by their names in the model that is attacked
        with replace_gradients(model, stand_ins):
            plans = _drop_vain_proofs(plans, model, whole)
            own = choose_precision(model, whole, plans, precision)
    choice = FormatChoice(*processes.gather([own.name, own.reason])[0])  # `auto` is measured, and processes may differ
    fallback = f"searched in float32: {choice.reason}" if (precision, choice.name) == ("bfloat16", "float32") else ""
    eligible, chosen = select_targets(targets, whole)
    index = stratified_subset(replace(whole, x=eligible, y=whole.y[eligible], lazy=None), count, seed).x
    if chosen is not None:
        chosen = check_targeted(chosen[index], precision, votes)
        plans, votes = aim_plans(plans, chosen), 1
    target = "" if chosen is None else describe_targets(chosen)
    rule = "last iterate" if last_iterate else "any iterate"
    low, high = (-torch.inf, torch.inf) if ball.bounds is None else ball.bounds
    bounds = float(torch.as_tensor(low).min()), float(torch.as_tensor(high).max())  # of all features together
    header = EvaluationHeader(
        weights="",
        sha256=sha256_of_tensors(weights or bare.state_dict()),
        checkpoint=type(bare).__name__,
        data=whole.name,
        split="",
        samples=len(index),
        of=len(eligible),
        seed=seed,
        norm=ball.norm,
        bounds=bounds if np.isfinite(bounds).all() else None,
        device=str(device_of(model)),
        rule=f"{rule}, targeted at {target}" if target else rule,
        target=target,
        precision=choice.name,
        bpda={name: stand_in.name for name, stand_in in found.items()},
        notes=tuple(filter(None, (note, fallback))),
        eot=draws.eot,
        votes=draws.votes,
    )
    parts = [header.checkpoint, whole.name, "+".join(plans)]
    parts += [f"curve-{radii[0]:g}:{radii[-1]:g}:{len(radii)}" if radii else f"eps-{ball.eps:.6g}"]
    parts += [ball.norm] if ball.norm != "linf" else []
    parts += [f"bounds-{header.bounds}"] if header.bounds != (0.0, 1.0) else []
    parts += [f"n{count}"] if count is not None else []
    parts += [f"seed{seed}"] if seed else []
    parts += ["last-iterate"] if last_iterate else []
    parts += [f"target-{target}"] if target else []
    parts += [precision] if precision != "float32" else []
    parts += [f"bpda-{name}-{stand_in}" for name, stand_in in header.bpda.items()]
    parts += [f"eot{eot}"] if eot > 1 else []
    parts += [f"votes{votes}"] if votes is not None else []
    trained_with = read_tag(model) if trained_with is None else trained_with
    samples = whole if len(index) == len(whole) else whole.take(index)
    samples = samples.when_read(bounds=ball.bounds, workers=workers).settled()
    header = msgspec.structs.replace(header, contents=sum_of([samples]))
    record, seen = file_name(*parts), (trained_with, tuple(radii), choice.reason, stand_ins, batch_size, votes)
    return Task(model, samples, index, ball, plans, header, record, *seen, RadiusCurve if radii else Evaluation)


def _drop_vain_proofs(plans: Mapping[str, Plan], model: nn.Module, samples: Samples) -> dict[str, Plan]:
    """Return the plans without proofs that only spare attacks, if the model has no interval bounds."""
    x, _ = load_rows(model, samples, slice(0, 1))
    proofs = any(isinstance(attack, Proof) for plan in plans.values() for attack in plan.values())
    if not proofs or has_interval_bounds(model, x):
        return dict(plans)
    return {
        name: {stage: attack for stage, attack in plan.items() if not isinstance(attack, Proof)}
        for name, plan in plans.items()
    }
