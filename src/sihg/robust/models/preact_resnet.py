"""Residual networks with pre-activation (He et al., "Identity Mappings in Deep Residual Networks", ECCV 2016)."""

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.functional import relu

from sihg.robust.models.small_cnn import kaiming_


def preact_resnet8(shape: tuple[int, int, int], classes: int, width: float = 1.0) -> nn.Module:
    """Build one block at each of 16, 32 and 64 channels."""
    return _resnet(shape[0], classes, blocks=(1, 1, 1), channels=(16, 32, 64), width=width)


def preact_resnet18(shape: tuple[int, int, int], classes: int, width: float = 1.0) -> nn.Module:
    """Build two blocks at each of 64, 128, 256 and 512 channels."""
    return _resnet(shape[0], classes, blocks=(2, 2, 2, 2), channels=(64, 128, 256, 512), width=width)


class PreActBlock(nn.Module):
    """Add conv(relu(bn(conv(relu(bn(x)))))) to x; where the shape changes, to a convolution of relu(bn(x))."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        changes = stride != 1 or inputs != outputs
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """Add the block's change to its input."""
        active = relu(self.bn1(x))
        kept = x if self.shortcut is None else self.shortcut(active)
        change: Tensor = self.conv2(relu(self.bn2(self.conv1(active))))
        return change + kept


def _resnet(depth: int, classes: int, blocks: Sequence[int], channels: Sequence[int], width: float) -> nn.Module:
    wide = [max(1, round(c * width)) for c in channels]
    stem = nn.Conv2d(depth, wide[0], 3, padding=1, bias=False)
    layers: list[nn.Module] = []
    inputs = wide[0]
    for stage, (count, outputs) in enumerate(zip(blocks, wide, strict=True)):
        for i in range(count):
            layers.append(PreActBlock(inputs, outputs, stride=2 if stage > 0 and i == 0 else 1))
            inputs = outputs
    head = [nn.BatchNorm2d(inputs), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)]
    return kaiming_(nn.Sequential(OrderedDict(stem=stem, body=nn.Sequential(*layers, *head))))
