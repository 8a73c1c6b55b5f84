"""Attacks with the model first, as torchattacks has them: `PGD(model, eps=8/255, alpha=2/255)(images, labels)`.

Names, arguments and defaults are those of torchattacks. Images are in [0, 1]; the model is attacked in evaluation mode.
The attacks are those of `sihg.robust.attacks`, which take their settings first: `sihg.PGD(eps=0.1)(model, x, y)`.

Attacks that step along gradients return their last point, as torchattacks does. With `last_iterate=False` they return
the first misclassified point on the way, which breaks at least as many samples in fewer passes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from sihg.errors import InputError
from sihg.robust.attacks import apgd, cw, deepfool, fab, mi_fgsm, nearest, pgd, square
from sihg.robust.attacks.base import Attack
from sihg.robust.evaluation import autoattack
from sihg.robust.gradients import as_input, device_of

__all__ = [
    "APGD",
    "APGDT",
    "BIM",
    "CW",
    "FAB",
    "FGSM",
    "MIFGSM",
    "PGD",
    "PGDL2",
    "AutoAttack",
    "DeepFool",
    "ModelAttack",
    "Square",
]
MAX_RADIUS = 1e4  # of attacks without eps: beyond the corners of [0, 1] in 1e8 features


@dataclass(frozen=True, eq=False)
class ModelAttack:
    """An attack and the model that it attacks: call it with images and labels.

    Args:
        model: The model, x -> logits.
        attack: The attack, such as `sihg.PGD(eps=0.1)`.
        seed: Decides all draws; None draws a seed from torch's generator at each call.
        eot: For random models: gradients and losses are means over so many draws.
    Raises:
        InputError: If the model is not a torch.nn.Module.
    Example:
        >>> attack = ModelAttack(nn.Linear(2, 3), pgd.PGD(eps=0.1))
        >>> attack(torch.zeros(1, 2), torch.tensor([0])).shape
        torch.Size([1, 2])
    """

    model: nn.Module
    attack: Attack
    seed: int | None = 0
    eot: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise InputError("model-first", name=type(self.attack).__name__, type=type(self.model).__name__)

    def __call__(self, images: Tensor, labels: Tensor, *others: object, targets: Tensor | int | None = None) -> Tensor:
        """Return adversarial images on the device and of the type of `images`; `targets` are classes to aim at."""
        if others or not isinstance(images, Tensor):
            raise InputError("model-given", name=type(self.attack).__name__, type=type(images).__name__)
        device = device_of(self.model)
        seed = int(torch.randint(2**31, ())) if self.seed is None else self.seed
        points, labels = as_input(self.model, images).to(device), labels.to(device)
        found = self.attack(self.model, points, labels, seed, targets=targets, eot=self.eot)
        return found.to(images)


def FGSM(model: nn.Module, eps: float = 8 / 255, *, last_iterate: bool = True) -> ModelAttack:
    """Take one step of length eps along the sign of the gradient (Goodfellow et al., 2015).

    Args:
        model: The model.
        eps: The radius of the Linf ball.
        last_iterate: Return the last point, not the first misclassified one.
    Returns:
        The attack: call it with images and labels.
    Example:
        >>> FGSM(nn.Linear(2, 3))(torch.zeros(1, 2), torch.tensor([0])).shape
        torch.Size([1, 2])
    """
    return ModelAttack(model, pgd.FGSM(eps=eps, last_iterate=last_iterate))


def BIM(
    model: nn.Module, eps: float = 8 / 255, alpha: float = 2 / 255, steps: int = 10, *, last_iterate: bool = True
) -> ModelAttack:
    """Take steps along the sign of the gradient, from the image itself (Kurakin et al., 2017).

    Args:
        model: The model.
        eps: The radius of the Linf ball.
        alpha: The length of a step.
        steps: The steps of a run.
        last_iterate: Return the last point, not the first misclassified one.
    Returns:
        The attack: call it with images and labels.
    Example:
        >>> BIM(nn.Linear(2, 3))(torch.zeros(1, 2), torch.tensor([0])).shape
        torch.Size([1, 2])
    """
    return PGD(model, eps, alpha, steps, random_start=False, last_iterate=last_iterate)


def PGD(
    model: nn.Module,
    eps: float = 8 / 255,
    alpha: float = 2 / 255,
    steps: int = 10,
    random_start: bool = True,
    *,
    last_iterate: bool = True,
) -> ModelAttack:
    """Take steps along the sign of the gradient, from a random point of the ball (Madry et al., 2018).

    Args:
        model: The model.
        eps: The radius of the Linf ball.
        alpha: The length of a step.
        steps: The steps of a run.
        random_start: Begin at a random point, which torch's generator decides; else at the image.
        last_iterate: Return the last point, not the first misclassified one.
    Returns:
        The attack: call it with images and labels.
    Example:
        >>> PGD(nn.Linear(2, 3))(torch.zeros(1, 2), torch.tensor([0])).shape
        torch.Size([1, 2])
    """
    settings: dict[str, Any] = {"steps": steps, "step_size": alpha, "last_iterate": last_iterate}
    return ModelAttack(model, pgd.PGD(eps=eps, random_start=random_start, **settings), seed=None)


def PGDL2(
    model: nn.Module,
    eps: float = 1.0,
    alpha: float = 0.2,
    steps: int = 10,
    random_start: bool = True,
    *,
    last_iterate: bool = True,
) -> ModelAttack:
    """Take steps along the gradient in an L2 ball (Madry et al., 2018).

    Args:
        model: The model.
        eps: The radius of the L2 ball.
        alpha: The length of a step.
        steps: The steps of a run.
        random_start: Begin at a random point, which torch's generator decides; else at the image.
        last_iterate: Return the last point, not the first misclassified one.
    Returns:
        The attack: call it with images and labels.
    Example:
        >>> PGDL2(nn.Linear(2, 3))(torch.zeros(1, 2), torch.tensor([0])).shape
        torch.Size([1, 2])
    """
    settings: dict[str, Any] = {"steps": steps, "step_size": alpha, "last_iterate": last_iterate}
    return ModelAttack(model, pgd.PGD(eps=eps, norm="l2", random_start=random_start, **settings), seed=None)


def MIFGSM(
    model: nn.Module,
    eps: float = 8 / 255,
    alpha: float = 2 / 255,
    steps: int = 10,
    decay: float = 1.0,
    *,
    last_iterate: bool = True,
) -> ModelAttack:
    """Take steps along the sign of a sum of gradients (Dong et al., 2018).

    Args:
        model: The model.
        eps: The radius of the Linf ball.
        alpha: The length of a step.
        steps: The steps of a run.
        decay: The factor of the sum so far.
        last_iterate: Return the last point, not the first misclassified one.
    Returns:
        The attack: call it with images and labels.
    Example:
        >>> MIFGSM(nn.Linear(2, 3))(torch.zeros(1, 2), torch.tensor([0])).shape
        torch.Size([1, 2])
    """
    settings: dict[str, Any] = {"steps": steps, "step_size": alpha, "momentum": decay}
    return ModelAttack(model, mi_fgsm.MIFGSM(eps=eps, last_iterate=last_iterate, **settings))


def APGD(
    model: nn.Module,
    norm: str = "Linf",
    eps: float = 8 / 255,
    steps: int = 10,
    n_restarts: int = 1,
    seed: int = 0,
    loss: str = "ce",
    eot_iter: int = 1,
) -> ModelAttack:
    """Run Auto-PGD (Croce and Hein, 2020).

    Args:
        model: The model.
        norm: Linf, L2 or L1.
        eps: The radius of the ball.
        steps: The steps of a run.
        n_restarts: The runs, the first included.
        seed: Decides all draws.
        loss: ce or dlr.
        eot_iter: For random models: gradients are means over so many draws.
    Returns:
        The attack: call it with images and labels.
    Example:
        >>> APGD(nn.Linear(2, 3))(torch.zeros(1, 2), torch.tensor([0])).shape
        torch.Size([1, 2])
    """
    attack = apgd.APGD(eps=eps, norm=norm, steps=steps, restarts=n_restarts, loss=loss)
    return ModelAttack(model, attack, seed, eot_iter)


def APGDT(
    model: nn.Module,
    norm: str = "Linf",
    eps: float = 8 / 255,
    steps: int = 10,
    n_restarts: int = 1,
    seed: int = 0,
    eot_iter: int = 1,
    *,
    n_classes: int = 10,
) -> ModelAttack:
    """Run Auto-PGD on the targeted DLR loss (Croce and Hein, 2020).

    Args:
        model: The model.
        norm: Linf, L2 or L1.
        eps: The radius of the ball.
        steps: The steps of a run.
        n_restarts: The runs, the first included.
        seed: Decides all draws.
        eot_iter: For random models: gradients are means over so many draws.
        n_classes: The classes of the model: each wrong one is a target.
    Returns:
        The attack: call it with images and labels.
    Example:
        >>> APGDT(nn.Linear(2, 3))(torch.zeros(1, 2), torch.tensor([0])).shape
        torch.Size([1, 2])
    """
    targets = max(1, n_classes - 1)
    attack = apgd.APGD(eps=eps, norm=norm, steps=steps, restarts=n_restarts, loss="dlr-t", targets=targets)
    return ModelAttack(model, attack, seed, eot_iter)


def FAB(
    model: nn.Module,
    norm: str = "Linf",
    eps: float = 8 / 255,
    steps: int = 10,
    n_restarts: int = 1,
    *,
    seed: int = 0,
    multi_targeted: bool = False,
    n_classes: int = 10,
) -> ModelAttack:
    """Run the fast adaptive boundary attack (Croce and Hein, 2020).

    Args:
        model: The model.
        norm: Linf, L2 or L1.
        eps: The radius of the ball.
        steps: The steps of a run.
        n_restarts: The runs, the first included.
        seed: Decides all draws.
        multi_targeted: Aim at one wrong class after the other; else at the nearest of all.
        n_classes: The classes of the model: each wrong one is a target.
    Returns:
        The attack: call it with images and labels.
    Example:
        >>> FAB(nn.Linear(2, 3))(torch.zeros(1, 2), torch.tensor([0])).shape
        torch.Size([1, 2])
    """
    settings: dict[str, Any] = {"restarts": n_restarts, "targets": max(1, n_classes - 1), "targeted": multi_targeted}
    attack = fab.FAB(eps=eps, norm=norm, steps=steps, **settings)
    return ModelAttack(model, attack, seed)


def Square(
    model: nn.Module,
    norm: str = "Linf",
    eps: float = 8 / 255,
    n_queries: int = 5000,
    n_restarts: int = 1,
    p_init: float = 0.8,
    *,
    seed: int = 0,
) -> ModelAttack:
    """Search at random in square windows, without gradients (Andriushchenko et al., 2020).

    Args:
        model: The model.
        norm: Linf, L2 or L1.
        eps: The radius of the ball.
        n_queries: The forward passes of a run.
        n_restarts: The runs, the first included.
        p_init: The share of the image that the first windows cover.
        seed: Decides all draws.
    Returns:
        The attack: call it with images and labels.
    Example:
        >>> Square(nn.Linear(2, 3), n_queries=9)(torch.zeros(1, 2), torch.tensor([0])).shape
        torch.Size([1, 2])
    """
    attack = square.Square(eps=eps, norm=norm, queries=n_queries, restarts=n_restarts, p_init=p_init)
    return ModelAttack(model, attack, seed)


def CW(model: nn.Module, c: float = 1, kappa: float = 0, steps: int = 50, lr: float = 0.01) -> ModelAttack:
    """Seek the nearest misclassified image in L2 (Carlini and Wagner, 2017), without a bound on the distance.

    Args:
        model: The model.
        c: The weight of the wrong class against the distance.
        kappa: The lead that the wrong class shall have.
        steps: Adam's steps.
        lr: Adam's step size.
    Returns:
        The attack: call it with images and labels.
    Example:
        >>> CW(nn.Linear(2, 3))(torch.zeros(1, 2), torch.tensor([0])).shape
        torch.Size([1, 2])
    """
    settings: dict[str, Any] = {"steps": steps, "step_size": lr, "confidence": kappa, "first_c": c}
    attack = cw.CW(eps=MAX_RADIUS, searches=1, **settings)
    return ModelAttack(model, nearest.Nearest(eps=MAX_RADIUS, norm="l2", attack=attack))


def DeepFool(model: nn.Module, steps: int = 50, overshoot: float = 0.02) -> ModelAttack:
    """Step to the nearest linearised boundary in L2 (Moosavi-Dezfooli et al., 2016), without a bound on the distance.

    Args:
        model: The model.
        steps: The most steps.
        overshoot: How far to go beyond a boundary.
    Returns:
        The attack: call it with images and labels.
    Example:
        >>> DeepFool(nn.Linear(2, 3))(torch.zeros(1, 2), torch.tensor([0])).shape
        torch.Size([1, 2])
    """
    return ModelAttack(model, deepfool.DeepFool(eps=MAX_RADIUS, norm="l2", steps=steps, overshoot=overshoot))


def AutoAttack(
    model: nn.Module,
    norm: str = "Linf",
    eps: float = 8 / 255,
    version: str = "standard",
    n_classes: int = 10,
    seed: int | None = None,
    verbose: bool = False,
) -> Callable[[Tensor, Tensor], Tensor]:
    """Run the attacks of AutoAttack one after the other; `sihg.AutoAttack` has its own interface.

    Args:
        model: The model.
        norm: Linf, L2 or L1.
        eps: The radius of the ball.
        version: standard, plus or rand.
        n_classes: The classes of the model: each wrong one is a target.
        seed: Decides all draws; None is 0.
        verbose: Whether to print AutoAttack's log.
    Returns:
        The attack: call it with images and labels.
    Raises:
        InputError: If an argument cannot be used.
    Example:
        >>> AutoAttack(nn.Flatten(), eps=0.6)(torch.eye(4), torch.arange(4)).shape
        torch.Size([4, 4])
    """
    adversary = autoattack.AutoAttack(model, norm, eps, seed=seed, verbose=verbose, version=version)
    adversary.apgd_targeted.n_target_classes = adversary.fab.n_target_classes = max(1, n_classes - 1)
    return adversary.run_standard_evaluation


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"module 'sihg.attacks' has no attribute {name!r}: it has {', '.join(__all__)}")
