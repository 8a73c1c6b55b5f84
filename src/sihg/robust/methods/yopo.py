"""YOPO-M-N (Zhang et al., 2019)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sihg.robust.data.batches import Batch
from sihg.robust.gradients import Slope, ascend, check_finite, frozen_statistics, inner_mode
from sihg.robust.methods.base import AdversarialMethod, Log, Optimizer, log
from sihg.robust.methods.settings import YOPOSettings
from sihg.robust.models import split_stem
from sihg.robust.precision import run_in_format


@dataclass(kw_only=True)
class YOPO(AdversarialMethod, YOPOSettings):
    """Split the network as body(stem(x)); repeat M times: one full pass, then N ascent steps through the stem.

    The full pass gives the body's gradient and the adjoint p at the stem's output. The ascent steps maximise
    <stem(x + delta), p>, which never runs the body. The stem's gradient is that of <stem, p> after the N steps
    (`hamiltonian`, the intent of the authors' MNIST code), or that plus the one of the full pass (`both`, as in their
    CIFAR code). Gradients are averaged over the M passes; the authors sum them and divide the learning rate.

    Args:
        eps, norm, bounds, ramp: The ball, and the epochs in which its radius grows.
        outer, inner: The full passes M, and the ascent steps N after each.
        step_size: The length of an ascent step (default eps / 4).
        stem_gradient: "hamiltonian" or "both".
    Example:
        >>> YOPO(eps=0.1, outer=5).inner
        5
    """

    def check(self, model: nn.Module, sample: Tensor, *, dtype: str = "int8") -> None:  # noqa: ARG002
        """Raise InputError for a model without stem and body."""
        split_stem(model)

    def step(self, model: nn.Module, batch: Batch, optimizer: Optimizer) -> Log:
        """Train on one batch."""
        stem, body = split_stem(model)
        feasible, eps = self.ball(batch)
        delta = self.start(batch, feasible, eps)
        share = 1 / (batch.size * self.outer)
        stem_learns = any(weight.requires_grad for weight in stem.parameters())

        def full_pass(model: nn.Module) -> tuple[Tensor, Tensor]:
            logits = model(batch.x + delta)
            return self.training_loss(logits, batch.y), logits

        optimizer.zero_grad()
        for _ in range(self.outer):
            with self.trained_weights(model, batch, full_pass):
                features = run_in_format(stem, batch.x + delta)
                out = features.detach().requires_grad_()
                logits = run_in_format(body, out)
                loss = check_finite(self.training_loss(logits, batch.y), batch.x)
                (loss * share).backward()
                assert out.grad is not None
                p = out.grad / share  # the adjoint of the summed loss
                if stem_learns and self.stem_gradient == "both":
                    features.backward(p * share)
                with inner_mode(stem, "batch"):
                    ascend(_through(stem, batch.x, p), delta, feasible, self.step_size or eps / 4, self.inner)
                if stem_learns:
                    with frozen_statistics(stem):
                        run_in_format(stem, batch.x + delta).backward(p * share)
        passes = self.outer * self.passes_per_gradient(batch) * len(delta)
        done = log(loss.detach(), logits.detach(), batch.y, passes)
        optimizer.step()
        return done


def _through(stem: nn.Module, x: Tensor, p: Tensor) -> Slope:
    """Return the gradient of <stem(x + delta), p> in delta, as a function of delta."""

    def slope(delta: Tensor) -> Tensor:
        point = (x + delta).requires_grad_()
        return torch.autograd.grad(run_in_format(stem, point), point, p)[0]

    return slope
