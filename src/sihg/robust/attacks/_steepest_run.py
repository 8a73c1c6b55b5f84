"""One run of ascent steps on the cross-entropy, on the rows that are not broken: what PGD and MI-FGSM share."""

from collections.abc import Callable

from torch import Tensor

from sihg.robust.attacks.attacked_rows import Rows
from sihg.robust.attacks.search import EXACT_STEPS, Search
from sihg.robust.gradients import ascent_loss


def ascend_steps(
    search: Search,
    rows: Rows,
    delta: Tensor,
    eta: float | Tensor,
    *,
    steps: int,
    last_iterate: bool,
    direction: Callable[[Tensor, Tensor], Tensor] | None = None,
    memory: Tensor | None = None,
) -> None:
    """Climb from `delta`; rows that break leave, unless only the last iterate counts.

    Args:
        search: Keeps the best points.
        rows: The rows.
        delta: The start of each.
        eta: The length of a step, a number or one per row.
        steps: The steps of the run.
        last_iterate: Whether only the end counts.
        direction: Makes the direction of a step from the gradient and `memory`, which it may change (default: the
            gradient itself).
        memory: What a row takes along from step to step.
    """
    for step in range(steps):
        point, exact = rows.x + delta, step >= steps - EXACT_STEPS
        logits, _, g = search.compute_gradient(rows, point, ascent_loss(rows.target), exact=exact)
        held = None if last_iterate else search.record_broken(rows, point, logits)
        if held is not None:
            rows, delta, g = rows.take(held), delta.index_select(0, held), g.index_select(0, held)
            eta = eta.index_select(0, held) if isinstance(eta, Tensor) else eta
            memory = None if memory is None else memory.index_select(0, held)
            if not len(rows):
                return
        rows.feasible.climb_(delta, g if direction is None or memory is None else direction(g, memory), eta)
    point = rows.x + delta
    search.record(rows, point, search.compute_logits(rows, point))
