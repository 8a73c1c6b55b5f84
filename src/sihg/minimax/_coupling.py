"""The coupling phi on flat vectors: its gradients by automatic differentiation or by hand, and checks at the start."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sihg.errors import InputError, NotFiniteError
from sihg.minimax._layout import BlockLayout, Blocks, Index, WeightLayout, Weights, flat
from sihg.minimax.bilinear import BilinearCoupling

CouplingFunction = Callable[..., Tensor]  # (w, delta, index) -> phi_i(w, delta_i) for i in index, shape (len(index),)


class Gradients(NamedTuple):
    """Gradients of phi by hand; both functions take (w, delta, index) as the coupling does.

    Args:
        w: Returns the sum over index of grad_w phi_i, in the form of w.
        delta: Returns grad_delta_i phi_i for each i in index, in the form of delta.
    Example:
        For phi_i(w, delta_i) = <w, delta_i>:

        >>> by_hand = Gradients(lambda w, delta, index: delta.sum(0), lambda w, delta, index: w.expand_as(delta))
        >>> by_hand.w(torch.zeros(2), torch.ones(3, 2), torch.arange(3))
        tensor([3., 3.])
    """

    w: Callable[..., Weights]
    delta: Callable[..., Blocks]


class FunctionCoupling:
    """A coupling by a user's function, with gradients by automatic differentiation or by hand.

    w is flat; `rows` are the flat blocks in `index`, end to end.
    """

    def __init__(
        self, function: CouplingFunction, w_layout: WeightLayout, delta_layout: BlockLayout, by_hand: Gradients | None
    ) -> None:
        self.function, self.by_hand = function, by_hand
        self.w_layout, self.delta_layout = w_layout, delta_layout

    def phi(self, w: Tensor, rows: Tensor, index: Index) -> Tensor:
        """Return phi_i(w, delta_i) for each i in index, by the user's function."""
        return self._call(self.w_layout.pieces(w), rows, index)

    def gradient_w(self, w: Tensor, rows: Tensor, index: Index) -> Tensor:
        """Return sum_i grad_w phi_i(w, delta_i)."""
        if self.by_hand:
            return self.w_layout.flat(self.by_hand.w(*self._forms(w, rows, index)))
        with torch.enable_grad():
            leaves = [p.detach().requires_grad_() for p in self.w_layout.pieces(w)]
            phi = self._call(leaves, rows.detach(), index)
            return flat(_gradients(phi, leaves))

    def gradient_delta(self, w: Tensor, rows: Tensor, index: Index) -> Tensor:
        """Return grad_delta_i phi_i(w, delta_i), end to end."""
        if self.by_hand:
            return flat(self.by_hand.delta(*self._forms(w, rows, index)))
        with torch.enable_grad():
            leaf = rows.detach().requires_grad_()
            phi = self._call(self.w_layout.pieces(w.detach()), leaf, index)
            return _gradients(phi, [leaf])[0]

    def gradients(self, w: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Return both gradients of the whole phi, by one backward pass."""
        blocks = self.delta_layout.all
        if self.by_hand:
            return self.gradient_w(w, delta, blocks), self.gradient_delta(w, delta, blocks)
        with torch.enable_grad():
            leaves = [p.detach().requires_grad_() for p in self.w_layout.pieces(w)]
            leaf = delta.detach().requires_grad_()
            phi = self._call(leaves, leaf, blocks)
            *w_gradients, delta_gradient = _gradients(phi, [*leaves, leaf])
            return flat(w_gradients), delta_gradient

    def gradient_w_change(self, w: Tensor, i: int, new: Tensor, old: Tensor) -> tuple[Tensor, int]:
        """Return grad_w phi_i(w, new) - grad_w phi_i(w, old), and the number of block gradients it took.

        Both gradients are by the same kernel: SSI-HG multiplies the rounding of this difference by n - 1.
        """
        index = self.delta_layout.each[i]
        return self.gradient_w(w, new, index) - self.gradient_w(w, old, index), 2

    def check_gradients(self, w: Tensor, delta: Tensor) -> None:
        """Raise InputError unless autograd sees w or delta, and gradients by hand agree with it."""
        with torch.enable_grad():
            phi = self.phi(w.clone().requires_grad_(), delta.clone().requires_grad_(), self.delta_layout.all)
        if not phi.requires_grad:
            raise InputError("coupling-detached")
        if self.by_hand is None:
            return
        automatic = FunctionCoupling(self.function, self.w_layout, self.delta_layout, None).gradients(w, delta)
        for name, right, ours in zip(("w", "delta"), automatic, self.gradients(w, delta), strict=True):
            slack = torch.finfo(right.dtype).eps ** 0.5 * (1 + float(right.norm()))
            if ours.shape != right.shape or float((ours - right).norm()) > slack:
                raise InputError("by-hand-gradient", variable=name)

    def _call(self, pieces: Sequence[Tensor], rows: Tensor, index: Index) -> Tensor:
        phi = self.function(self.w_layout.form(pieces), self.delta_layout.form(rows, index), index.tensor)
        if not isinstance(phi, Tensor) or phi.shape != (index.count,):
            got = f"shape {tuple(phi.shape)}" if isinstance(phi, Tensor) else type(phi).__name__
            raise InputError("coupling-shape", got=got, count=index.count)
        return phi

    def _forms(self, w: Tensor, rows: Tensor, index: Index) -> tuple[Weights, Blocks, Tensor]:
        return self.w_layout.unpack(w), self.delta_layout.form(rows, index), index.tensor


def _gradients(phi: Tensor, leaves: list[Tensor]) -> Sequence[Tensor]:
    """Differentiate sum phi; zero for variables on which phi does not depend."""
    if not phi.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    return torch.autograd.grad(phi.sum(), leaves, materialize_grads=True)


Coupling = FunctionCoupling | BilinearCoupling


def check_coupling(coupling: Coupling, layout: BlockLayout, w0: Tensor, delta0: Tensor, *, linear_in_w: bool) -> None:
    """Raise InputError if the coupling cannot be used from this start."""
    try:
        phi = coupling.phi(w0, delta0, layout.all).detach()
    except InputError:
        raise
    except Exception as error:
        raise InputError("coupling-fails", error=error) from error
    if not phi.isfinite().all():
        i = int((~phi.isfinite()).nonzero()[0])
        raise NotFiniteError("coupling-not-finite", block=i, phi=float(phi[i]))
    coupling.check_gradients(w0, delta0)
    last = layout.n - 1
    alone = float(coupling.phi(w0, layout.block(delta0, last), layout.each[last]).detach())
    if abs(alone - float(phi[last])) > torch.finfo(phi.dtype).eps ** 0.5 * (1 + float(phi.abs().max())):
        raise InputError("coupling-index", block=last, alone=alone, phi=float(phi[last]))
    _check_gradient_values(coupling, layout, w0, delta0, linear_in_w=linear_in_w)


def _check_gradient_values(
    coupling: Coupling, layout: BlockLayout, w0: Tensor, delta0: Tensor, *, linear_in_w: bool
) -> None:
    g_w, g_delta = coupling.gradients(w0, delta0)
    for name, gradient in (("w", g_w), ("delta", g_delta)):
        if not gradient.isfinite().all():
            raise NotFiniteError("gradient-not-finite", variable=name)
    if linear_in_w and not isinstance(coupling, BilinearCoupling):
        moved = coupling.gradient_w(w0 + 1 + w0.abs(), delta0, layout.all)
        slack = torch.finfo(w0.dtype).eps ** 0.5 * (1 + float(g_w.norm() + moved.norm()))
        if float((moved - g_w).norm()) > slack:
            raise InputError("not-linear-in-w")
