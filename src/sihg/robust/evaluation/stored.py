"""What an evaluation leaves on disk: how its record is named, its rows, and what each attack found per sample."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sihg.robust.attacks.registry import radius_name
from sihg.robust.attacks.runner import Outcome
from sihg.robust.data.samples import Samples
from sihg.store.schema import AttackRow, CurveRow

Z95 = 1.959963984540054  # the 97.5 % point of the normal distribution
MAX_NAME_LENGTH = 150  # letters of a record's name
PER_SAMPLE = ("attacked", "broken", "prediction", "margin")


def record_name(parts: Sequence[str], *, hashed: bool = False) -> str:
    """Join what was evaluated, and how, to the name of a record's files.

    Args:
        parts: What tells this record from others.
        hashed: Whether to add a hash of the parts, which a very long name has in any case.

    >>> record_name(["last", "test", "natural+pgd-20", "eps-8/255"])
    'last_test_natural+pgd-20_eps-8-255'
    """
    name = "_".join("".join(c if c.isalnum() or c in ".+-" else "-" for c in part) for part in parts)
    if hashed or len(name) > MAX_NAME_LENGTH:
        name = f"{name[:MAX_NAME_LENGTH]}_{hashlib.sha256(repr(list(parts)).encode()).hexdigest()[:8]}"
    return name


def sha256_of_tensors(tensors: Mapping[str, object]) -> str:
    """Return the SHA-256 of named tensors, in the order of their names; a state dict may hold other things too."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name]
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode() + _bytes_of(value))
    return digest.hexdigest()


def sha256_of_samples(samples: Samples) -> str:
    """Return the SHA-256 of samples and labels."""
    return hashlib.sha256(_bytes_of(samples.x) + _bytes_of(samples.y)).hexdigest()


def _bytes_of(value: Tensor) -> bytes:
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def wilson(hits: int, n: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval of the share hits / n."""
    share, z2 = hits / n, Z95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def attack_rows(outcomes: Sequence[Outcome], broken: Tensor) -> tuple[AttackRow, ...]:
    """Return a row per attack, one for all attacks together if there are several, then those of proofs.

    Args:
        outcomes: What the attacks found.
        broken: Which samples some attack broke: natural errors count too, which an attack may not look at.
    """
    attacks = [outcome for outcome in outcomes if not outcome.proof]
    rows = [_attack_row(outcome) for outcome in attacks]
    if len(attacks) > 1:
        together = replace(attacks[0], attack="all", attacked=torch.ones_like(broken), broken=broken)
        together.passes, together.forwards = sum(row.passes for row in attacks), sum(row.forwards for row in attacks)
        together.seconds, together.remark, together.stages = sum(row.seconds for row in attacks), "", ()
        rows.append(_attack_row(together))
    return (*rows, *(_attack_row(outcome) for outcome in outcomes if outcome.proof))


def _attack_row(outcome: Outcome) -> AttackRow:
    n, held = len(outcome.broken), int((~outcome.broken).sum())
    low, high = wilson(held, n)
    return AttackRow(
        attack=outcome.attack,
        accuracy=held / n,
        low=low,
        high=high,
        samples=n,
        broken=n - held,
        passes=outcome.passes,
        forwards=outcome.forwards,
        seconds=outcome.seconds,
        passes_per_sample=outcome.passes / n,
        forwards_per_sample=outcome.forwards / n,
        proof=outcome.proof,
        remark=outcome.remark,
        attacked=None if bool(outcome.attacked.all()) else int(outcome.attacked.sum()),
        stages=tuple(_attack_row(stage) for stage in outcome.stages),
    )


def curve_rows(outcomes: Sequence[Outcome], radii: Sequence[float]) -> tuple[CurveRow, ...]:
    """Return per attack the accuracy at each radius, after the last attack with that radius."""
    rows = []
    for outcome in outcomes:
        last = {stage.attack.partition(" ")[0]: stage for stage in outcome.stages or (outcome,)}
        stages, n = [last[radius_name(eps)] for eps in radii], len(outcome.broken)
        intervals = [wilson(n - int(stage.broken.sum()), n) for stage in stages]
        rows.append(
            CurveRow(
                attack=outcome.attack,
                accuracy=tuple(stage.accuracy for stage in stages),
                low=tuple(low for low, _ in intervals),
                high=tuple(high for _, high in intervals),
                passes=outcome.passes,
                forwards=outcome.forwards,
                seconds=outcome.seconds,
                proof=outcome.proof,
                remark=outcome.remark.rpartition(": ")[2] if outcome.proof else "",
            )
        )
    return tuple(rows)


def arrays_per_sample(outcomes: Sequence[Outcome], index: Tensor, labels: Tensor) -> dict[str, NDArray[np.generic]]:
    """Return what NAME.npz holds: each sample's index in its split, its label, and per attack how it fared."""
    stages = [
        (outcome.attack if stage is outcome else f"{outcome.attack}: {stage.attack}", stage)
        for outcome in outcomes
        for stage in (*outcome.stages, outcome)
    ]
    arrays: dict[str, NDArray[np.generic]] = {"index": index.numpy(), "label": labels.numpy()}
    arrays["attack"] = np.array([name for name, _ in stages])
    for field in PER_SAMPLE:
        arrays[field] = torch.stack([getattr(stage, field) for _, stage in stages]).numpy()
    return arrays
