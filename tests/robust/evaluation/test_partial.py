"""Partial results: an evaluation interrupted anywhere ends like one that was not; other files are not used."""

import errno
import os
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sihg.robust.attacks import APGD, PGD, Attack, Natural, Noise
from sihg.robust.attacks import runner as cascade
from sihg.robust.attacks.outcome import Outcome, join_outcomes
from sihg.robust.attacks.runner import Part, attack_parts
from sihg.robust.data.samples import Samples, as_samples
from sihg.robust.evaluation import partial
from sihg.robust.evaluation.partial import EvaluationWarning, PartialResults
from sihg.robust.gradients import margins
from sihg.store.arrays import write_arrays
from sihg.store.run_folder import FolderHandle
from sihg.store.schema import Json
from tests.refused import refused
from tests.robust.attacks.trained_models import assert_inside
from tests.robust.methods.nets import net, samples

N, PARTS = 300, 5  # samples, and parts of 64 of them
Plans = Mapping[str, Mapping[str, Attack]]
IDENTITY: dict[str, Json] = {"weights": "a", "eps": 0.1}
PLANS: Plans = {
    "transfer:a: b": {"transfer:a: b": Noise(eps=0.1, draws=1)},
    "both": {"natural": Natural(), "pgd: small": PGD(eps=0.05, steps=2), "pgd": PGD(eps=0.12, steps=3)},
    "natural": {"natural": Natural()},
}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cascade, "rows_per_chunk", lambda _shape: 64)
    monkeypatch.setattr(partial, "SECONDS_BETWEEN_WRITES", 0.0)


@cache
def model() -> nn.Module:
    return net("table", dtype=torch.float32).eval()


@cache
def data() -> Samples:
    return as_samples(samples(N, (6,), dtype=torch.float32))


class CutError(Exception):
    """The end of a run, for which nobody asked."""


def run(
    kept: PartialResults | None, parts: float = float("inf"), plans: Plans = PLANS, net: nn.Module | None = None
) -> list[Outcome]:
    """Attack as an evaluation does; after so many parts the run is interrupted."""
    outcomes, done = {}, 0
    for part in attack_parts(net or model(), data(), plans, known=kept.known() if kept else None):
        outcomes[part.key] = part.outcome
        if kept is not None:
            kept.keep(part)
        done += part.verdict is not None
        if done >= parts and part.verdict is not None:
            raise CutError
    return join_outcomes(plans, outcomes)


def book(folder: Path, identity: dict[str, Json] | None = None, *, points: bool = False) -> PartialResults:
    return PartialResults(folder, "a", IDENTITY if identity is None else identity, points=points)


def found(outcomes: list[Outcome]) -> list[Any]:
    """All of it but the seconds."""
    every = [stage for one in outcomes for stage in (*one.stages, one)]
    arrays = [torch.stack([one.attacked, one.broken, one.prediction, one.margin.nan_to_num(-99.0)]) for one in every]
    numbers = [(one.attack, one.passes, one.forwards, one.done, one.remark) for one in every]
    return [[a.tolist() for a in arrays], numbers]


def test_a_run_interrupted_after_any_part_ends_alike(tmp_path: Path) -> None:
    whole = run(None)
    assert 0.1 < whole[1].accuracy < 0.9
    cuts = 0
    for parts in range(1, 100, 2):
        folder = tmp_path / str(parts)
        try:
            run(book(folder), parts)
        except CutError:
            cuts += 1
        else:
            break
        again = book(folder)
        assert again.verdicts > 0
        assert found(run(again)) == found(whole)
    assert 2 * cuts > 3 * PARTS


def test_known_verdicts_are_not_computed_again(tmp_path: Path) -> None:
    first = book(tmp_path)
    run(first)
    passes = []
    hook = model().register_forward_pre_hook(lambda _module, inputs: passes.append(len(inputs[0])))
    again = run(book(tmp_path))
    hook.remove()
    assert passes == []
    assert found(again) == found(run(None))
    first.remove()
    first.remove()  # whether or not there is a file
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("identity", "points"),
    [({**IDENTITY, "eps": 0.2}, False), ({**IDENTITY, "weights": "b"}, False), ({}, False), (IDENTITY, True)],
)
def test_results_of_another_evaluation_are_not_used(identity: dict[str, Json], points: bool, tmp_path: Path) -> None:
    run(book(tmp_path))
    assert book(tmp_path).verdicts > 0
    np.save(tmp_path / "a.points.npy", np.zeros((N, 6), np.float32))
    with pytest.warns(EvaluationWarning, match="a.partial.npz is not used"):
        assert book(tmp_path, identity, points=points).verdicts == 0


