"""What is found is kept: an evaluation cut short anywhere ends as one that was not; files of no use are not used."""

import errno
import os
import re
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sihg.errors import InputError
from sihg.robust.attacks import APGD, PGD, Attack, Natural, Noise
from sihg.robust.attacks import runner as cascade
from sihg.robust.attacks.base import margins
from sihg.robust.attacks.runner import Outcome, run_attacks
from sihg.robust.data.samples import Samples, as_samples
from sihg.robust.evaluation import partial as ledger
from sihg.robust.evaluation.partial import FileLedger, LedgerWarning
from tests.robust.attacks.test_pgd import assert_inside
from tests.robust.methods.nets import net, samples

N, PARTS = 300, 5  # samples, and parts of 64 of them
ABOUT: dict[str, Any] = {"weights": "a", "eps": 0.1}
PLANS: Mapping[str, Mapping[str, Attack]] = {
    "transfer:a: b": {"transfer:a: b": Noise(eps=0.1, draws=1)},
    "both": {"natural": Natural(), "pgd: small": PGD(eps=0.05, steps=2), "pgd": PGD(eps=0.12, steps=3)},
    "natural": {"natural": Natural()},
}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cascade, "rows_at_once", lambda _shape: 64)
    monkeypatch.setattr(ledger, "EVERY", 0.0)


@cache
def model() -> nn.Module:
    return net("table", dtype=torch.float32).eval()


@cache
def data() -> Samples:
    return as_samples(samples(N, (6,), dtype=torch.float32))


class CutError(Exception):
    """The end of a run, for which nobody asked."""


def run(book: FileLedger | None, parts: float = float("inf"), plans: Any = PLANS) -> list[Outcome]:
    """Attack; after so many parts the run is cut short."""
    heard = 0

    def progress(_name: str, _total: int) -> Callable[[int], None]:
        def hear(_done: int) -> None:
            nonlocal heard
            heard += 1
            if heard >= parts:
                raise CutError

        return hear

    return run_attacks(model(), data(), plans, progress=progress, ledger=book)


def found(outcomes: list[Outcome]) -> list[Any]:
    """All of it but the seconds."""
    every = [stage for one in outcomes for stage in (*one.stages, one)]
    arrays = [torch.stack([one.attacked, one.broken, one.prediction, one.margin.nan_to_num(-99.0)]) for one in every]
    numbers = [(one.attack, one.passes, one.forwards, one.done, one.remark) for one in every]
    return [[a.tolist() for a in arrays], numbers]


def test_a_run_cut_short_after_any_part_ends_alike(tmp_path: Path) -> None:
    whole = run(None)
    assert 0.1 < whole[1].accuracy < 0.9
    cuts = 0
    for parts in range(1, 100, 2):
        path = tmp_path / f"{parts}.npz"
        try:
            run(FileLedger(path, ABOUT), parts)
        except CutError:
            cuts += 1
        else:
            break
        again = FileLedger(path, ABOUT)
        assert again.verdicts > 0
        assert found(run(again)) == found(whole)
    assert 2 * cuts > 3 * PARTS


def test_what_is_known_is_not_attacked_again(tmp_path: Path) -> None:
    book = FileLedger(tmp_path / "a.npz", ABOUT)
    run(book)
    passes = []
    hook = model().register_forward_pre_hook(lambda _module, inputs: passes.append(len(inputs[0])))
    again = run(FileLedger(tmp_path / "a.npz", ABOUT))
    hook.remove()
    assert passes == []
    assert found(again) == found(run(None))
    book.forget()
    book.forget()  # whether or not there is a file
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("about", [{**ABOUT, "eps": 0.2}, {**ABOUT, "weights": "b"}, {}])
def test_another_question_begins_anew(about: dict[str, Any], tmp_path: Path) -> None:
    run(FileLedger(tmp_path / "a.npz", ABOUT))
    assert FileLedger(tmp_path / "a.npz", ABOUT).verdicts > 0
    assert FileLedger(tmp_path / "a.npz", about).verdicts == 0
    assert FileLedger(tmp_path / "a.npz", ABOUT, tmp_path / "points.npy").verdicts == 0  # its points are not known


