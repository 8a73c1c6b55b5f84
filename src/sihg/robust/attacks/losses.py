"""What attacks read off logits: margins, the likeliest wrong classes, and losses to raise."""

import math

import torch
from torch import Tensor

DLR_CLASSES = 4  # that the difference-of-logits ratio needs


def misclassified(logits: Tensor, y: Tensor) -> Tensor:
    """Return, per row, whether the largest logit is not that of the label."""
    return logits.detach().argmax(1) != y


def margins(logits: Tensor, y: Tensor) -> Tensor:
    """Return, per row, the logit of the label minus the largest other one."""
    others = logits.scatter(1, y[:, None], -math.inf)
    return logits.gather(1, y[:, None]).squeeze(1) - others.amax(1)


def wrong_classes(logits: Tensor, y: Tensor) -> Tensor:
    """Return, per row, the classes other than the label, (n, classes - 1), the likeliest first."""
    label_first = logits.scatter(1, y[:, None], math.inf)
    return label_first.argsort(dim=1, descending=True, stable=True)[:, 1:]


def logit_difference(target: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    """Return, per row, the logit of the target minus that of the label."""
    return (logits.gather(1, target[:, None]) - logits.gather(1, y[:, None])).squeeze(1)


def targeted_dlr(target: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    """Return, per row, the targeted difference-of-logits ratio; with fewer than four classes its numerator alone."""
    difference = logit_difference(target, logits, y)
    if logits.shape[1] < DLR_CLASSES:
        return difference
    first, _, third, fourth = torch.topk(logits, DLR_CLASSES, dim=1).values.unbind(1)
    return difference / (first - (third + fourth) / 2 + 1e-12)