def test_damaged_files_are_named_and_not_used(tmp_path: Path) -> None:
    """Files cut off, of another kind, and with a byte changed."""
    path = tmp_path / "a.partial.npz"
    run(book(tmp_path))
    whole = path.read_bytes()
    damaged = [whole[: len(whole) * part // 8] for part in range(8)]
    damaged += [b"not an archive", b"\x93NUMPY\x01\x00" + whole, whole[::-1]]
    method = whole.index(b"PK\x01\x02") + 10
    damaged += [whole[:method] + b"\x63" + whole[method + 1 :]]  # an unknown compression
    for place in np.random.default_rng(0).integers(len(whole), size=60):
        damaged.append(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
    warned = []
    for content in damaged:
        path.write_bytes(content)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            kept = book(tmp_path)
        warned.append(len(caught))
        for warning in caught:
            assert warning.category is EvaluationWarning
            assert str(warning.message).startswith(f"{path} is not used (")
            assert "\n" not in str(warning.message)
            assert kept.verdicts == 0
    assert warned == [1] * len(damaged)


def test_verdicts_that_somebody_else_has_written_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without a seal, with the seal that anybody can make, and with that of another user."""
    path = tmp_path / "a.partial.npz"
    run(book(tmp_path))
    mine = path.read_bytes()
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    np.savez(path, **arrays)
    with pytest.warns(EvaluationWarning, match="damaged, or not written by you"):
        assert book(tmp_path).verdicts == 0
    for key in (None, b"k" * 32):
        write_arrays(path, arrays, key=key)
        with pytest.warns(EvaluationWarning, match="damaged, or not written by you"):
            assert book(tmp_path).verdicts == 0
    path.write_bytes(mine)
    assert book(tmp_path).verdicts > 0
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    with pytest.warns(EvaluationWarning, match="damaged, or not written by you"):
        assert book(tmp_path).verdicts == 0


def test_without_a_key_an_evaluation_ends_but_starts_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial, "user_key", lambda: None)
    assert found(run(book(tmp_path))) == found(run(None))
    with pytest.warns(EvaluationWarning, match="a.partial.npz is not used"):
        assert book(tmp_path).verdicts == 0


def test_a_folder_that_was_moved_gets_no_files(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    kept = PartialResults(folder / "evaluation", "a", IDENTITY, points=True, handle=FolderHandle(folder))
    with pytest.raises(CutError):
        run(kept, 2)
    folder.rename(tmp_path / "moved")
    with refused("folder-moved", path=folder):
        kept.write()
    early = PartialResults(folder / "evaluation", "a", IDENTITY, points=True, handle=kept._handle)
    with refused("folder-moved", path=folder):
        run(early, 1)
    assert not folder.exists()


@pytest.mark.parametrize("kind", ["link", "hard link"])
def test_points_that_are_also_another_file_are_not_written(tmp_path: Path, kind: str) -> None:
    npy, other = tmp_path / "a.points.npy", tmp_path / "other.npy"
    with pytest.raises(CutError):
        run(book(tmp_path, points=True), 2)
    before = npy.read_bytes()
    if kind == "link":
        npy.rename(other)
        npy.symlink_to(other)
        with pytest.warns(EvaluationWarning, match="is not used"):
            kept = book(tmp_path, points=True)
        run(kept)  # starts over with a file of its own
        assert not npy.is_symlink()
    else:
        other.hardlink_to(npy)
        with refused("linked-file", path=npy):
            run(book(tmp_path, points=True))
    assert other.read_bytes() == before


def no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_told_once_and_the_run_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def full(*_: object, **__: object) -> None:
        tries.append(1)
        no_space()

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(EvaluationWarning, match="No space left") as caught:
        outcomes = run(book(tmp_path))
    assert len(tries) == len(caught) == 1
    assert found(outcomes) == found(run(None))
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_writes_the_file_or_says_that_it_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial, "SECONDS_BETWEEN_WRITES", 3600.0)
    with pytest.raises(CutError), book(tmp_path) as kept:
        run(kept, 3)
    assert book(tmp_path).verdicts == kept.verdicts == 3 * 64
    monkeypatch.setattr(os, "fsync", no_space)
    lost = pytest.warns(EvaluationWarning, match="results so far are lost")
    with lost, pytest.raises(CutError), book(tmp_path / "full") as kept:
        run(kept, 3)
    assert kept.verdicts == 0
    with book(tmp_path / "unused") as kept:
        run(kept)
    assert not (tmp_path / "unused").exists()  # no interruption, and not enough time for a file


def expected_points(outcomes: list[Outcome]) -> tuple[Tensor, Tensor]:
    """Which samples some attack broke, and the smallest margin of those that hold."""
    stages = [stage for one in outcomes for stage in (one.stages or (one,))]
    broken = torch.stack([one.attacked & one.broken for one in stages]).any(0)
    margin = torch.stack([one.margin.nan_to_num(torch.inf) for one in stages]).amin(0)
    return broken, margin


@pytest.mark.parametrize("in_memory", [True, False])
def test_points_are_those_that_broke_or_came_nearest(in_memory: bool, tmp_path: Path) -> None:
    kept = PartialResults(None if in_memory else tmp_path / "new", "a", IDENTITY, points=True)
    outcomes = run(kept)
    kept.remove()
    broken, margin = expected_points(outcomes)
    points = kept.points
    assert points is not None
    assert points.shape == (N, 6)
    logits = model()(points)
    assert torch.equal(logits.argmax(1) != data().y, broken)
    assert 0.1 < float(broken.float().mean()) < 0.9
    torch.testing.assert_close(margins(logits, data().y)[~broken], margin[~broken], rtol=0, atol=1e-6)
    assert_inside(PGD(eps=0.12), data().x, points)
    if not in_memory:
        assert np.array_equal(np.load(tmp_path / "new" / "a.points.npy"), points.numpy())


def test_a_later_attack_does_not_replace_a_point_that_broke_its_sample() -> None:
    first: Plans = {"first": {"first": PGD(eps=0.12, steps=3)}}
    second: Plans = {"second": {"second": PGD(eps=0.05, steps=5)}}
    alone, both = (PartialResults(None, "a", IDENTITY, points=True) for _ in range(2))
    (broken,) = (outcome.broken for outcome in run(alone, plans=first))
    again = run(both, plans={**first, **second})[1].broken
    assert int((broken & again).sum()) > 10
    assert alone.points is not None
    assert both.points is not None
    assert torch.equal(both.points[broken], alone.points[broken])


def test_points_of_an_interrupted_run_are_the_same(tmp_path: Path) -> None:
    def points(name: str, parts: int) -> bytes:
        for most in (parts, float("inf")):
            try:
                run(book(tmp_path / name, points=True), most)
            except CutError:
                continue
        return (tmp_path / name / "a.points.npy").read_bytes()

    whole = points("whole", 1000)
    assert all(points(f"cut{parts}", parts) == whole for parts in (1, PARTS, PARTS + 2, 3 * PARTS))


def test_points_of_a_finished_run_are_read_again(tmp_path: Path) -> None:
    kept = book(tmp_path, points=True)
    run(kept)
    again = book(tmp_path, points=True)
    run(again)
    assert kept.points is not None
    assert again.points is not None
    assert torch.equal(kept.points, again.points)


def test_lost_points_are_made_anew(tmp_path: Path) -> None:
    npy = tmp_path / "a.points.npy"
    run(book(tmp_path, points=True))
    whole = npy.read_bytes()
    npy.unlink()
    with pytest.warns(EvaluationWarning, match="is not used"):
        kept = book(tmp_path, points=True)
    assert kept.verdicts == 0
    run(kept)
    assert npy.read_bytes() == whole


def test_points_of_another_size_are_refused(tmp_path: Path) -> None:
    npy = tmp_path / "a.points.npy"
    with pytest.raises(CutError):
        run(book(tmp_path, points=True), 2)
    np.save(npy, np.zeros((N, 5), np.float32))
    with refused("points-file-shape", path=npy):
        run(book(tmp_path, points=True))
    npy.write_bytes(b"not points")
    with refused("cannot-write-points", path=npy):
        run(book(tmp_path, points=True))


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="only where the space of a file can be reserved")
def test_points_without_space_are_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with refused("cannot-write-points", path=tmp_path / "a.points.npy"):
        run(book(tmp_path, points=True))


def test_remarks_on_attacks_are_kept(tmp_path: Path) -> None:
    """Three classes are fewer than the loss of APGD-T needs."""
    three, plans = nn.Linear(6, 3), {"apgd-t": {"apgd-t": APGD(eps=0.1, loss="dlr-t", steps=2)}}
    some = as_samples((data().x, data().y % 3))
    whole, again = ([part.outcome for part in three_parts(three, some, plans, tmp_path)][-1:] for _ in range(2))
    assert whole[0].remark
    assert found(again) == found(whole)


def three_parts(model: nn.Module, some: Samples, plans: Plans, folder: Path) -> Iterator[Part]:
    kept = book(folder)
    for part in attack_parts(model, some, plans, known=kept.known()):
        kept.keep(part)
        yield part


def test_known_outcomes_are_copies(tmp_path: Path) -> None:
    kept = book(tmp_path)
    run(kept)
    known = kept.known()["natural"]
    known.broken.logical_not_()
    known.done = 0
    again = kept.known()["natural"]
    assert (again.done, bool((again.broken == known.broken).any())) == (N, False)
