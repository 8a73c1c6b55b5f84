"""Randomness as a function of (seed, purpose, epoch, step): no generator state to keep, none to lose."""

import hashlib

import torch


def generator(seed: int, purpose: str, epoch: int = 0, step: int = 0, device: str = "cpu") -> torch.Generator:
    """The generator that belongs to (seed, purpose, epoch, step); equal arguments give equal draws."""
    digest = hashlib.blake2b(f"{seed}/{purpose}/{epoch}/{step}".encode(), digest_size=8).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest, "little") >> 1)
