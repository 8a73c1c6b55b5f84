"""Linear models, whose nearest misclassified points are known in closed form."""

import torch
from torch import Tensor, nn

DUAL = {"linf": 1, "l2": 2, "l1": torch.inf}  # the order of the norm of w that a distance is divided by


def linear_model(
    classes: int = 5, features: int = 6, n: int = 60, *, seed: int = 0
) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a linear model in float64, samples around 0, and the labels that it predicts."""
    draw = torch.Generator().manual_seed(seed)
    model = nn.Linear(features, classes, dtype=torch.float64).requires_grad_(requires_grad=False)
    model.weight.copy_(torch.randn(classes, features, generator=draw, dtype=torch.float64))
    model.bias.copy_(torch.randn(classes, generator=draw, dtype=torch.float64))
    x = torch.randn(n, features, generator=draw, dtype=torch.float64)
    return model.eval(), x, model(x).argmax(1)


def exact_distances(model: nn.Module, x: Tensor, y: Tensor, norm: str) -> Tensor:
    """Return min_j (z_y - z_j) / |w_y - w_j|, in the dual norm: the distance to the nearest other class."""
    assert isinstance(model, nn.Linear)
    z, w = model(x), model.weight
    every = []
    for logits, label in zip(z, y.tolist(), strict=True):
        others = [j for j in range(len(w)) if j != label]
        slopes = torch.linalg.vector_norm(w[label] - w[others], ord=DUAL[norm], dim=1)
        every.append(((logits[label] - logits[others]) / slopes).min())
    return torch.stack(every)
