"""Warnings while training: each names a sign that it goes wrong, and a remedy."""

from sihg.robust.training.events import WarningRaised
from sihg.store.schema import MetricsRow, MonitorState

ONE_CLASS_SHARE = 0.97  # of predictions that are the most frequent of their batch, on average over an epoch
COLLAPSE = 0.2  # fall of the robust accuracy that is more than noise
SATURATED_SHARE = 0.98  # of perturbation entries on the boundary
LEAST_MOVE = 1e-3  # mean move of the memory in units of eps
MAX_FIRST_SHARE = 0.05  # of the first weights in their average, at the end of a run


def check_epoch(state: MonitorState, row: MetricsRow, most_predicted: float, norm: str = "linf") -> list[WarningRaised]:
    """Return the warnings that an epoch gives, each kind once per run, and update the state.

    Args:
        state: What the warnings depend on; changed in place.
        row: The metrics of the epoch.
        most_predicted: The share of samples that were predicted as the most frequent class of their batch.
        norm: The norm of the ball. Perturbations belong on the sphere of an l2 ball, not on the faces of a box.
    """
    found = _signs(state, row, most_predicted)
    if norm != "linf":
        found.pop("saturated", None)
    if row.robust is not None:
        state.best = max(state.best, row.robust)
    new = {kind: text for kind, text in found.items() if kind not in state.said}
    state.said += new
    return [WarningRaised(kind, text, row.epoch) for kind, text in new.items()]


def check_end(epochs: int, eps: float, ramp: float, ema: float, averaged_steps: int) -> list[WarningRaised]:
    """Return the warnings of a finished run: the radius never reached eps, or the average is too young."""
    signs = {}
    share = ema ** (averaged_steps - 1) if ema else 0.0
    if share >= MAX_FIRST_SHARE:
        signs["short-average"] = (
            f"{share:.0%} of the averaged weights, which are evaluated, are those of the first step: ema = {ema:g} "
            f"averages over {1 / (1 - ema):.0f} steps, and the run had {averaged_steps}: lower ema, or train longer"
        )
    if ramp >= epochs:
        signs["long-ramp"] = (
            f"the radius grows over ramp = {ramp:g} epochs and the run had {epochs}, so it never trained at "
            f"eps = {eps:g}: shorten the ramp, or train longer"
        )
    return [WarningRaised(kind, text, epochs) for kind, text in signs.items()]


def _signs(state: MonitorState, row: MetricsRow, most_predicted: float) -> dict[str, str]:
    signs = {}
    accuracy = row.accuracy or 0.0
    if most_predicted >= ONE_CLASS_SHARE and accuracy < 0.9 * most_predicted:  # else most samples have that label
        signs["constant"] = (
            f"{most_predicted:.1%} of a batch's predictions in epoch {row.epoch} were one class: start with a smaller "
            "radius (ramp 3), or use another learning rate"
        )
    if row.robust is not None and row.robust < state.best - COLLAPSE:
        signs["overfitting"] = (
            f"robust accuracy fell from {state.best:.1%} to {row.robust:.1%} in epoch {row.epoch}, while it is "
            f"{accuracy:.1%} under the training attack (catastrophic overfitting): use the best checkpoint, or train "
            "with more ascent steps"
        )
    if row.saturated is not None and row.saturated >= SATURATED_SHARE:
        signs["saturated"] = (
            f"{row.saturated:.1%} of the stored perturbations of epoch {row.epoch} lie on the boundary of the searched "
            "set, so the memory is no better than random corners: lower tau or step_size"
        )
    if row.moved is not None and row.epoch > 1 and row.moved < LEAST_MOVE:
        signs["still"] = (
            f"the stored perturbations moved by {row.moved:.2g} eps on average in epoch {row.epoch}: raise tau or "
            "step_size"
        )
    return signs
