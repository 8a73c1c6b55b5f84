"""What the host sends to a device and reads of it, with as few waits as possible.

To read a number, the host waits for all work that the device has before it; on a CPU that is nothing. So the numbers
that a training step reports, and the conditions that it checks, are `Late` on other devices: within `reading_once` they
are collected, and `read_collected` reads them together, before the weights change.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, TypeVar, overload

import torch
from torch import Tensor

from sihg.errors import SihgError
from sihg.launch import rank

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_collected: ContextVar["list[Late[Any]] | None"] = ContextVar("numbers to read", default=None)


class Late(Generic[T_co]):
    """A function of tensors whose values are read when it is needed.

    Args:
        compute: The function; it gets numbers, or lists of them.
        tensors: Its arguments, all on one device.
    Example:
        >>> Late(lambda hits: hits / 4, torch.tensor(3)).value
        0.75
    """

    def __init__(self, compute: Callable[..., T_co], *tensors: Tensor) -> None:
        self._compute, self._tensors = compute, tensors
        self._value: list[T_co] = []

    @property
    def value(self) -> T_co:
        """The value; the first call reads the tensors."""
        if not self._value:
            _read([self])
        return self._value[0]


class LateField(Generic[T]):
    """A field of a dataclass that may be given a `Late` value, and is the value itself when it is looked at."""

    def __init__(self, *default: T) -> None:
        self._default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name}"

    @overload
    def __get__(self, instance: None, owner: type) -> T: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> T:
        if instance is None:  # the dataclass asks for the default
            if not self._default:
                raise AttributeError(self._name)
            return self._default[0]
        given: T | Late[T] = vars(instance)[self._name]
        return look_at(given)

    def __set__(self, instance: object, value: "T | Late[T]") -> None:
        vars(instance)[self._name] = value


def late(compute: Callable[..., T], *tensors: Tensor) -> "T | Late[T]":
    """Return compute(values of the tensors): at once on a CPU, on another device when it is looked at."""
    if tensors[0].device.type == "cpu":
        return compute(*(tensor.tolist() for tensor in tensors))
    number, collected = Late(compute, *tensors), _collected.get()
    if collected is not None:
        collected.append(number)
    return number


def look_at(number: "T | Late[T]") -> T:
    """Return a number that may be late."""
    return number.value if isinstance(number, Late) else number


def refuse_if(bad: Tensor, refuse: Callable[[], object]) -> None:
    """Call `refuse`, which raises, if `bad` is true: at once or, within `reading_once`, when all is read."""
    collected = _collected.get()
    if bad.device.type != "cpu" and collected is not None:
        collected.append(Late(lambda is_bad: refuse() if is_bad else None, bad))
    elif bool(bad):
        refuse()


@contextmanager
def reading_once() -> Iterator[None]:
    """Collect numbers and conditions of a device within the block; at its end, read what is left."""
    token = _collected.set([])
    try:
        yield
        read_collected()
    finally:
        _collected.reset(token)


def read_collected() -> None:
    """Read everything that is collected so far, in one wait; raise what a condition raises."""
    collected = _collected.get()
    if collected:
        numbers = list(collected)
        collected.clear()
        try:
            _read(numbers)
        except SihgError as error:
            error.printed_by = rank()  # other processes may not have it
            raise


def upload(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copy a CPU tensor to a device without a wait, through pinned memory; to a CPU it stays as it is."""
    device = torch.device(device)
    if device.type in ("cpu", "mps") or tensor.device.type != "cpu":  # mps has the memory of the host
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def download(tensor: Tensor) -> Callable[[], Tensor]:
    """Begin to copy a tensor to the host, and return the function that waits for the copy, in any thread."""
    if tensor.device.type in ("cpu", "mps"):
        copied = tensor.cpu()
        return lambda: copied
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
    done = torch.Event(tensor.device)
    done.record()

    def wait() -> Tensor:
        done.synchronize()
        return host

    return wait


def _read(numbers: Sequence[Late[Any]]) -> None:
    """Read the tensors of all numbers in one wait, then compute them in their order."""
    unread = [number for number in numbers if not number._value]
    tensors = [tensor.detach() for number in unread for tensor in number._tensors]
    if not tensors:
        return
    wide = torch.float32 if tensors[0].device.type == "mps" else torch.float64  # mps has no float64
    values = torch.cat([tensor.reshape(-1).to(wide) for tensor in tensors]).cpu().tolist()
    for number in unread:
        arguments = []
        for tensor in number._tensors:
            own, values = values[: tensor.numel()], values[tensor.numel() :]
            own = own if tensor.is_floating_point() else [int(value) for value in own]
            arguments.append(own if tensor.dim() else own[0])
        number._value.append(number._compute(*arguments))
        number._tensors = ()
