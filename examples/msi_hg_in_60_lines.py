"""MSI-HG (Kim & Seo 2022, Algorithm 4) in one file, from data to robust accuracy: read it from top to bottom.

python examples/msi_hg_in_60_lines.py
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sihg.robust.data.digits import load  # only the data comes from sihg

EPS, TAU, THETA, STEPS = 0.2, 0.2, 1.0, 5  # the radius of the ball; tau, theta and T of the paper
EPOCHS, BATCH, LR, MOMENTUM = 20, 50, 0.05, 0.9


def ascend(model: nn.Module, x: Tensor, y: Tensor, delta: Tensor, low: Tensor, high: Tensor, steps: int) -> Tensor:
    """Take signed gradient steps on the loss, each clamped to low <= delta <= high."""
    for _ in range(steps):
        delta = delta.detach().requires_grad_()
        (slope,) = torch.autograd.grad(cross_entropy(model(x + delta), y, reduction="sum"), delta)
        delta = (delta + 2.5 * EPS / steps * slope.sign()).clamp(low, high)
    return delta.detach()


class MSIHG:
    """The state of Algorithm 4: a perturbation per sample, the previous gradient, and momentum."""

    def __init__(self, model: nn.Module, samples: Tensor) -> None:
        self.model, self.parameters = model, list(model.parameters())
        self.memory = torch.zeros_like(samples)
        self.previous: list[Tensor] = []
        self.velocity = [torch.zeros_like(p) for p in self.parameters]

    def step(self, x: Tensor, y: Tensor, index: Tensor, noise: Tensor) -> None:
        """Train on one batch; `noise` is uniform in [-1, 1]."""
        old = self.memory[index]  # line 3
        low, high = (-x).clamp(min=-EPS), (1 - x).clamp(max=EPS)  # the ball, and x + delta in [0, 1]
        low, high = torch.maximum(low, old - TAU), torch.minimum(high, old + TAU)  # S_i: near the stored perturbation
        delta = ascend(self.model, x, y, (old + TAU * noise).clamp(low, high), low, high, STEPS)  # line 5
        self.memory[index] = delta  # line 6
        gradients = torch.autograd.grad(cross_entropy(self.model(x + delta), y), self.parameters)
        with torch.no_grad():  # line 7: the hybrid gradient, then momentum
            for p, v, g, q in zip(self.parameters, self.velocity, gradients, self.previous or gradients, strict=True):
                p.sub_(LR * v.mul_(MOMENTUM).add_((1 + THETA) * g - THETA * q))
        self.previous = list(gradients)


def accuracy(model: nn.Module, x: Tensor, y: Tensor, steps: int) -> float:
    """Return the accuracy under PGD with so many steps; 0 for the natural accuracy."""
    low, high = (-x).clamp(min=-EPS), (1 - x).clamp(max=EPS)
    start = (EPS * (2 * torch.rand(x.shape) - 1)).clamp(low, high) if steps else torch.zeros_like(x)
    delta = ascend(model, x, y, start, low, high, steps)
    return float((model(x + delta).argmax(1) == y).double().mean())


def main(epochs: int = EPOCHS) -> tuple[float, float]:
    torch.manual_seed(0)
    (x, y), (test_x, test_y) = ((data.floats(), data.y) for data in load())
    convolutions = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()
    model = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))
    method = MSIHG(model, x)
    for epoch in range(epochs):
        for index in torch.randperm(len(x)).split(BATCH):
            method.step(x[index], y[index], index, 2 * torch.rand(x[index].shape) - 1)
        natural, robust = (accuracy(model, test_x, test_y, steps) for steps in (0, 20))
        print(f"epoch {epoch + 1}: natural accuracy {natural:.3f}, robust accuracy {robust:.3f} (PGD-20, eps {EPS})")
    return natural, robust


if __name__ == "__main__":
    main()
