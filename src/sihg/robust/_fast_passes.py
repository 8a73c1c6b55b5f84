"""What makes passes faster on a CPU: freed memory is kept for the next pass, and a quick input gradient.

The quick gradient is for a first convolution with one input channel. That of torch takes 4 to 9 times longer for grey
images of 28 pixels: as long as half the rest of a small network.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from sihg.robust.precision import is_compiled

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # in glibc's malloc.h
MAX_KEPT, MAX_BLOCK = 2**30, 2**25  # bytes kept at the end of the heap; larger blocks are never kept
USER_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")


@cache
def keep_freed_memory() -> None:
    """Raise the amount of freed memory that glibc keeps, once, unless the user has set it.

    By default glibc returns the memory of a pass to the system and takes it again, page by page, in the next pass.
    That takes about a fifth of a training step of a residual network (benchmarks/malloc_retention.py).
    """
    chosen = any(name in os.environ for name in USER_VARIABLES) or "glibc.malloc." in os.environ.get(
        "GLIBC_TUNABLES", ""
    )
    if sys.platform == "linux" and not chosen:
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl does not have it
        if mallopt is not None:
            mallopt(M_MMAP_THRESHOLD, MAX_BLOCK)
            mallopt(M_TRIM_THRESHOLD, MAX_KEPT)


@contextmanager
def quick_input_gradients(model: nn.Module) -> Iterator[None]:
    """Compute, within, the input gradient of one-channel convolutions by a matrix product, without weight gradients."""
    compiled = any(map(is_compiled, model.modules()))  # a changed module would be compiled again
    changed = [] if compiled else [m for m in model.modules() if isinstance(m, nn.Conv2d) and _fits(m)]
    for module in changed:
        module.__dict__["forward"] = partial(_forward, module)
    try:
        yield
    finally:
        for module in changed:
            module.__dict__.pop("forward", None)  # another thread may have been here


def _fits(module: nn.Conv2d) -> bool:
    """Return whether `_Product` can compute the convolution, which has torch's forward and a plain weight."""
    weight = module._parameters.get("weight")
    return (
        type(module) is nn.Conv2d
        and weight is not None
        and weight.device.type == "cpu"
        and (module.in_channels, module.groups, module.dilation) == (1, 1, (1, 1))
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
        and not {"forward", "_conv_forward"} & vars(module).keys()
    )


def _forward(conv: nn.Conv2d, input: Tensor) -> Tensor:  # noqa: A002
    if input.dim() != 4 or not input.requires_grad:
        return nn.Conv2d.forward(conv, input)
    fixed = (conv.weight.detach(), None if conv.bias is None else conv.bias.detach())
    out: Tensor = _Product.apply(input, *fixed, conv.stride, conv.padding)  # type: ignore[no-untyped-call]
    return out


class _Product(torch.autograd.Function):
    """The convolution; in the backward pass one matrix product computes the share of every tap, and they are summed."""

    generate_vmap_rule = True  # for models that use torch.func

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any) -> Tensor:
        return conv2d(x, weight, bias, stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        x, weight, _, stride, padding = inputs
        ctx.save_for_backward(weight)
        ctx.size, ctx.stride, ctx.padding, ctx.dtype = x.shape[2:], stride, padding, x.dtype

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,), (weight,) = grads, ctx.saved_tensors
        (n, _, rows, columns), (height, width) = g.shape, ctx.size
        (down, right), (above, left) = ctx.stride, ctx.padding
        pixels = g.permute(0, 2, 3, 1).flatten(0, 2)  # (n * rows * columns, channels): no move with channels last
        taps = (weight.to(g.dtype).flatten(1).T @ pixels.T).view(*weight.shape[2:], n, rows, columns)
        out = g.new_zeros(n, height + 2 * above, width + 2 * left, dtype=ctx.dtype)  # under autocast g is bfloat16
        for i, j in product(range(taps.shape[0]), range(taps.shape[1])):
            out[:, i : i + down * rows : down, j : j + right * columns : right] += taps[i, j]
        return out[:, None, above : above + height, left : left + width], None, None, None, None
