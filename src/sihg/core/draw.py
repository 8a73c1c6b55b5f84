"""Draw random numbers as a function of (seed, purpose, epoch, step), so that no generator state has to be saved."""

import hashlib

import torch


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
    digest = hashlib.blake2b(f"{seed}/{purpose}/{epoch}/{step}".encode(), digest_size=8).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest, "little") >> 1)
