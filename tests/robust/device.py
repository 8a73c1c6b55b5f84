"""A device that is not there: its tensors are computed on the CPU, and whatever a GPU would be waited for is counted.

Tensors say that they are on `DEVICE`. Their dispatch unwraps them, runs the operation on the CPU and wraps the result,
so that results are bitwise those of the CPU. An operation that takes tensors of both places fails, as on a GPU.
"""

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only

from sihg.robust import gradients

DEVICE = "meta"  # a device that every torch knows, and autograd runs in this thread
aten = torch.ops.aten
# What a CUDA device is waited for: the host has to know a value, or the size of the result.
READS = {
    *(aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten.bincount, aten.is_nonzero),
    *(aten.unique_dim, aten._unique, aten._unique2, aten.unique_consecutive, aten.unique_dim_consecutive),
}
INDEXED = {aten.index, aten.index_put, aten.index_put_, aten._unsafe_index, aten._index_put_impl_}
PINS = {aten._pin_memory, aten.is_pinned, aten.pin_memory}


class DeviceTensor(Tensor):
    """A tensor that says it is on the device."""

    inner: Tensor  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor) -> "DeviceTensor":
        """Wrap a CPU tensor."""
        made: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(DEVICE),
            requires_grad=False,
        )
        made.inner = inner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Run an operation outside `Waits.counted`, such as a comparison by the test."""
        return run(func, args, kwargs or {})

    def __repr__(self) -> str:  # type: ignore[override]
        return f"on the device: {self.inner!r}"


class Waits(TorchDispatchMode):
    """Counts, by kind, what the host does with the device, inside and outside the ascents of methods."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kinds: Counter[tuple[bool, str]] = Counter()  # (in an ascent, kind)
        self.places: Counter[str] = Counter()
        self.in_ascent = False
        self.pinned: list[Tensor] = []  # kept, so that no other tensor takes their place

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count an operation and run it."""
        kwargs = kwargs or {}
        if func.overloadpacket in PINS:
            return self._pin(func, args[0])
        if kwargs.get("pin_memory"):
            self.pinned.append(made := run(func, args, kwargs))
            return made
        if kind := self._kind(func, args, kwargs):
            self.kinds[self.in_ascent, kind] += 1
            if not kind.startswith("asynchronous"):
                self.places[_caller()] += 1
        return run(func, args, kwargs)

    def waits(self, *, in_ascent: bool) -> int:
        """Return how often the host waited."""
        return sum(
            count
            for (inside, kind), count in self.kinds.items()
            if inside == in_ascent and not kind.startswith("asynchronous")
        )

    def copies(self, kind: str) -> int:
        """Return the number of asynchronous copies "up" or "down"."""
        return self.kinds[False, f"asynchronous copy {kind}"] + self.kinds[True, f"asynchronous copy {kind}"]

    def clear(self) -> None:
        """Begin to count again."""
        self.kinds.clear()
        self.places.clear()
        self.pinned.clear()

    @contextmanager
    def counted(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Count within; what runs in `inner_mode` is an ascent."""
        for name, mode in gradients.STATISTICS.items():
            monkeypatch.setitem(gradients.STATISTICS, name, self._ascent(mode))
        with _FromNumbers(), self:
            yield

    def _ascent(self, mode: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def ascent(model: Any) -> Iterator[None]:
            with mode(model):
                self.in_ascent = True
                try:
                    yield
                finally:
                    self.in_ascent = False

        return ascent

    def _pin(self, func: Any, tensor: Tensor) -> Any:
        if func.overloadpacket is aten.is_pinned:
            return self._is_pinned(tensor)
        self.pinned.append(copy := tensor.clone())
        return copy

    def _is_pinned(self, host: Tensor) -> bool:
        return any(host.data_ptr() == one.data_ptr() for one in self.pinned)

    def _kind(self, func: Any, args: Any, kwargs: Any) -> str:
        """Return what the host does with the device, "" if it does not have to wait."""
        on_device = any(isinstance(value, DeviceTensor) for value in tree_iter((args, kwargs)))
        packet = func.overloadpacket
        if packet is aten._to_copy:
            source, wanted = args[0], kwargs.get("device")
            goes = wanted is not None and _is_device(wanted) != isinstance(source, DeviceTensor)
            return self._copy(source, bool(kwargs.get("non_blocking")), up=not on_device) if goes else ""
        if packet in (aten.copy_, aten._copy_from):
            goes = isinstance(args[0], DeviceTensor) != isinstance(args[1], DeviceTensor)
            asynchronous = bool(kwargs.get("non_blocking") or (len(args) > 2 and args[2]))
            up = isinstance(args[0], DeviceTensor)
            return self._copy(args[1] if up else args[0], asynchronous, up=up) if goes else ""
        if packet in READS and on_device:
            return f"read by {packet.__name__}"
        if packet in INDEXED and isinstance(args[0], DeviceTensor):
            places = [i for i in args[1] if i is not None]
            if any(i.dtype in (torch.bool, torch.uint8) for i in places):
                return "read by a mask"
            if any(not isinstance(i, DeviceTensor) for i in places):
                return "copy up of an index"
        if packet is aten.repeat_interleave and on_device and kwargs.get("output_size") is None:
            return "read by repeat_interleave"
        return ""

    def _copy(self, host: Tensor, asynchronous: bool, *, up: bool) -> str:
        way = "up" if up else "down"
        is_pinned = self._is_pinned(host)
        return f"asynchronous copy {way}" if asynchronous and is_pinned else f"copy {way}"


class _FromNumbers(TorchFunctionMode):
    """Lets tensors of numbers be made on the CPU and copied; torch would make an empty one for its own meta device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch."""
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.new_tensor and isinstance(args[0], DeviceTensor):
            kwargs = {"dtype": args[0].dtype, "device": DEVICE, **kwargs}
            func, args = torch.tensor, args[1:]
        if func is torch.Tensor.tolist and isinstance(args[0], DeviceTensor):
            return args[0].cpu().tolist()
        is_made = func in (torch.tensor, torch.as_tensor) and not isinstance(args[0], DeviceTensor)
        if is_made and kwargs.get("device") is not None and _is_device(kwargs["device"]):
            del kwargs["device"]
            return func(*args, **kwargs).to(DEVICE)
        return func(*args, **kwargs)


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the CPU, and wrap what is on the device."""
    flat = [value for value in tree_iter((args, kwargs)) if isinstance(value, Tensor)]
    on_device = any(isinstance(value, DeviceTensor) for value in flat)
    wanted = kwargs.get("device")
    to_device = on_device if wanted is None else _is_device(wanted)
    copies = func.overloadpacket in (aten._to_copy, aten.copy_)
    if on_device and not copies:
        for value in flat:
            if not isinstance(value, DeviceTensor) and value.dim() and not _is_index(func, value):
                raise RuntimeError(f"{func}: tensors on the device and on the CPU")
    inner_args, inner_kwargs = tree_map_only(DeviceTensor, lambda t: t.inner, (args, kwargs))
    if wanted is not None:
        inner_kwargs["device"] = "cpu"
    for name in ("non_blocking", "pin_memory"):
        inner_kwargs.pop(name, None)
    results = func(*inner_args, **inner_kwargs)
    known = {id(value.inner): value for value in flat if isinstance(value, DeviceTensor)}
    if not to_device and not known:
        return results
    if func.overloadpacket is aten._to_copy:
        return _wrap(results, {}) if to_device else results
    if func.overloadpacket is aten.copy_:
        return args[0]
    return tree_map_only(Tensor, lambda t: _wrap(t, known), results)


def _wrap(result: Tensor, known: dict[int, DeviceTensor]) -> Tensor:
    return known[id(result)] if id(result) in known else DeviceTensor(result)


def _is_index(func: Any, value: Tensor) -> bool:
    return func.overloadpacket in INDEXED and value.dtype in (torch.int64, torch.bool, torch.int32)


def _is_device(device: Any) -> bool:
    return torch.device(device).type == DEVICE


def _caller() -> str:
    """Return the line of the package that waits."""
    frames = [frame for frame in traceback.extract_stack() if "/sihg/" in frame.filename]
    return f"{frames[-1].filename.rpartition('/sihg/')[2]}:{frames[-1].lineno}" if frames else "elsewhere"
