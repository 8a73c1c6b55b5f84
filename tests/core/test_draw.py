"""Randomness is a function of its arguments; the noise of a sample is a hash that a few lines of Python repeat."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sihg.core.draw import generator, hash_key, normal, uniform

MASK = 2**64 - 1
KEY = hash_key(0, "start")
MANY = torch.arange(500)  # samples, each with 2,000 numbers
N = 500 * 2000
SIGMAS = 6  # exceeded by chance once in 10^9; every draw is fixed, so that a test passes always or never


def test_equal_arguments_equal_draws_and_others_differ() -> None:
    arguments = [(0, "a", 0, 0), (1, "a", 0, 0), (0, "b", 0, 0), (0, "a", 1, 0), (0, "a", 0, 1), (0, "a/0", 0, 0)]
    draws = [torch.rand(8, generator=generator(*a)) for a in arguments]
    again = [torch.rand(8, generator=generator(*a)) for a in arguments]
    for i, one in enumerate(draws):
        assert torch.equal(one, again[i])
        assert not any(torch.equal(one, other) for other in draws[:i])
    assert len({hash_key(*a) for a in arguments}) == len(arguments)
    assert all(0 <= hash_key(*a) < 2**63 for a in arguments)


# ---- against the published generator


def mix(z: int) -> int:
    """SplitMix64's finaliser as published, on unsigned numbers."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def splitmix(seed: int, count: int) -> list[int]:
    return [mix(seed + (i + 1) * 0x9E3779B97F4A7C15 & MASK) for i in range(count)]


