"""Networks that the paper's words allow for MNIST: three convolutions of 16, 32 and 64 channels and a linear layer.

The paper names neither kernels nor strides, initialisation, biases or the scale of the input. `Network` has one field
for each, and the search in `paper_mnist_search.py` tries their values.
"""

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sihg.robust.models.normalise import Normalise
from sihg.robust.models.small_cnn import FlattenPixels

CHANNELS = (16, 32, 64)
SCALES = {"half": ((0.5,), (0.5,)), "mnist": ((0.1307,), (0.3081,))}  # [-1, 1]; mean 0 and deviation 1
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky": nn.LeakyReLU,  # slope 0.01 below zero
    "leaky-0.1": lambda: nn.LeakyReLU(0.1),
    "elu": nn.ELU,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
}
INITIALISERS: dict[str, Callable[[Tensor], object]] = {
    "kaiming": lambda w: nn.init.kaiming_normal_(w, nonlinearity="relu"),
    "kaiming-out": lambda w: nn.init.kaiming_normal_(w, mode="fan_out", nonlinearity="relu"),
    "xavier": nn.init.xavier_normal_,
    "xavier-uniform": nn.init.xavier_uniform_,
    "orthogonal": nn.init.orthogonal_,
    "orthogonal-relu": lambda w: nn.init.orthogonal_(w, math.sqrt(2)),
    "normal-0.1": lambda w: nn.init.trunc_normal_(w, std=0.1, a=-0.2, b=0.2),  # Madry et al.'s MNIST network
}


@dataclass(frozen=True)
class Network:
    """What the paper leaves open about its four-layer network."""

    kernel: int = 3
    down: str = "stride"  # how the image shrinks: stride, pool (max-pooling) or mean (average pooling)
    init: str = "kaiming"  # one of INITIALISERS, or default: torch's own
    bias: str = "zero"  # zero, torch (its own random ones) or none
    scale: str = "none"  # of the input: none for [0, 1], or one of SCALES
    activation: str = "relu"
    norm: bool = False  # batch normalisation after each convolution
    edge: str = "pad"  # pad, or cut: no zeros around the image

    def build(self, seed: int, shape: tuple[int, int, int] = (1, 28, 28), classes: int = 10) -> nn.Module:
        """Return the network, whose weights depend on the seed alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = self._layers(shape, classes)
            self._initialise(net)
        return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def _layers(self, shape: tuple[int, int, int], classes: int) -> nn.Module:
        blocks: list[nn.Module] = [Normalise(*SCALES[self.scale])] if self.scale != "none" else []
        stride, padding = 2 if self.down == "stride" else 1, (self.kernel - 1) // 2 if self.edge == "pad" else 0
        split = 0
        for inputs, outputs in zip((shape[0], *CHANNELS), CHANNELS, strict=False):
            blocks.append(nn.Conv2d(inputs, outputs, self.kernel, stride, padding, bias=self.bias != "none"))
            blocks += [nn.BatchNorm2d(outputs)] if self.norm else []
            blocks.append(ACTIVATIONS[self.activation]())
            split = split or len(blocks)
            if self.down != "stride":
                blocks.append(nn.MaxPool2d(2) if self.down == "pool" else nn.AvgPool2d(2))
        with torch.no_grad():
            features = math.prod(nn.Sequential(*blocks).eval()(torch.zeros(1, *shape)).shape[1:])
        blocks += [FlattenPixels(), nn.Linear(features, classes, bias=self.bias != "none")]
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        parts["stem"], parts["body"] = nn.Sequential(*blocks[:split]), nn.Sequential(*blocks[split:])
        return nn.Sequential(parts).train()

    def _initialise(self, net: nn.Module) -> None:
        for layer in net.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                if self.init != "default":
                    INITIALISERS[self.init](layer.weight)
                if layer.bias is not None and self.bias == "zero":
                    nn.init.zeros_(layer.bias)
