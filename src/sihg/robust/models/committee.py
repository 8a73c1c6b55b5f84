"""Several networks as one, which learn apart and judge together."""

import torch
from torch import Tensor, nn


class Committee(nn.Module):
    """The mean of its members' logits; while training, each row of a batch is shown to one member only.

    So members that start apart stay apart, and an epoch costs what it costs one of them. A batch is cut into as many
    stretches as there are members, and the samples being shuffled, every member sees all of them in time. An ascent in
    training mode (`statistics = "batch"`) makes the perturbation of a row for the member that learns from it, one in
    evaluation mode (DAT, TRADES, `statistics = "running"`) for all of them together.
    """

    def __init__(self, *members: nn.Module) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        if self.training:
            parts = x.tensor_split(len(self.members))
            return torch.cat([member(part) for member, part in zip(self.members, parts, strict=True)])
        return torch.stack([member(x) for member in self.members]).mean(0)
