"""The small CNN for MNIST and the like: three convolutions and a linear layer."""

import math
from collections import OrderedDict

from torch import Tensor, nn
from torch.nn.functional import linear, unfold


class FirstConv2d(nn.Conv2d):
    """A convolution of an image with few channels, as a product with its patches.

    An attack needs the gradient in the image, which CPU convolutions compute slowly for few channels: with one channel
    a pass through the whole network takes about 5/6 of the time this way on images of 28x28 pixels, and as long as
    before on 8x8 (benchmarks/first_conv.py).
    """

    def forward(self, x: Tensor) -> Tensor:
        """Convolve; the result has channels last in memory."""
        if x.device.type != "cpu":
            return super().forward(x)
        size = [(n - 1) // self.stride[0] + 1 for n in x.shape[-2:]]
        patches = unfold(x, 3, padding=1, stride=self.stride[0]).transpose(1, 2)
        return linear(patches, self.weight.flatten(1), self.bias).view(len(x), *size, -1).permute(0, 3, 1, 2)


def small_cnn(shape: tuple[int, int, int], classes: int, width: float = 1.0) -> nn.Module:
    """Convolutions of 16, 32 and 64 channels and stride 2 (the first 1 up to 16 pixels), then a linear layer."""
    depth, *sides = shape
    strides = (1, 2, 2) if min(sides) <= 16 else (2, 2, 2)
    channels = [depth, *(max(1, round(c * width)) for c in (16, 32, 64))]
    layers = (FirstConv2d if depth < 3 else nn.Conv2d, nn.Conv2d, nn.Conv2d)
    convs = [
        layer(a, b, 3, stride, padding=1)
        for layer, a, b, stride in zip(layers, channels, channels[1:], strides, strict=False)
    ]
    for stride in strides:
        sides = [math.ceil(side / stride) for side in sides]
    head = nn.Linear(channels[-1] * math.prod(sides), classes)
    stem = nn.Sequential(convs[0], nn.ReLU())
    body = nn.Sequential(convs[1], nn.ReLU(), convs[2], nn.ReLU(), nn.Flatten(), head)
    return kaiming_(nn.Sequential(OrderedDict(stem=stem, body=body)))


def kaiming_(model: nn.Module) -> nn.Module:
    """Kaiming-normal weights and zero biases; with torch's own start, training at eps 0.4 stays at one prediction."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, mode="fan_in", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return model
