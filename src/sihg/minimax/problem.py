"""min_w max_delta f(w) + sum_i phi_i(w, delta_i) - sum_i g_i(delta_i): f, phi and g as data, and phi's gradients."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from sihg.core.prox import Convex, Zero
from sihg.errors import InputError
from sihg.minimax.constants import Constants
from sihg.minimax.layout import BlockLayout, Blocks, Index, WeightLayout, Weights, flat
from sihg.minimax.problem_checks import check_start

if TYPE_CHECKING:
    from sihg.minimax.bilinear import LinearMap

Coupling = Callable[..., Tensor]  # (w, delta, index) -> phi_i(w, delta_i) for i in index, shape (len(index),)
ClosedForm = Callable[..., Blocks]  # (w, centre, tau, index) -> the exact implicit step of those blocks


class Gradients(NamedTuple):
    """Gradients of phi by hand; both take (w, delta, index) as the coupling does."""

    w: Callable[..., Weights]  # the sum over index of grad_w phi_i, in the form of w
    delta: Callable[..., Blocks]  # grad_delta_i phi_i for each i in index, in the form of delta


class Problem:
    """A minimax problem.

    coupling(w, delta, index) gives phi_i(w, delta_i) for each i in the integer tensor `index`, with one row of delta
    per entry. w0 is a tensor or a dict of tensors; delta0 a tensor (n, *shape), or a list of n tensors of different
    shapes (then the coupling gets a list). f is one convex function of all of w, or a dict of them, one a tensor; g one
    for all blocks, or a list of n. `constants` holds what is known of L11, L12, L22, rho, mu. `linear_in_w` declares
    that grad_w phi does not depend on w, which makes SSI-HG as cheap as SPDHG. `closed_form(w, centre, tau, index)`,
    where there is one, gives the implicit step exactly; `by_hand` replaces automatic differentiation.
    """

    bilinear_in_both = False

    def __init__(
        self,
        coupling: Coupling,
        w0: Tensor | Mapping[str, Tensor],
        delta0: Tensor | Sequence[Tensor],
        f: Convex | Mapping[str, Convex] | None = None,
        g: Convex | Sequence[Convex] | None = None,
        constants: Constants | Mapping[str, float] | None = None,
        linear_in_w: bool = False,
        closed_form: ClosedForm | None = None,
        by_hand: Gradients | None = None,
    ) -> None:
        self.coupling = coupling
        self.linear_in_w = linear_in_w
        self.closed_form = closed_form
        self.by_hand = by_hand
        self.w_layout, self.delta_layout = WeightLayout.of(w0), BlockLayout.of(delta0)
        self.w0, self.delta0 = self.w_layout.pack(w0), self.delta_layout.pack(delta0)
        self.n = self.delta_layout.n
        numbers = torch.arange(self.n, device=self.w0.device)
        self.all = Index(numbers)
        self._each = [Index(row) for row in numbers.split(1)]
        self.f, self.g = _f(f, self.w_layout), _g(g, self.n)
        self.constants = constants if isinstance(constants, Constants) else _constants(constants)
        check_start(self)

    @staticmethod
    def bilinear(
        blocks: "Tensor | Sequence[Tensor | LinearMap]",
        w0: Tensor | None = None,
        delta0: Tensor | Sequence[Tensor] | None = None,
        f: Convex | None = None,
        g: Convex | Sequence[Convex] | None = None,
        constants: Constants | Mapping[str, float] | None = None,
    ) -> "Problem":
        """phi_i(w, delta_i) = <A_i w, delta_i>, from matrices A_i (n, d, m), a list of them, or of `LinearMap`s."""
        from sihg.minimax.bilinear import BilinearProblem

        return BilinearProblem(blocks, w0, delta0, f, g, constants)

    # Blocks

    def only(self, i: int) -> Index:
        """Block i alone."""
        return self._each[i]

    def but(self, i: int) -> Index:
        """All blocks but i."""
        numbers = self.all.tensor
        return Index(torch.cat((numbers[:i], numbers[i + 1 :])))

    # phi and its gradients; w and rows are flat vectors, rows those of the blocks in index, end to end

    def phi(self, w: Tensor, rows: Tensor, index: Index) -> Tensor:
        """phi_i(w, delta_i) for each i in index."""
        return self._call(self.w_layout.pieces(w), rows, index)

    def gradient_w(self, w: Tensor, rows: Tensor, index: Index) -> Tensor:
        """sum_i grad_w phi_i(w, delta_i)."""
        if self.by_hand:
            return self.w_layout.flat(self.by_hand.w(*self._forms(w, rows, index)))
        with torch.enable_grad():
            leaves = [p.detach().requires_grad_() for p in self.w_layout.pieces(w)]
            phi = self._call(leaves, rows.detach(), index)
            return flat(_gradients(phi, leaves))

    def gradient_delta(self, w: Tensor, rows: Tensor, index: Index) -> Tensor:
        """grad_delta_i phi_i(w, delta_i), end to end."""
        if self.by_hand:
            return flat(self.by_hand.delta(*self._forms(w, rows, index)))
        with torch.enable_grad():
            leaf = rows.detach().requires_grad_()
            phi = self._call(self.w_layout.pieces(w.detach()), leaf, index)
            return _gradients(phi, [leaf])[0]

    def gradients(self, w: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Both gradients of the whole phi, from one backward pass."""
        if self.by_hand:
            return self.gradient_w(w, delta, self.all), self.gradient_delta(w, delta, self.all)
        with torch.enable_grad():
            leaves = [p.detach().requires_grad_() for p in self.w_layout.pieces(w)]
            leaf = delta.detach().requires_grad_()
            phi = self._call(leaves, leaf, self.all)
            *w_gradients, delta_gradient = _gradients(phi, [*leaves, leaf])
            return flat(w_gradients), delta_gradient

    def gradient_w_change(self, w: Tensor, i: int, new: Tensor, old: Tensor) -> tuple[Tensor, int]:
        """grad_w phi_i(w, new) - grad_w phi_i(w, old), and the block gradients it took.

        Both by the same kernel: SSI-HG multiplies the rounding of this difference by n - 1.
        """
        index = self.only(i)
        return self.gradient_w(w, new, index) - self.gradient_w(w, old, index), 2

    # f and g

    def prox_f(self, z: Tensor, sigma: float) -> Tensor:
        """prox_f^sigma(z)."""
        if isinstance(self.f, Zero):
            return z
        if isinstance(self.f, dict):
            pieces = zip(self.f.values(), self.w_layout.pieces(z), strict=True)
            return flat([f.prox(piece, sigma) for f, piece in pieces])
        return self.f.prox(self._whole_w(z), sigma).reshape(-1)

    def prox_g(self, rows: Tensor, tau: float, index: Index) -> Tensor:
        """prox_{g_i}^tau of each block in index."""
        if isinstance(self.g, Zero):
            return rows
        if index.count == 1:
            i = index.numbers[0]
            g = self.g[i] if isinstance(self.g, list) else self.g
            return g.prox(rows.view(self.delta_layout.shapes[i]), tau).reshape(-1)
        if isinstance(self.g, list) or not self.delta_layout.stacked:
            return flat([g.prox(row, tau) for g, row in self._g_rows(rows, index)])
        return self.g.prox(self._stack(rows, index), tau, batch=1).reshape(-1)

    def distance_f(self, w: Tensor, v: Tensor) -> Tensor:
        """The distance of v to the subdifferential of f at w."""
        if isinstance(self.f, dict):
            pieces = zip(self.f.values(), self.w_layout.pieces(w), self.w_layout.pieces(v), strict=True)
            return _norm(torch.stack([f.distance(a, b) for f, a, b in pieces]))
        return self.f.distance(self._whole_w(w), self._whole_w(v))

    def distance_g(self, delta: Tensor, v: Tensor) -> Tensor:
        """The distance of v to the subdifferential of g at delta, over all blocks."""
        if isinstance(self.g, list) or not self.delta_layout.stacked:
            pairs = zip(self._g_rows(delta, self.all), self._g_rows(v, self.all), strict=True)
            return _norm(torch.stack([g.distance(a, b) for (g, a), (_, b) in pairs]))
        return _norm(self.g.distance(self._stack(delta, self.all), self._stack(v, self.all), batch=1))

    # Shapes

    def _call(self, pieces: Sequence[Tensor], rows: Tensor, index: Index) -> Tensor:
        phi = self.coupling(self.w_layout.form(pieces), self.delta_layout.form(rows, index), index.tensor)
        if not isinstance(phi, Tensor) or phi.shape != (index.count,):
            got = f"shape {tuple(phi.shape)}" if isinstance(phi, Tensor) else type(phi).__name__
            raise InputError(
                f"coupling must return a tensor of shape ({index.count},), one phi_i for each entry of index, "
                f"got {got}: sum over everything but the blocks"
            )
        return phi

    def _forms(self, w: Tensor, rows: Tensor, index: Index) -> tuple[Weights, Blocks, Tensor]:
        return self.w_layout.unpack(w), self.delta_layout.form(rows, index), index.tensor

    def _stack(self, rows: Tensor, index: Index) -> Tensor:
        return rows.view(index.count, *self.delta_layout.shapes[0])

    def _whole_w(self, w: Tensor) -> Tensor:
        """The w that a single f acts on: the tensor in its own shape, or the dict's tensors as one vector."""
        return w.view(self.w_layout.shapes[0]) if self.w_layout.names is None else w

    def _g_rows(self, rows: Tensor, index: Index) -> list[tuple[Convex, Tensor]]:
        functions = [self.g[i] if isinstance(self.g, list) else self.g for i in index.numbers]
        return list(zip(functions, self.delta_layout.form(rows, index), strict=True))

    def w_form(self, w: Tensor) -> Weights:
        """A flat w in the user's form (views)."""
        return self.w_layout.unpack(w)

    def delta_form(self, delta: Tensor) -> Blocks:
        """A flat delta in the user's form (views)."""
        return self.delta_layout.form(delta, self.all)

    def check_gradients(self) -> None:
        """Refuse a coupling that hides w and delta from automatic differentiation, and wrong gradients by hand."""
        by_hand, self.by_hand = self.by_hand, None
        with torch.enable_grad():
            phi = self.phi(self.w0.clone().requires_grad_(), self.delta0.clone().requires_grad_(), self.all)
        if not phi.requires_grad:
            raise InputError("coupling does not depend on w or delta through torch operations: do not detach them")
        if by_hand is None:
            return
        expected = self.gradients(self.w0, self.delta0)
        self.by_hand = by_hand
        for name, right, ours in zip(("w", "delta"), expected, self.gradients(self.w0, self.delta0), strict=True):
            slack = torch.finfo(right.dtype).eps ** 0.5 * (1 + float(right.norm()))
            if ours.shape != right.shape or float((ours - right).norm()) > slack:
                raise InputError(
                    f"by_hand.{name} is not the coupling's gradient at (w0, delta0): correct it or leave it out"
                )


