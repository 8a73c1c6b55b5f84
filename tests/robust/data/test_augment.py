"""Flips and crops: the move of images, of perturbations, and the way back."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sihg.robust.data.augment import Augment, Move
from tests.refused import refused


def plain_move(image: Tensor, down: int, right: int, flipped: bool) -> tuple[Tensor, Tensor]:
    """Pad, crop, flip, pixel by pixel; also which pixels of the image can still be seen."""
    c, h, w = image.shape
    pad = max(abs(down), abs(right))
    padded = torch.zeros(c, h + 2 * pad, w + 2 * pad, dtype=image.dtype)
    padded[:, pad : pad + h, pad : pad + w] = image
    result, visible = torch.zeros_like(image), torch.zeros(h, w, dtype=torch.bool)
    for i in range(h):
        for j in range(w):
            result[:, i, w - 1 - j if flipped else j] = padded[:, pad + i - down, pad + j - right]
            if 0 <= i - down < h and 0 <= j - right < w:
                visible[i - down, j - right] = True
    return result, visible


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    n, c, h, w = (draw(st.integers(1, most)) for most in (4, 3, 6, 6))
    seeded = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    crop = draw(st.integers(0, 8))  # more than the image: nothing is left to see
    move = Augment(flip=draw(st.booleans()), crop=crop).draw(n, seeded)
    x, rest = torch.rand(2, n, c, h, w, generator=seeded, dtype=torch.float64)
    return {"move": move, "x": x, "rest": rest}


@settings(max_examples=60, deadline=None)
@given(cases())
def test_a_move_is_pad_crop_flip_and_has_a_way_back(case: dict[str, Any]) -> None:
    move, x, rest = case["move"], case["x"], case["rest"]
    moved = move.apply(x)
    back = move.back(moved, rest)
    for i, (down, right, flipped) in enumerate(
        zip(move.down.tolist(), move.right.tolist(), move.flipped.tolist(), strict=True)
    ):
        expected, visible = plain_move(x[i], down, right, flipped)
        assert torch.equal(moved[i], expected)
        assert torch.equal(back[i], torch.where(visible, x[i], rest[i]))
    assert torch.equal(move.apply(back), moved)


def test_a_move_of_some_images() -> None:
    x = torch.rand(6, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    move = Augment(crop=2).draw(6, torch.Generator().manual_seed(1))
    chosen = torch.tensor([4, 1])
    assert torch.equal(move.rows(chosen).apply(x[chosen]), move.apply(x)[chosen])


def test_draws_cover_all_shifts_evenly_and_half_are_flipped() -> None:
    move = Augment(flip=True, crop=2).draw(5000, torch.Generator().manual_seed(0))
    places = torch.bincount((move.down + 2) * 5 + move.right + 2, minlength=25)
    assert int(places.min()) > 140
    assert int(places.max()) < 260
    assert abs(float(move.flipped.double().mean()) - 0.5) < 0.03
    assert not Augment(flip=False).draw(50, torch.Generator().manual_seed(0)).flipped.any()


def test_shuffled_hands_the_same_moves_to_others() -> None:
    move = Augment(crop=4).draw(200, torch.Generator().manual_seed(0))
    other = move.shuffled(torch.Generator().manual_seed(1))
    ours, theirs = ((some.down * 100 + some.right) * 2 + some.flipped for some in (move, other))
    assert torch.equal(ours.sort().values, theirs.sort().values)
    assert float((ours == theirs).double().mean()) < 0.05


def test_no_move_at_all() -> None:
    x = torch.rand(3, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    still = Move(torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.bool))
    assert torch.equal(still.apply(x), x)


@pytest.mark.parametrize("shape", [(5,), (3, 8), (1, 4, 8)])
def test_samples_that_cannot_be_moved(shape: tuple[int, ...]) -> None:
    with refused("augment-shape", shape=shape):
        Augment(crop=4).check(shape)
    Augment(crop=4).check((1, 5, 5))


def test_a_negative_crop() -> None:
    with refused("crop-range", crop=-1):
        Augment(crop=-1)
