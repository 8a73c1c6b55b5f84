"""Read pickles from outside: no code that they may hold is run, and limits are checked before they are loaded."""

import io
import pickle
import pickletools
import zipfile
from typing import Any, BinaryIO

import numpy as np
import torch

MAX_STEPS = 10**6  # opcodes of a pickle of arrays; a batch of CIFAR-10 has about 50,000
MAX_TORCH_STEPS = 10**7  # opcodes of a file of torch.save, about 40 per tensor
OLD_TORCH_PICKLES = 5  # at the beginning of a file of torch before version 1.6
MAX_DEPTH = 100  # containers inside each other; at 200,000 the hash of a tuple overflows the stack
SYSTEM = ("builtins", "nt", "os", "posix", "subprocess", "sys")  # modules that no file of weights needs
_GROWING = ("APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD")  # change the lowest object that they take
_STORING = ("PUT", "BINPUT", "LONG_BINPUT")
_LOADING = ("GET", "BINGET", "LONG_BINGET")


def check_pickle(file: BinaryIO, max_steps: int = MAX_STEPS) -> None:
    """Read the opcodes of the next pickle in a file and leave the file behind it, without loading anything.

    Raises:
        pickle.UnpicklingError: The pickle is cut or broken, has too many opcodes, is nested too deeply, or uses a memo
            index that only a pickle of that many objects needs, for which memory would be taken.
    """
    stack: list[int] = []  # how deeply each object is nested; -1 is a mark
    memo: dict[int, int] = {}
    try:
        argument: Any
        for step, (opcode, argument, _) in enumerate(pickletools.genops(file)):
            if step >= max_steps:
                raise pickle.UnpicklingError(f"it has more than {max_steps:,} opcodes")
            if opcode.name == "MEMOIZE":
                memo[len(memo)] = stack[-1]
            elif opcode.name in _STORING:
                if argument > step:
                    raise pickle.UnpicklingError(f"it uses memo index {argument} after {step} opcodes")
                memo[argument] = stack[-1]
            elif opcode.name in _LOADING:
                stack.append(memo[argument])
            elif _move(stack, opcode) > MAX_DEPTH:
                raise pickle.UnpicklingError(f"its objects are nested more than {MAX_DEPTH} deep")
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError) as error:
        raise pickle.UnpicklingError(f"broken pickle: {type(error).__name__}: {error}") from error


def _move(stack: list[int], opcode: pickletools.OpcodeInfo) -> int:
    """Take and put the objects of one opcode; return how deeply the new ones are nested."""
    if opcode.name == "MARK":
        stack.append(-1)
        return 0
    taken: list[int] = []
    for wanted in reversed(opcode.stack_before):
        if wanted is pickletools.stackslice:
            continue
        if wanted is pickletools.markobject:
            while (depth := stack.pop()) >= 0:
                taken.append(depth)
        else:
            taken.append(stack.pop())
    if opcode.name == "DUP":
        depth = taken[0]
    elif opcode.name in _GROWING:
        *items, depth = taken
        depth = max([depth, *(item + 1 for item in items)])
    else:
        depth = max((item + 1 for item in taken), default=0)
    stack += [depth] * len(opcode.stack_after)
    return depth


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="latin1")
        self.bytes_left = len(data)
        self.allowed = {
            ("numpy", "ndarray"): "ndarray",  # only an argument of _reconstruct
            ("numpy", "dtype"): lambda kind, *_: np.dtype(kind),  # old files give flags as numbers: deprecated
            ("_codecs", "encode"): self.encode,
            **{(f"numpy.{core}.multiarray", "_reconstruct"): _empty_array for core in ("core", "_core")},
        }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not part of an array")
        return self.allowed[module, name]

    def encode(self, text: str, encoding: str = "latin1") -> bytes:
        """Convert text to bytes, as old protocols write them: in all, no more than the pickle has."""
        self.bytes_left -= len(text)
        if encoding != "latin1" or self.bytes_left < 0:
            raise pickle.UnpicklingError(f"it encodes text as {encoding!r:.20}, or too much text")
        return text.encode("latin1")


def _empty_array(*_: object) -> np.ndarray[tuple[int, ...], np.dtype[Any]]:
    return np.ndarray((0,), "b")  # its shape, type and values follow in the pickle


def unpickle_arrays(data: bytes) -> Any:
    """Read a pickle of arrays, numbers, texts and their containers; raise UnpicklingError for anything else."""
    check_pickle(io.BytesIO(data))
    try:
        return _Unpickler(data).load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a broken pickle may raise anything
        raise pickle.UnpicklingError(f"broken pickle: {type(error).__name__}: {error}") from error


class Skipped:
    """Stands for an object in a file of torch.save that is neither a tensor nor a container; it does nothing."""

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


def load_torch(data: bytes) -> tuple[object, list[str]]:
    """Load the tensors and their containers that torch.save wrote; limits are checked before.

    Other objects, such as the arguments of a training program, are not made: a Skipped stands for each.

    Returns:
        What the file holds, and the classes of the objects that were not made, in order: torch returns a set.

    Raises:
        pickle.UnpicklingError: It asks for functions of the system, or breaks a limit of pickles.
        Exception: torch raises whatever a broken file causes.
    """
    if data.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            if sum(info.file_size for info in members) > len(data):
                raise ValueError("it unpacks to more bytes than it has, which no file of torch.save does")
            for info in members:
                if info.filename.endswith(".pkl"):
                    check_pickle(io.BytesIO(archive.read(info)), MAX_TORCH_STEPS)
    else:
        file = io.BytesIO(data)
        for _ in range(OLD_TORCH_PICKLES):
            check_pickle(file, MAX_TORCH_STEPS)
    asked = torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(data)) if data.startswith(b"PK") else []
    skipped = [name for name in sorted(asked) if name.partition(".")[0] not in SYSTEM]
    with torch.serialization.safe_globals([(Skipped, name) for name in skipped]):
        return torch.load(io.BytesIO(data), "cpu", weights_only=True), skipped
