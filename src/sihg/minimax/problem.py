"""A minimax problem min_w max_delta f(w) + sum_i phi_i(w, delta_i) - sum_i g_i(delta_i), as data."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from sihg.core.prox import Convex, Zero
from sihg.errors import InputError, NotFiniteError
from sihg.minimax._coupling import Coupling, CouplingFunction, FunctionCoupling, Gradients, check_coupling
from sihg.minimax._layout import BlockLayout, Blocks, Index, WeightLayout, Weights, flat, shaped
from sihg.minimax.bilinear import BilinearCoupling, Maps, bilinear_starts
from sihg.minimax.constants import Constants

ClosedForm = Callable[..., Blocks]  # (w, centre, tau, index) -> the exact implicit step of those blocks


class Problem:
    """A minimax problem min_w max_delta f(w) + sum_i phi_i(w, delta_i) - sum_i g_i(delta_i).

    Args:
        coupling: coupling(w, delta, index) returns phi_i(w, delta_i) for each i in the integer tensor `index`, shape
            (len(index),). Row k of `delta` belongs to block index[k].
        w0: The start of w, a tensor or a dict of tensors.
        delta0: The start of delta, a tensor (n, *shape), or a list of n tensors of different shapes. With a list, the
            coupling receives a list.
        f: A convex function of all of w, or a dict with one per tensor. Default: 0.
        g: A convex function of each block, or a list of n. Default: 0.
        constants: The known constants among L11, L12, L22, rho and mu.
        linear_in_w: Declare that grad_w phi does not depend on w, which makes SSI-HG as cheap as SPDHG.
        closed_form: closed_form(w, centre, tau, index) returns the exact implicit step of the blocks in `index`.
        by_hand: Gradients to use instead of automatic differentiation.
    Raises:
        InputError: If the parts do not fit together, or phi or its gradient is not finite at the start.
    Example:
        >>> game = Problem(lambda w, delta, index: delta @ w, w0=torch.ones(3), delta0=torch.ones(2, 3))
        >>> game
        Problem(n=2, w=(3,), delta=(2, 3), float32)
    """

    def __init__(
        self,
        coupling: CouplingFunction | BilinearCoupling,
        w0: Tensor | Mapping[str, Tensor],
        delta0: Tensor | Sequence[Tensor],
        f: Convex | Mapping[str, Convex] | None = None,
        g: Convex | Sequence[Convex] | None = None,
        constants: Constants | Mapping[str, float] | None = None,
        linear_in_w: bool = False,
        closed_form: ClosedForm | None = None,
        by_hand: Gradients | None = None,
    ) -> None:
        self.w_layout, self.delta_layout = WeightLayout.of(w0), BlockLayout.of(delta0)
        self.w0, self.delta0 = self.w_layout.pack(w0), self.delta_layout.pack(delta0)
        self.n, self.all = self.delta_layout.n, self.delta_layout.all
        self.f, self.g = _f(f, self.w_layout), _g(g, self.n)
        self.constants = constants if isinstance(constants, Constants) else _constants(constants)
        self.linear_in_w, self.closed_form = linear_in_w, closed_form
        self.bilinear_in_both = isinstance(coupling, BilinearCoupling)
        self.coupling: Coupling = (
            coupling
            if isinstance(coupling, BilinearCoupling)
            else FunctionCoupling(coupling, self.w_layout, self.delta_layout, by_hand)
        )
        # The gradients of phi on flat vectors, as the solvers call them.
        self.gradient_w, self.gradient_delta = self.coupling.gradient_w, self.coupling.gradient_delta
        self.gradients, self.gradient_w_change = self.coupling.gradients, self.coupling.gradient_w_change
        _check_starts(self.w0, self.delta0)
        check_coupling(self.coupling, self.delta_layout, self.w0, self.delta0, linear_in_w=linear_in_w)
        self._check_prox()
        self._check_closed_form()

    @staticmethod
    def bilinear(
        blocks: Maps,
        w0: Tensor | None = None,
        delta0: Tensor | Sequence[Tensor] | None = None,
        f: Convex | None = None,
        g: Convex | Sequence[Convex] | None = None,
        constants: Constants | Mapping[str, float] | None = None,
    ) -> "Problem":
        """Build the problem with phi_i(w, delta_i) = <A_i w, delta_i>.

        Args:
            blocks: The matrices A_i, as a tensor (n, d, m), a list of matrices, or a list of `LinearMap`.
            w0: The start of w. Default: zero, which requires matrices.
            delta0: The start of delta. Default: zero, which requires matrices.
            f: A convex function of w.
            g: A convex function of each block, or a list of n.
            constants: The known constants.
        Raises:
            InputError: If shapes or dtypes do not fit, or an adjoint is wrong.
        Example:
            >>> Problem.bilinear(torch.ones(1, 2, 3))
            Problem(n=1, w=(3,), delta=(1, 2), float32)
        """
        w0, delta0 = bilinear_starts(blocks, w0, delta0)
        return Problem(BilinearCoupling(blocks, w0, delta0), w0, delta0, f, g, constants, linear_in_w=True)

    def __repr__(self) -> str:
        w, delta = self.w_form(self.w0), self.delta_form(self.delta0)
        shape_w = tuple(w.shape) if isinstance(w, Tensor) else {name: tuple(piece.shape) for name, piece in w.items()}
        shape_delta = tuple(delta.shape) if isinstance(delta, Tensor) else f"{self.delta0.numel()} numbers"
        return f"Problem(n={self.n}, w={shape_w}, delta={shape_delta}, {str(self.w0.dtype).removeprefix('torch.')})"

    def only(self, i: int) -> Index:
        """Return the index of block i alone."""
        return self.delta_layout.each[i]

    def but(self, i: int) -> Index:
        """Return the index of all blocks but i."""
        numbers = self.all.tensor
        return Index(torch.cat((numbers[:i], numbers[i + 1 :])))

    def prox_f(self, z: Tensor, sigma: float) -> Tensor:
        """Return prox_f^sigma(z)."""
        if isinstance(self.f, dict):
            pieces = zip(self.f.values(), self.w_layout.pieces(z), strict=True)
            return flat([f.prox(piece, sigma) for f, piece in pieces])
        return flat(self.f.prox(self._whole_w(z), sigma))

    def prox_g(self, rows: Tensor, tau: float, index: Index) -> Tensor:
        """Return prox_{g_i}^tau of each block in index."""
        if index.count == 1:
            i = index.numbers[0]
            g = self.g[i] if isinstance(self.g, list) else self.g
            return flat(g.prox(shaped(rows, self.delta_layout.shapes[i]), tau))
        if isinstance(self.g, list) or not self.delta_layout.stacked:
            return flat([g.prox(row, tau) for g, row in self._g_rows(rows, index)])
        return self.g.prox(self._stack(rows), tau, batch=1).reshape(-1)

    def value_f(self, w: Tensor) -> Tensor:
        """Return f(w)."""
        if isinstance(self.f, dict):
            pieces = zip(self.f.values(), self.w_layout.pieces(w), strict=True)
            return torch.stack([f.value(piece) for f, piece in pieces]).sum()
        return self.f.value(self._whole_w(w))

    def value_g(self, delta: Tensor) -> Tensor:
        """Return sum_i g_i(delta_i)."""
        if isinstance(self.g, list) or not self.delta_layout.stacked:
            return torch.stack([g.value(row) for g, row in self._g_rows(delta, self.all)]).sum()
        return self.g.value(self._stack(delta), batch=1).sum()

    def distance_f(self, w: Tensor, v: Tensor) -> Tensor:
        """Return the distance of v to the subdifferential of f at w."""
        if isinstance(self.f, dict):
            pieces = zip(self.f.values(), self.w_layout.pieces(w), self.w_layout.pieces(v), strict=True)
            return _norm(torch.stack([f.distance(a, b) for f, a, b in pieces]))
        return self.f.distance(self._whole_w(w), self._whole_w(v))

    def distance_g(self, delta: Tensor, v: Tensor) -> Tensor:
        """Return the distance of v to the subdifferential of g at delta, over all blocks."""
        if isinstance(self.g, list) or not self.delta_layout.stacked:
            pairs = zip(self._g_rows(delta, self.all), self._g_rows(v, self.all), strict=True)
            return _norm(torch.stack([g.distance(a, b) for (g, a), (_, b) in pairs]))
        return _norm(self.g.distance(self._stack(delta), self._stack(v), batch=1))

    def w_form(self, w: Tensor) -> Weights:
        """Return views of a flat w in the user's form."""
        return self.w_layout.unpack(w)

    def delta_form(self, delta: Tensor) -> Blocks:
        """Return views of a flat delta in the user's form."""
        return self.delta_layout.form(delta, self.all)

    def _stack(self, rows: Tensor) -> Tensor:
        return rows.view(-1, *self.delta_layout.shapes[0])

    def _whole_w(self, w: Tensor) -> Tensor:
        """Return the w that a single f acts on: the tensor in its own shape, or the dict's tensors as one vector."""
        return shaped(w, self.w_layout.shapes[0]) if self.w_layout.names is None else w

    def _g_rows(self, rows: Tensor, index: Index) -> list[tuple[Convex, Tensor]]:
        functions = [self.g[i] if isinstance(self.g, list) else self.g for i in index.numbers]
        return list(zip(functions, self.delta_layout.form(rows, index), strict=True))

    def _check_prox(self) -> None:
        """Raise InputError if a bound or a centre in f or g has the wrong shape."""
        one = self.delta_layout.block(self.delta0, 0)
        for name, start, index in (("f", self.w0, None), ("g", self.delta0, self.all), ("g", one, self.only(0))):
            try:
                got = (self.prox_f(start, 1.0) if index is None else self.prox_g(start, 1.0, index)).numel()
            except RuntimeError as error:
                raise InputError("prox-fails", function=name, error=error) from error
            if got != start.numel():
                raise InputError("prox-shape", function=name, wanted=start.numel(), got=got)

    def _check_closed_form(self) -> None:
        if self.closed_form is None:
            return
        tau, w0, delta0 = 0.01, self.w0, self.delta0
        d = flat(self.closed_form(self.w_form(w0), self.delta_form(delta0), tau, self.all.tensor))
        solves = d.shape == delta0.shape
        if solves:
            again = self.prox_g(delta0 + tau * self.gradient_delta(w0, d, self.all), tau, self.all)
            solves = float((again - d).norm()) <= torch.finfo(w0.dtype).eps ** 0.5 * (1 + float(d.norm()))
        if not solves:
            raise InputError("closed-form-wrong")