def test_damaged_files_are_named_and_not_used(tmp_path: Path) -> None:
    """Files cut off, of another kind, and with a byte changed, some of which are of no account in an archive."""
    path = tmp_path / "a.npz"
    run(FileLedger(path, ABOUT))
    whole = path.read_bytes()
    damaged = [whole[: len(whole) * part // 8] for part in range(8)]
    damaged += [b"not an archive", b"\x93NUMPY\x01\x00" + whole, whole[::-1]]
    method = whole.index(b"PK\x01\x02") + 10
    damaged += [whole[:method] + b"\x63" + whole[method + 1 :]]  # packed in a way that nobody knows
    for place in np.random.default_rng(0).integers(len(whole), size=60):
        damaged.append(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
    warned = []
    for content in damaged:
        path.write_bytes(content)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            book = FileLedger(path, ABOUT)
        warned.append(len(caught))
        for one in caught:
            assert one.category is LedgerWarning
            assert re.fullmatch(rf"{path} cannot be read \(.+\): the evaluation begins anew", str(one.message))
            assert book.verdicts == 0
    assert warned[:12] == [1] * 12
    assert sum(warned) > 40


def test_a_full_disk_is_told_once_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def full(*_: Any, **__: Any) -> None:
        tries.append(1)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(np, "savez", full)
    with pytest.warns(LedgerWarning, match=r"cannot write .*No space left.*; an evaluation cut short now begins anew"):
        outcomes = run(FileLedger(tmp_path / "a.npz", ABOUT))
    assert len(tries) == 1
    assert found(outcomes) == found(run(None))
    assert list(tmp_path.iterdir()) == []


def test_files_are_written_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "EVERY", 3600.0)
    run(FileLedger(tmp_path / "a.npz", ABOUT))
    assert list(tmp_path.iterdir()) == []


def expected_points(outcomes: list[Outcome]) -> tuple[Tensor, Tensor]:
    """Which samples some attack broke, and the smallest margin of those that hold."""
    stages = [stage for one in outcomes for stage in (one.stages or (one,))]
    broken = torch.stack([one.attacked & one.broken for one in stages]).any(0)
    margin = torch.stack([one.margin.nan_to_num(torch.inf) for one in stages]).amin(0)
    return broken, margin


def test_points_are_those_that_broke_or_came_nearest(tmp_path: Path) -> None:
    points = tmp_path / "new" / "a.points.npy"
    book = FileLedger(tmp_path / "new" / "a.npz", ABOUT, points)
    outcomes = run(book)
    book.forget()
    broken, margin = expected_points(outcomes)
    found = torch.from_numpy(np.load(points))
    assert found.shape == (N, 6)
    logits = model()(found)
    assert torch.equal(logits.argmax(1) != data().y, broken)
    assert 0.1 < float(broken.float().mean()) < 0.9
    torch.testing.assert_close(margins(logits, data().y)[~broken], margin[~broken], rtol=0, atol=1e-6)
    assert_inside(PGD(eps=0.12), data().x, found)


def test_points_of_a_run_cut_short_are_the_same(tmp_path: Path) -> None:
    def points(name: str, parts: int) -> bytes:
        npy = tmp_path / f"{name}.npy"
        for most in (parts, float("inf")):
            try:
                run(FileLedger(tmp_path / f"{name}.npz", ABOUT, npy), most)
            except CutError:
                continue
        return npy.read_bytes()

    whole = points("whole", 1000)
    assert all(points(f"cut{parts}", parts) == whole for parts in (1, PARTS, PARTS + 2, 3 * PARTS))


def test_points_that_are_gone_are_made_anew(tmp_path: Path) -> None:
    npz, npy = tmp_path / "a.npz", tmp_path / "a.npy"
    run(FileLedger(npz, ABOUT, npy))
    whole = npy.read_bytes()
    npy.unlink()
    book = FileLedger(npz, ABOUT, npy)
    assert book.verdicts == 0
    run(book)
    assert npy.read_bytes() == whole


def test_points_of_another_size_are_refused(tmp_path: Path) -> None:
    npz, npy = tmp_path / "a.npz", tmp_path / "a.npy"
    with pytest.raises(CutError):
        run(FileLedger(npz, ABOUT, npy), 2)
    np.save(npy, np.zeros((N, 5), np.float32))
    with pytest.raises(InputError, match=r"a.npy is of \(300, 5\) float32, not \(300, 6\) float32: remove it"):
        run(FileLedger(npz, ABOUT, npy))
    npy.write_bytes(b"not points")
    with pytest.raises(InputError, match=r"cannot write .*a.npy \(.*\): free the place, or leave out --points"):
        run(FileLedger(npz, ABOUT, npy))


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="only where a file's place can be asked for")
def test_points_that_find_no_place_are_told_of_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InputError, match=r"cannot write .*No space left on device\): free the place"):
        run(FileLedger(tmp_path / "a.npz", ABOUT, tmp_path / "a.npy"))


def test_what_a_reader_should_know_is_kept(tmp_path: Path) -> None:
    """Three classes are fewer than the loss of APGD-T needs."""
    three, plans = nn.Linear(6, 3), {"apgd-t": {"apgd-t": APGD(eps=0.1, loss="dlr-t", steps=2)}}
    some = as_samples((data().x, data().y % 3))
    whole, again = (run_attacks(three, some, plans, ledger=FileLedger(tmp_path / "a.npz", ABOUT)) for _ in range(2))
    assert "the difference of two logits" in whole[0].remark
    assert found(again) == found(whole)


def test_what_is_known_is_a_copy(tmp_path: Path) -> None:
    book = FileLedger(tmp_path / "a.npz", ABOUT)
    run(book)
    known = book.known("natural")
    assert known is not None
    known.broken.logical_not_()
    known.done = 0
    kept = book.known("natural")
    assert kept is not None
    assert (kept.done, bool((kept.broken == known.broken).any())) == (N, False)
