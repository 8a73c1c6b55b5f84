"""Draw random numbers as a function of (seed, purpose, epoch, step), so that no generator state has to be saved.

`generator` is for draws on the host. `uniform` and `normal` hash counters on any device: a sample has the same noise on
a CPU and a GPU, in any batch, on any number of processes.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

# SplitMix64 (Steele, Lea and Flood, 2014); its constants as signed 64-bit numbers
GAMMA = 0x9E3779B97F4A7C15 - 2**64
FACTORS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)
SHIFTS = (30, 27, 31)
BITS = 24  # of a uniform number: those of float32's fraction, with its leading one
LOW_BITS, HIGH_SHIFT = 2**BITS - 1, 64 - BITS


def generator(seed: int, purpose: str, epoch: int = 0, step: int = 0, device: str = "cpu") -> torch.Generator:
    """Return the generator that belongs to (seed, purpose, epoch, step).

    Args:
        seed: The seed of the whole run.
        purpose: What the draws are for, such as "order"; different purposes draw independently.
        epoch: The epoch.
        step: The step within the epoch.
        device: The device of the generator.
    Returns:
        A new generator; equal arguments give equal draws.
    Example:
        >>> bool(torch.rand(1, generator=generator(0, "order")) == torch.rand(1, generator=generator(0, "order")))
        True
    """
    return torch.Generator(device).manual_seed(hash_key(seed, purpose, epoch, step))


@contextmanager
def seeded(
    seed: int, purpose: str, epoch: int = 0, step: int = 0, device: torch.device | str = "cpu"
) -> Iterator[None]:
    """Seed, within the block, torch's global generators, from which modules draw; afterwards they are as before.

    Args:
        seed: As for `generator`, as are purpose, epoch and step.
        purpose: What the draws are for.
        epoch: The epoch.
        step: The step within the epoch.
        device: Where modules compute, besides the CPU.
    Example:
        >>> with seeded(0, "dropout"):
        ...     first = torch.rand(1)
        >>> with seeded(0, "dropout"):
        ...     bool(torch.rand(1) == first)
        True
    """
    device, key = torch.device(device), hash_key(seed, purpose, epoch, step)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(key)  # torch.manual_seed would change those of all devices
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(key)
        yield


def hash_key(seed: int, purpose: str, epoch: int = 0, step: int = 0) -> int:
    """Return the 63-bit key that belongs to (seed, purpose, epoch, step)."""
    digest = hashlib.blake2b(f"{seed}/{purpose}/{epoch}/{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def uniform(key: int, index: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw uniform numbers from [0, 1), multiples of 2^-24, on the device of `index`.

    Args:
        key: From `hash_key`.
        index: The numbers of the samples, int64; each decides the draws of its row.
        shape: The shape of a row.
        dtype: Of the result.
    Returns:
        A tensor (len(index), *shape).
    Example:
        >>> rows = uniform(hash_key(0, "start"), torch.tensor([7, 3, 7]), (2,))
        >>> torch.equal(rows[0], rows[2]), torch.equal(rows[0], rows[1])
        (True, False)
    """
    size = math.prod(shape)
    bits = _hash(key, index, -(-size // 2))
    out = torch.empty(len(index), 2, bits.shape[1], dtype=dtype, device=index.device)
    out[:, 0] = bits & LOW_BITS
    out[:, 1] = bits.bitwise_right_shift_(HIGH_SHIFT).bitwise_and_(LOW_BITS)
    return out.mul_(2.0**-BITS).flatten(1)[:, :size].reshape(len(index), *shape)


def normal(key: int, index: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw standard normal numbers by the Box-Muller transform; arguments as for `uniform`."""
    if index.device.type == "mps":  # which has no float64
        return normal(key, index.cpu(), shape, dtype).to(index.device)
    pairs = uniform(key, index, (2, *shape), torch.float64)
    lengths = pairs[:, 0].neg_().add_(1).log_().mul_(-2).sqrt_()  # 1 - u is never 0
    return lengths.mul_(pairs[:, 1].mul_(2 * math.pi).cos_()).to(dtype)


def _hash(key: int, index: Tensor, count: int) -> Tensor:
    """Return `count` 64-bit hashes per row: the SplitMix64 sequences whose seeds are the hashes of key and index."""
    seeds = _mix_(index.to(torch.int64).mul(GAMMA).add_(key))
    counters = torch.arange(1, count + 1, device=index.device).mul_(GAMMA)
    return _mix_(seeds[:, None] + counters)


def _mix_(z: Tensor) -> Tensor:
    """Mix the bits of 64-bit numbers in place: SplitMix64's finaliser. Products overflow on purpose."""
    for shift, factor in zip(SHIFTS, (*FACTORS, None), strict=True):
        z.bitwise_xor_((z >> shift).bitwise_and_(2 ** (64 - shift) - 1))  # >> repeats the sign; clear its copies
        if factor is not None:
            z.mul_(factor)
    return z
