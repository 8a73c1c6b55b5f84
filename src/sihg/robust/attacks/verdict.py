"""What an attack found for a chunk of samples, and how processes tell each other."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from safetensors.torch import load, save
from torch import Tensor

from sihg.core.processes import Processes

PointsTo = Literal["all", "first", "none"]  # which processes get the points that others have found


@dataclass(frozen=True, eq=False)
class Verdict:
    """What an attack found, per row, and what it cost.

    Args:
        x_adv: The first misclassified point found, else the point of smallest margin. Empty if another process has it.
        broken: Whether x_adv is misclassified.
        prediction: The class of x_adv.
        margin: At x_adv, the logit of the label minus the largest other one.
        distance: The norm of x_adv - x.
        passes: Forward-backward passes, summed over rows.
        forwards: Forward passes without a backward pass, summed over rows.
        classes: Outputs of the model.
        wrong: How many of the draws that classified x_adv are wrong; with one draw, whether it is.
    Example:
        >>> from sihg.robust.attacks import Natural
        >>> Natural().run(torch.nn.Identity(), torch.tensor([[0.0, 1.0]]), torch.tensor([0])).broken
        tensor([True])
    """

    x_adv: Tensor
    broken: Tensor
    prediction: Tensor
    margin: Tensor
    distance: Tensor
    passes: int
    forwards: int
    classes: int
    wrong: Tensor


def share_verdicts(own: Verdict | None, processes: Processes, points_to: PointsTo) -> list[Verdict | None]:
    """Return the verdicts of all processes, in their order; None for a process that attacked nothing.

    Points are large, so they go only to who keeps them; elsewhere x_adv of another process's verdict is empty.
    """
    data = point = b""
    if own is not None:
        counts = torch.tensor([own.passes, own.forwards, own.classes])
        tensors = {name: getattr(own, name) for name in ("broken", "prediction", "margin", "distance", "wrong")}
        data = _to_bytes({**tensors, "counts": counts})
        point = _to_bytes({"x_adv": own.x_adv})
    shared: list[Verdict | None] = []
    x_adv = [b""] * processes.size
    if points_to != "none":
        x_adv = (processes.gather_bytes if points_to == "all" else processes.collect_bytes)(point)
    for part, its_point in zip(processes.gather_bytes(data), x_adv, strict=True):
        if not part:
            shared.append(None)
            continue
        found = load(part)
        passes, forwards, classes = found.pop("counts").tolist()
        found["x_adv"] = load(its_point)["x_adv"] if its_point else torch.empty(0)
        shared.append(Verdict(**found, passes=passes, forwards=forwards, classes=classes))
    return shared


def _to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
