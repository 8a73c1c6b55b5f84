"""A LightningModule that trains by one of our methods, with its perturbation memory in Lightning's checkpoints.

Needs `pip install 'sihg[lightning]'`.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from sihg.core.hybrid import HybridGradient
from sihg.errors import InputError
from sihg.robust.data.batches import Batch
from sihg.robust.methods.base import Method

KEY = "sihg_method"  # of the method's state in a checkpoint


class AdversarialModule(LightningModule):  # type: ignore[misc]  # mypy runs without Lightning
    """Trains a model by a method; batches are (x, y, index), where index counts the samples of the data set.

    The method takes the step of the optimiser itself (manual optimisation). A checkpoint at the end of an epoch holds
    the perturbation memory and the previous gradient, as tensors: training from it gives the same bits. Give the
    loader a `sihg.ShardedBatchSampler`, whose order follows the epoch.

    Args:
        model: Maps samples to logits.
        method: Such as sihg.MSIHG(eps=0.3, tau=0.1, memory=sihg.PerturbationMemory(n, shape, 0.3)).
        optimizer: Makes the inner optimiser, such as lambda p: torch.optim.SGD(p, lr=0.05).
        theta: The extrapolation of the hybrid gradient; 0 switches it off.
        seed: Decides the noise of the method.
    Raises:
        InputError: On several processes, or if batches have no index.
    Example:
        >>> import sihg
        >>> module = AdversarialModule(nn.Linear(4, 2), sihg.PGDAT(eps=0.1), lambda p: torch.optim.SGD(p, lr=0.1))
        >>> module(torch.zeros(3, 4)).shape
        torch.Size([3, 2])
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
        *,
        theta: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model, self.method, self.theta, self.seed = model, method, theta, seed
        self._make_optimizer = optimizer

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.model(x)
        return logits

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the inner optimiser behind the hybrid gradient."""
        return HybridGradient(self._make_optimizer(self.model.parameters()), self.theta)

    def setup(self, stage: str) -> None:  # noqa: ARG002
        """Raise InputError on several processes, which would each keep a memory of their own in one checkpoint."""
        if self.trainer.world_size > 1:
            raise InputError("lightning-processes", processes=self.trainer.world_size)

    def on_train_epoch_start(self) -> None:
        """Tell the sampler the epoch; Lightning itself tells only samplers of single samples."""
        loader: Any = self.trainer.train_dataloader
        sampler: Any = getattr(loader, "batch_sampler", None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(self.current_epoch)

    def training_step(self, items: Any, number: int) -> None:
        """Take one step of the method, and log its loss and its accuracy under the training attack."""
        if len(items) != 3:
            raise InputError("lightning-batch", items=len(items))
        x, y, index = items
        epoch, steps = self.current_epoch, int(self.trainer.num_training_batches)
        batch = Batch(x, y, index.cpu(), epoch, epoch * steps + number, time=epoch + number / steps, seed=self.seed)
        optimizer: Any = self.optimizers()
        log = self.method.step(self.model, batch, optimizer)
        values = {"loss": float(log.loss), "accuracy": float(log.accuracy), **log.extra}
        self.log_dict(values, on_step=True, on_epoch=True, batch_size=len(x))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep what the method keeps per sample: tensors only."""
        checkpoint[KEY] = self.method.state(self.current_epoch)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Continue from it."""
        if state := checkpoint.get(KEY):
            self.method.load_state(state, int(checkpoint["epoch"]) + 1)
