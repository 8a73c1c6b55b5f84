"""The lanes of a batch: what each adds to the gradient and to running statistics, summed in one fixed order.

Lane l of L has the samples i with i mod L = l, and is one forward-backward pass. Processes compute whole lanes. The
sums do not depend on where: lanes are added in the order of a binary tree (`core.processes.sum_pairs`).
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sihg.core.processes import Processes
from sihg.errors import InputError, SihgError
from sihg.robust.waits import Late, late, look_at, upload


class LaneSum:
    """Sums gradients and changes of buffers (such as running statistics) over the lanes of a batch.

    Args:
        model: The model; every lane finds its buffers as the batch found them.
        parameters: Those that are trained.
        processes: Who computes the lanes.
        lanes: How many there are.
    """

    def __init__(self, model: nn.Module, parameters: Sequence[Tensor], processes: Processes, lanes: int) -> None:
        self.parameters, self.processes = list(parameters), processes
        self.order = processes.own(lanes)
        self.buffers = [buffer for buffer in model.buffers() if buffer.dtype != torch.bool]
        first = self.parameters[0]
        self._like = first.new_empty(0, dtype=torch.promote_types(torch.float32, first.dtype))
        self._before: list[Tensor] = []
        self._sums: list[tuple[int, Tensor]] = []  # (height in the tree, sum), the lowest last
        self._added = True
        self._share = 0.0
        self._error: SihgError | None = None
        self._known: list[bool] = []  # which parameters have gradients in this step: here, then on any process
        self._grads: Sequence[Tensor] = ()
        self._there: tuple[list[bool], list[bool]] | Late[tuple[list[bool], list[bool]]] = [], []
        self.flags = [False, False]  # of this process, then of any: see `set_gradients`

    def begin(self) -> None:
        """Begin a step of the optimiser."""
        self._before = [buffer.clone() for buffer in self.buffers]
        self._sums.clear()
        self._error = None
        self._known = [False] * len(self.parameters)

    def enter(self, share: float) -> None:
        """Begin the next lane of `order`, which has this share of the batch."""
        for buffer, before in zip(self.buffers, self._before, strict=True):
            buffer.copy_(before)
        self._added, self._share = False, share

    def add(self) -> None:
        """Keep the gradients of the lane, and how it has changed the buffers."""
        if self._added:
            raise InputError("method-steps-lanes")
        self._added = True
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        known = [p.grad is not None for p in self.parameters]
        self._known = [a or b for a, b in zip(self._known, known, strict=True)]
        changes = [_change(b, a).mul_(self._share) for b, a in zip(self.buffers, self._before, strict=True)]
        self._push(self._flatten([*grads, self._from_host(known), *changes]))
        for p in self.parameters:
            p.grad = None

    def leave(self) -> None:
        """End a lane, which must have added its gradients."""
        if not self._added:
            raise InputError("method-without-step")

    def skip(self) -> None:
        """Add nothing for a lane that has no sample in the batch."""
        self._push(self._nothing())

    def fail(self, error: SihgError) -> None:
        """Give up the lanes of this process; `set_gradients` raises the error on all processes."""
        self._error = error
        self._sums = [(0, self._nothing())]

    def _nothing(self) -> Tensor:
        sizes = [t.numel() for t in (*self.parameters, *self.buffers)]
        return self._like.new_zeros(sum(sizes) + len(self.parameters))

    def _push(self, vector: Tensor) -> None:
        height = 0
        while self._sums and self._sums[-1][0] == height:
            vector = self._sums.pop()[1].add_(vector)
            height += 1
        self._sums.append((height, vector))

    def set_gradients(self) -> None:
        """Set the gradients and buffers to those of all lanes.

        Other processes may have gradients of other parameters. A device that knows would be waited for, so it is asked
        by `confirm_gradients`, when all else is read.
        """
        ((_, own),) = self._sums
        flags = [*self.flags, self._error is not None]
        alone = self.processes.size == 1
        total = own if alone else self.processes.sum(torch.cat([own, self._from_host(flags)]))
        sizes = [p.numel() for p in self.parameters]
        *self._grads, known, rest = total.split([*sizes, len(sizes), len(total) - sum(sizes) - len(sizes)])
        self._there = (self._known, flags) if alone else late(_as_flags, known, rest[-len(flags) :])
        self._set(self._known if isinstance(self._there, Late) else self._there[0])
        changes = rest[: sum(b.numel() for b in self.buffers)].split([b.numel() for b in self.buffers])
        for buffer, before, change in zip(self.buffers, self._before, changes, strict=True):
            now = change.view_as(buffer) if buffer.is_floating_point() else change.round().view_as(buffer)
            buffer.copy_(before + now.to(buffer.dtype))

    def confirm_gradients(self) -> bool:
        """Set `flags` to those of any process; return whether `set_gradients` was right, else set gradients again.

        Raises:
            SihgError: A process has given up its lanes, by `fail`.
        """
        known, (*self.flags, failed) = look_at(self._there)
        if failed:
            self.processes.agree(self._error)
        is_right = known == self._known
        if not is_right:
            self._set(known)
        self._known, self._grads = known, ()
        return is_right

    def _set(self, known: Sequence[bool]) -> None:
        for p, grad, is_known in zip(self.parameters, self._grads, known, strict=True):
            p.grad = grad.view_as(p).to(p.dtype) if is_known else None
        self._known = list(known)

    def _from_host(self, numbers: Sequence[bool]) -> Tensor:
        return upload(torch.tensor(numbers, dtype=self._like.dtype), self._like.device)

    def _flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([t.detach().reshape(-1).to(self._like.dtype) for t in tensors])


def _as_flags(known: Sequence[float], flags: Sequence[float]) -> tuple[list[bool], list[bool]]:
    return [bool(number) for number in known], [bool(flag) for flag in flags]


def _change(now: Tensor, before: Tensor) -> Tensor:
    """Return now - before, and 0 where they are equal, also where both are infinite."""
    change = (now - before).to(torch.promote_types(torch.float32, now.dtype))
    return change.masked_fill_(now == before, 0)
