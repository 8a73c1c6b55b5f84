"""What runs in which number format: the passes of an ascent, the passes that train, and what must stay float32."""

import faulthandler
import multiprocessing
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor, nn

from sihg.errors import UnknownNameError

FORMATS = ("float32", "bfloat16")
MIN_SPEEDUP = 1.25  # of bfloat16, for `auto` to take it
ROUNDS, ROUND_SECONDS = 7, 5.0  # of a probe: at most so many rounds; after 3, none begins after so many seconds
FIRST_WAIT, LATER_WAIT = 300.0, 60.0  # seconds until a pass of the probe counts as hung; later ones get 10 times longer
_IEEE = ("cuda.matmul", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")  # of torch.backends


@dataclass(frozen=True)
class _Formats:
    ascent: str
    now: str  # of the passes that are not part of an ascent; within an ascent: of all


_formats: ContextVar[_Formats | None] = ContextVar("number formats", default=None)
_is_exact: ContextVar[bool] = ContextVar("exact float32", default=False)


@contextmanager
def number_formats(model: nn.Module, *, ascent: str = "float32", training: str = "float32") -> Iterator[None]:
    """Choose the number formats of the passes of a model; any method, also your own, then uses them.

    bfloat16 means autocast: weights stay float32, outputs of the model and input gradients come back as float32.

    Args:
        model: The model. Its weights, its modules and its memory layout stay as they are.
        ascent: "float32" or "bfloat16", for passes within `sihg.robust.gradients.inner_mode`, as all methods use it.
        training: The same for all other passes.
    Raises:
        UnknownNameError: If there is no such format.
    Example:
        >>> model = nn.Linear(2, 3)
        >>> with number_formats(model, training="bfloat16"):
        ...     model(torch.tensor([[1 / 3, 0.0]])).dtype
        torch.float32
    """
    for name in (ascent, training):
        if name not in FORMATS:
            raise UnknownNameError("number format", name, list(FORMATS))
    compiled = model._compiled_call_impl
    vars(model)["_compiled_call_impl"] = partial(run_in_format, compiled or model._call_impl)  # not forward: checked
    tokens = _formats.set(_Formats(ascent, training)), _is_exact.set(False)
    try:
        yield
    finally:
        _formats.reset(tokens[0])
        _is_exact.reset(tokens[1])
        if compiled is None:
            vars(model).pop("_compiled_call_impl", None)  # another thread may have been here
        else:
            vars(model)["_compiled_call_impl"] = compiled


def is_compiled(module: nn.Module) -> bool:
    """Return whether torch.compile has changed the module; `number_formats` does not count."""
    call = module._compiled_call_impl
    while isinstance(call, partial) and call.func is run_in_format:  # scopes may be nested
        call = call.args[0]
    return hasattr(module, "_orig_mod") or (call is not None and call != module._call_impl)


def run_in_format(module: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a module in the format chosen by `number_formats` for this pass; a tensor is returned in float32."""
    formats = _formats.get()
    if formats is None:
        return module(*args, **kwargs)
    devices = (value.device.type for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
    with _autocast(next(devices, "cpu"), formats.now):
        return to_float32(module(*args, **kwargs))


@contextmanager
def ascent_format(device: str) -> Iterator[None]:
    """Run passes in the format for ascents. Weights are converted once, so they must not change within."""
    formats = _formats.get()
    if formats is None:
        yield
        return
    token = _formats.set(_Formats(formats.ascent, formats.ascent))
    try:
        with _autocast(device, formats.ascent):
            yield
    finally:
        _formats.reset(token)


@contextmanager
def exact_float32(device: str) -> Iterator[None]:
    """Compute in float32 as IEEE defines it: without autocast, and without TF32 or bfloat16 inside the kernels."""
    if _is_exact.get():
        yield
        return
    before = [
        (backend, backend.fp32_precision) for backend in map(_backend, _IEEE) if hasattr(backend, "fp32_precision")
    ]
    legacy: list[Any] = [] if before else [torch.backends.cuda.matmul, torch.backends.cudnn]  # before torch 2.9
    allowed = [backend.allow_tf32 for backend in legacy]
    tokens = _formats.set(None), _is_exact.set(True)
    try:
        for backend, _ in before:
            backend.fp32_precision = "ieee"
        for backend in legacy:
            backend.allow_tf32 = False
        with _autocast(device, "float32"):
            yield
    finally:
        for backend, value in before:
            backend.fp32_precision = value
        for backend, is_allowed in zip(legacy, allowed, strict=True):
            backend.allow_tf32 = is_allowed
        _formats.reset(tokens[0])
        _is_exact.reset(tokens[1])


def to_float32(output: Any) -> Any:
    """Return a tensor of 16-bit floats as float32, and anything else as it is."""
    is_half = isinstance(output, Tensor) and output.dtype in (torch.bfloat16, torch.float16)
    return output.float() if is_half else output


def _autocast(device: str, name: str) -> Any:
    is_on = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    if name == "float32" and not is_on:
        return nullcontext()  # some devices have no autocast
    return torch.autocast(device, torch.bfloat16, enabled=name == "bfloat16")


def _backend(name: str) -> Any:
    library, _, part = name.partition(".")
    return getattr(getattr(torch.backends, library, None), part, None)


# ---- auto


@dataclass(frozen=True)
class FormatChoice:
    """What `auto` chose: the format, and why in words."""

    name: str
    reason: str


def choose_format(
    run_pass: Callable[[str], object],
    device: str,
    *,
    clock: Callable[[], float] = time.perf_counter,
    waits: tuple[float, float] = (FIRST_WAIT, LATER_WAIT),
) -> FormatChoice:
    """Return bfloat16 if passes in it are at least `MIN_SPEEDUP` times faster, else float32.

    On a CPU the passes run in a forked process with one thread: some processors announce instructions for bfloat16
    and end the process that uses them. A process that ends or hangs means float32.

    Args:
        run_pass: Runs one pass in the format given by name. What it changes on a CPU is lost.
        device: The type of the device.
        clock: Tells the time in seconds.
        waits: Seconds after which the first pass, or a later one, counts as hung.
    """
    if device != "cpu":  # other devices raise errors, and cannot be used after a fork
        try:
            return _judge(_measure(run_pass, clock, lambda _: None))
        except RuntimeError as error:
            return FormatChoice("float32", f"bfloat16 fails here: {str(error).splitlines()[0]}")
    if "fork" not in multiprocessing.get_all_start_methods():
        return FormatChoice("float32", "this system cannot probe bfloat16 in a forked process")
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_probe, args=(run_pass, clock, sender), daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads that torch keeps: the child uses one of its own
        child.start()
    sender.close()
    try:
        return _listen(receiver, child, waits)
    finally:
        child.kill()
        child.join()
        receiver.close()


def _probe(run_pass: Callable[[str], object], clock: Callable[[], float], sender: Connection) -> None:
    """Measure, in the forked process, and send the seconds of each pass, then the ratio or an error."""
    faulthandler.disable()  # a crash is an answer
    torch.set_num_threads(1)  # more would wait for threads that a fork does not copy
    try:
        sender.send(_judge(_measure(run_pass, clock, sender.send)))
    except Exception as error:
        sender.send(FormatChoice("float32", f"bfloat16 fails here: {(str(error) or repr(error)).splitlines()[0]}"))


def _listen(receiver: Connection, child: Any, waits: tuple[float, float]) -> FormatChoice:
    """Return the choice of the forked process; it sends the seconds of each pass, so that a hang is noticed."""
    wait, slowest = waits[0], 0.0
    while receiver.poll(wait):
        try:
            message = receiver.recv()
        except EOFError:
            child.join()
            return FormatChoice("float32", f"a process that tried bfloat16 ended with code {child.exitcode}")
        if isinstance(message, FormatChoice):
            return message
        slowest = max(slowest, message)
        wait = waits[1] + 10 * slowest
    return FormatChoice("float32", f"a process that tried bfloat16 was silent for {wait:.0f} s")


def _measure(
    run_pass: Callable[[str], object], clock: Callable[[], float], on_pass: Callable[[float], object]
) -> float:
    """Return the median, over interleaved rounds, of the seconds in float32 over those in bfloat16."""
    ratios: list[float] = []
    begin = clock()
    for number in range(1 + ROUNDS):
        seconds = {}
        for name in FORMATS:
            before = clock()
            run_pass(name)
            seconds[name] = clock() - before
            on_pass(seconds[name])
        if number:  # the first round warms up
            ratios.append(seconds["float32"] / max(seconds["bfloat16"], 1e-9))
        if len(ratios) >= 3 and clock() - begin > ROUND_SECONDS:
            break
    return statistics.median(ratios)


def _judge(ratio: float) -> FormatChoice:
    name = "bfloat16" if ratio >= MIN_SPEEDUP else "float32"
    return FormatChoice(name, f"bfloat16 is {ratio:.2f} times as fast; auto takes it from {MIN_SPEEDUP}")