def _gradients(phi: Tensor, leaves: list[Tensor]) -> Sequence[Tensor]:
    """The gradients of sum phi; zero where phi does not depend on a variable."""
    if not phi.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    return torch.autograd.grad(phi.sum(), leaves, materialize_grads=True)


def _norm(x: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(x)
    return size


def _f(f: Convex | Mapping[str, Convex] | None, layout: WeightLayout) -> Convex | dict[str, Convex]:
    if not isinstance(f, Mapping):
        return _convex("f", f)
    if layout.names is None or set(f) != set(layout.names):
        raise InputError(f"f has the keys {sorted(f)}, w0 has {sorted(layout.names or ())}: give f the keys of w0")
    return {name: _convex(f"f[{name!r}]", f[name]) for name in layout.names}


def _g(g: Convex | Sequence[Convex] | None, n: int) -> Convex | list[Convex]:
    if not isinstance(g, Sequence):
        return _convex("g", g)
    if len(g) != n:
        raise InputError(f"g is a list of {len(g)} functions for {n} blocks: give one a block, or one for all")
    return [_convex(f"g[{i}]", function) for i, function in enumerate(g)]


def _convex(name: str, function: object) -> Convex:
    if function is None:
        return Zero()
    if not isinstance(function, Convex):
        raise InputError(f"{name} must be a convex function of sihg.core.prox, got {type(function).__name__}")
    return function


def _constants(given: Mapping[str, float] | None) -> Constants:
    try:
        return Constants(**(given or {}))  # type: ignore[arg-type]
    except TypeError as error:
        raise InputError(f"constants {sorted(given or {})}: known are L11, L12, L22, L12_block, rho and mu") from error
