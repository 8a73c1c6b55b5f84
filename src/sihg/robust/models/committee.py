"""Several networks as one: trained apart, evaluated together."""

import torch
from torch import Tensor, nn


class Committee(nn.Module):
    """Return the mean of the members' logits; in training mode, each row of a batch is seen by one member only.

    So members that start apart stay apart, and an epoch costs as much as one member alone. A batch is cut into one
    part per member; since samples are shuffled, every member sees all of them in time. An ascent in training mode
    (`statistics = "batch"`) attacks the member that learns from the row. One in evaluation mode (DAT, TRADES, MART,
    `statistics = "running"`) attacks the mean.

    Args:
        *members: Networks with the same inputs and outputs.
    Example:
        >>> pair = Committee(nn.Linear(2, 3), nn.Linear(2, 3)).eval()
        >>> pair(torch.zeros(4, 2)).shape
        torch.Size([4, 3])
    """

    def __init__(self, *members: nn.Module) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits."""
        if self.training:
            parts = x.tensor_split(len(self.members))
            return torch.cat([member(part) for member, part in zip(self.members, parts, strict=True)])
        return torch.stack([member(x) for member in self.members]).mean(0)
