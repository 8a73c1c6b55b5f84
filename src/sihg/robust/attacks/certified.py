"""The opposite of an attack: interval bounds prove which samples no attack can break, and need not be attacked."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from sihg.errors import InputError
from sihg.robust.attacks.base import Attack
from sihg.robust.attacks.output_checks import check_logits
from sihg.robust.attacks.search import Search
from sihg.robust.certify import worst_case_margins
from sihg.robust.gradients import evaluation_mode

ROUNDING = 1e-4  # of the largest logit: what float32 may lose in the bounds of a deep network


@dataclass(frozen=True, kw_only=True, eq=False)
class Certified(Attack):
    """Count a sample as broken unless interval bounds prove, up to rounding, that no point of the ball breaks it.

    So its accuracy is a lower bound of the robust accuracy, while that of an attack is an upper bound. The margin is
    the smallest that the bounds allow, the prediction the class that comes closest.

    Args:
        eps: The radius of the ball.
        norm: linf.
        bounds: The lowest and the highest value of x + delta, or None.
    Raises:
        InputError: If the norm is not linf ("interval-norm").
    Example:
        >>> Certified(eps=0.1).run(nn.Linear(2, 3), torch.zeros(1, 2), torch.tensor([0])).forwards
        2
    """

    proves: ClassVar[bool] = True
    input_gradients_only: ClassVar[bool] = False
    uses_gradients: ClassVar[bool | None] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm != "linf":
            raise InputError("interval-norm", norm=self.norm)

    def check(self, model: nn.Module, x: Tensor) -> None:
        """Raise InputError unless every layer has interval bounds."""
        with evaluation_mode(model), torch.no_grad():
            worst_case_margins(model, x, x, torch.zeros(len(x), dtype=torch.long, device=x.device))

    def remark(self, classes: int) -> str:  # noqa: ARG002
        """Return how to read the accuracy."""
        return "proven by interval bounds, the robust accuracy is at least this"

    def max_passes(self, classes: int) -> float:  # noqa: ARG002
        """Return two forward passes."""
        return 2 / 3

    def search(self, search: Search, seed: int) -> None:  # noqa: ARG002
        """Record the smallest margin that the bounds allow, and the class that comes closest."""
        most, nearest = _compute_leads(search).max(1)
        search.broken, search.margin = most >= 0, -most
        search.prediction = torch.where(search.broken, nearest, search.rows.y)


@dataclass(frozen=True, kw_only=True, eq=False)
class Proof(Certified):
    """Find samples that need no attack, as interval bounds prove that no point of the ball breaks them.

    In a cascade, the attacks after it leave these samples out. It breaks none. A proof must exceed what rounding may
    do to the bounds. A model with a layer that has no interval bounds gets no proof.
    """

    def check(self, model: nn.Module, x: Tensor) -> None:
        """Take any model."""

    def max_passes(self, classes: int) -> float:  # noqa: ARG002
        """Return three forward passes: the logits, and the bounds."""
        return 1.0

    def remark(self, classes: int) -> str:  # noqa: ARG002
        """Say what becomes of the samples."""
        return "samples that interval bounds prove robust are not attacked; this row is not a certified accuracy"

    def search(self, search: Search, seed: int) -> None:  # noqa: ARG002
        """Record a margin above 0 where the bounds prove it, else one below 0."""
        search.margin.fill_(-torch.inf)
        rows = search.rows
        if has_interval_bounds(search.model, rows.x[:1]):
            largest = search.compute_logits(rows, rows.x).abs().amax(1)
            search.margin = -_compute_leads(search).amax(1) - ROUNDING * largest


def has_interval_bounds(model: nn.Module, x: Tensor) -> bool:
    """Return whether every layer of the model has interval bounds at these samples, and takes them at all."""
    try:
        Certified(eps=0.0, bounds=None).check(model, x)
    except (InputError, RuntimeError, TypeError, ValueError, IndexError):  # those of a model: `check_model` says why
        return False
    return True


def _compute_leads(search: Search) -> Tensor:
    """Return by how much each wrong class can exceed the label in the box, (n, classes); -inf for the label itself.

    This takes two passes: the middle and the width of every layer's interval.
    """
    rows = search.rows
    box = rows.feasible
    with torch.no_grad():
        leads = check_logits(worst_case_margins(search.model, rows.x + box.low, rows.x + box.high, rows.y), rows)
    search.count(forwards=2 * len(rows))
    search.classes = leads.shape[1]
    return leads.scatter(1, rows.y[:, None], -torch.inf)