def plain_uniform(key: int, sample: int, size: int) -> list[float]:
    hashes = splitmix(mix(key + sample * 0x9E3779B97F4A7C15 & MASK), -(-size // 2))
    return [(h & 0xFFFFFF) / 2**24 for h in hashes] + [(h >> 40) / 2**24 for h in hashes][: size - len(hashes)]


def test_the_reference_is_splitmix64() -> None:
    """The first numbers of its authors' program for the seed 1234567."""
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert splitmix(1234567, 4) == known


@pytest.mark.parametrize("key", [0, 1, KEY, 2**63 - 1])
@pytest.mark.parametrize("shape", [(1,), (7,), (2, 3), (3, 4, 5)])
def test_uniform_numbers_are_those_of_the_reference(key: int, shape: tuple[int, ...]) -> None:
    index = torch.tensor([0, 5, 1, 2**31, 2**40 + 3, 2**62])
    found = uniform(key, index, shape)
    assert found.shape == (6, *shape)
    for row, sample in zip(found, index.tolist(), strict=True):
        assert row.flatten().tolist() == plain_uniform(key, sample, math.prod(shape))


def test_normal_numbers_are_box_mullers() -> None:
    found = normal(KEY, torch.tensor([3, 8]), (5,), torch.float64)
    for row, sample in zip(found.tolist(), (3, 8), strict=True):
        u = plain_uniform(KEY, sample, 10)
        by_hand = [
            math.sqrt(-2 * math.log(1 - a)) * math.cos(2 * math.pi * b) for a, b in zip(u[:5], u[5:], strict=True)
        ]
        assert row == pytest.approx(by_hand, rel=1e-12, abs=1e-14)


# ---- what a sample gets


@pytest.mark.parametrize("draw", [uniform, normal])
def test_a_sample_has_the_same_noise_in_any_batch(draw: Callable[..., Tensor]) -> None:
    whole = draw(KEY, torch.arange(100), (3, 4))
    for index in (torch.tensor([7]), torch.tensor([99, 7, 0]), torch.arange(99, -1, -1), torch.arange(1, 100, 4)):
        assert torch.equal(draw(KEY, index, (3, 4)), whole[index])
        assert torch.equal(draw(KEY, index.int(), (3, 4)), whole[index])
    index = torch.tensor([5, 2])
    draw(KEY, index, (2,))
    assert index.tolist() == [5, 2]  # which is not changed


def test_formats() -> None:
    single, double = (uniform(KEY, MANY, (10,), dtype) for dtype in (torch.float32, torch.float64))
    assert (single.dtype, double.dtype) == (torch.float32, torch.float64)
    assert torch.equal(single.double(), double)  # float32 holds 24 bits
    assert bool(((double * 2**24).frac() == 0).all())
    single, double = (normal(KEY, MANY, (10,), dtype) for dtype in (torch.float32, torch.float64))
    assert torch.equal(single, double.float())


@pytest.mark.parametrize("draw", [uniform, normal])
def test_nothing_to_draw(draw: Callable[..., Tensor]) -> None:
    assert draw(KEY, torch.arange(0), (2, 3)).shape == (0, 2, 3)
    assert draw(KEY, torch.arange(4), (0, 3)).shape == (4, 0, 3)


# ---- statistics


def close(mean: float, expected: float, deviation: float, count: int = N) -> bool:
    """Whether a mean of `count` numbers is as near to its expectation as chance brings it."""
    return abs(mean - expected) <= SIGMAS * deviation / math.sqrt(count)


@pytest.fixture(scope="module", name="u")
def u_() -> Tensor:
    return uniform(KEY, MANY, (2000,), torch.float64)


def test_uniform_numbers_have_their_moments_and_fill_their_cells(u: Tensor) -> None:
    assert 0 <= float(u.min()) < 1e-5
    assert 1 - 1e-5 < float(u.max()) < 1
    assert close(float(u.mean()), 1 / 2, math.sqrt(1 / 12))
    assert close(float(((u - 0.5) ** 2).mean()), 1 / 12, math.sqrt(1 / 180))
    for axis, count in ((0, 500), (1, 2000)):  # each position over the samples, each sample over its positions
        means = u.mean(axis)
        assert float((means - 0.5).abs().max()) <= SIGMAS * math.sqrt(1 / 12 / count)
    for bits in (u * 256, u * 2**16 % 256, u * 2**24 % 256):  # the highest bits and the lowest
        counts = bits.long().flatten().bincount(minlength=256)
        chi = float(((counts - N / 256) ** 2 / (N / 256)).sum())
        assert abs(chi - 255) <= SIGMAS * math.sqrt(2 * 255)


def test_neighbours_are_independent(u: Tensor) -> None:
    """Positions, samples, both halves of a hash, purposes, epochs and steps; each pair is drawn in the same order."""
    other = {
        "position": (u[:, :-1], u[:, 1:]),
        "sample": (u[:-1], u[1:]),
        "half": (u[:, :1000], u[:, 1000:]),
        "far": (u[:-64], u[64:]),
        "transposed": (u[:, :500], u[:, :500].T),
    }
    for purpose, epoch, step in (("length", 0, 0), ("start", 1, 0), ("start", 0, 1)):
        drawn = uniform(hash_key(0, purpose, epoch, step), MANY, (2000,), torch.float64)
        other[f"{purpose} {epoch} {step}"] = u, drawn
    for name, (a, b) in other.items():
        product = (a - 0.5) * (b - 0.5)
        assert close(float(product.mean()), 0.0, 1 / 12, product.numel()), name


def test_no_hash_comes_twice() -> None:
    """All 48 bits kept of each: of 10^6, of two purposes, chance makes two equal once in 500 times."""
    seen = []
    for purpose in ("start", "fresh"):
        drawn = uniform(hash_key(0, purpose), torch.arange(100), (2, 5000), torch.float64)
        seen.append((drawn[:, 0] * 2**48 + drawn[:, 1] * 2**24).flatten())
    assert len(torch.cat(seen).unique()) == 100 * 5000 * 2


def test_normal_numbers_have_their_moments() -> None:
    z = normal(KEY, MANY, (2000,), torch.float64)
    assert bool(torch.isfinite(z).all())
    for power, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert close(float((z**power).mean()), expected, math.sqrt(variance))
    for bound in (-2.0, -1.0, 0.0, 0.5, 3.0):
        p = 0.5 * math.erfc(-bound / math.sqrt(2))
        assert close(float((z < bound).double().mean()), p, math.sqrt(p * (1 - p)))
    product = z[:, :-1] * z[:, 1:]
    assert close(float(product.mean()), 0.0, 1.0, product.numel())