def _norm(x: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(x)
    return size


def _check_starts(w0: Tensor, delta0: Tensor) -> None:
    if (w0.dtype, w0.device) != (delta0.dtype, delta0.device):
        raise InputError(
            "starts-differ", w_dtype=w0.dtype, w_device=w0.device, delta_dtype=delta0.dtype, delta_device=delta0.device
        )
    for name, start in (("w0", w0), ("delta0", delta0)):
        if not start.isfinite().all():
            count = int((~start.isfinite()).sum())
            raise NotFiniteError("start-not-finite", name=name, count=count)


def _f(f: Convex | Mapping[str, Convex] | None, layout: WeightLayout) -> Convex | dict[str, Convex]:
    if not isinstance(f, Mapping):
        return _convex("f", f)
    if layout.names is None or set(f) != set(layout.names):
        raise InputError("f-keys", names=sorted(layout.names or ()), f=sorted(f))
    return {name: _convex(f"f[{name!r}]", f[name]) for name in layout.names}


def _g(g: Convex | Sequence[Convex] | None, n: int) -> Convex | list[Convex]:
    if not isinstance(g, Sequence):
        return _convex("g", g)
    if len(g) != n:
        raise InputError("g-count", count=len(g), n=n)
    return [_convex(f"g[{i}]", function) for i, function in enumerate(g)]


def _convex(name: str, function: object) -> Convex:
    if function is None:
        return Zero()
    if not isinstance(function, Convex):
        raise InputError("not-convex-function", name=name, type=type(function).__name__)
    return function


def _constants(given: Mapping[str, float] | None) -> Constants:
    try:
        return Constants(**(given or {}))  # type: ignore[arg-type]
    except TypeError as error:
        raise InputError("unknown-constants", given=sorted(given or {})) from error
