"""What several families need to build their tensors."""

from collections.abc import Sequence
from math import inf

import torch
from torch import Tensor

from sihg.errors import InputError


def check_option(
    name: str, value: object, *, whole: bool = False, least: float = -inf, above: float = -inf, below: float = inf
) -> None:
    """Raise InputError unless an option is a number with least <= value and above < value < below, whole if asked."""
    kind = int if whole else (int, float)
    if isinstance(value, kind) and not isinstance(value, bool) and least <= value and above < value < below:
        return
    bounds = [f"{sign} {bound:g}" for sign, bound in ((">=", least), (">", above), ("<", below)) if abs(bound) < inf]
    rule = " and ".join([f"a {'whole ' if whole else ''}number", *bounds])
    raise InputError("problem-option-range", name=name, rule=rule, value=value)


def check_multiple(samples: int, n: int) -> None:
    """Raise InputError unless the samples can be split into n blocks of equal size."""
    check_option("n", n, whole=True, least=1)
    check_option("samples", samples, whole=True, least=1)
    if samples % n:
        raise InputError("samples-not-multiple", samples=samples, n=n)


def multiply_rows(matrices: Tensor, vectors: Tensor) -> Tensor:
    """Return matrix i times vector i as row i."""
    return (matrices @ vectors[:, :, None]).squeeze(2)


def orthogonal(size: int, draw: torch.Generator) -> Tensor:
    """Draw an orthogonal matrix."""
    Q: Tensor = torch.linalg.qr(torch.randn(size, size, generator=draw, dtype=torch.float64))[0]
    return Q.contiguous()


def tensor(values: Sequence[object]) -> Tensor:
    """Return a float64 tensor."""
    return torch.tensor(values, dtype=torch.float64)
