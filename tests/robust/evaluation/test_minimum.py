"""Smallest distances: closed forms, verified points, the curve, records, and interrupted searches."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import sihg
from sihg.robust.attacks import runner
from sihg.robust.attacks.runner import Part
from sihg.robust.evaluation import partial
from sihg.robust.evaluation.partial import PartialResults
from sihg.store.schema import MinimumRecord, read_evaluation
from sihg.store.statistics import wilson
from tests.refused import refused
from tests.robust.attacks.linear_models import exact_distances, linear_model
from tests.robust.planted import digits, healthy


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_linear_model_falls_at_its_exact_distances(norm: str) -> None:
    """margin / |w_y - w_j| in the dual norm: Linf 1, L2 2."""
    model, x, y = linear_model(n=50)
    exact = exact_distances(model, x, y, norm)
    y = y.clone()
    y[:4] = (y[:4] + 1) % 5
    exact[:4] = 0.0
    most = float(exact.quantile(0.9))
    found = sihg.minimum_eps(model, (x, y), max_eps=most, norm=norm, bounds=None, attacks="fab-t-10,pgd-5")
    sure = exact < 0.99 * most
    torch.testing.assert_close(found.distances[sure].double(), exact[sure], rtol=0.003, atol=1e-7)
    assert bool(found.distances[exact > 1.001 * most].isinf().all())
    assert [name for name, far in zip(found.attacks, exact.tolist(), strict=True) if far > 1.001 * most] == [""] * 5
    for radius in (0.0, 0.3 * most, 0.7 * most):
        assert abs(found.accuracy(radius) - float((exact > radius).double().mean())) <= 1 / 50


def test_points_are_misclassified_at_their_distance() -> None:
    samples = digits().take(slice(80))
    found = sihg.minimum_eps(healthy(), samples, max_eps=0.2, attacks="deepfool,pgd-5,fab-t-5", points=True)
    points, x = found.points, samples.floats()
    assert points is not None
    broken = found.distances.isfinite()
    assert 0.5 < float(broken.float().mean()) < 1
    assert torch.equal(healthy()(points).argmax(1) != samples.y, broken)
    far = (points - x).flatten(1).abs().amax(1)
    torch.testing.assert_close(far[broken], found.distances[broken], rtol=0, atol=0)
    assert torch.equal(points[~broken], x[~broken])
    assert set(found.attacks) == {"", "deepfool", "pgd-5", "fab-t-5"}
    for outcome in found.outcomes:
        mine = torch.tensor([name == outcome.attack for name in found.attacks])
        assert torch.equal(outcome.distance[mine], found.distances[mine])
        assert bool((outcome.distance >= found.distances).all())


def test_every_distance_is_an_upper_bound_of_what_evaluate_finds() -> None:
    """Where an evaluation at a radius breaks a sample, that search has found it up to about this radius."""
    samples = digits().take(slice(100))
    found = sihg.minimum_eps(healthy(), samples, max_eps=0.2, attacks="fab-t-20,pgd-10")
    for eps in (0.03, 0.1):
        broken = sihg.evaluate(healthy(), samples, eps=eps, attacks="apgd-ce-20,fab-t-10").broken
        assert int((broken & (found.distances > 1.03 * eps)).sum()) <= 1
        assert not bool((~broken & (1.03 * found.distances < eps)).any())


def test_the_record_has_quantiles_and_the_curve(tmp_path: Path) -> None:
    samples = digits().take(slice(60))
    found = sihg.minimum_eps(healthy(), samples, max_eps="1/5", attacks="deepfool-5,pgd-3")
    path = found.save(tmp_path)
    record = read_evaluation(path)
    assert isinstance(record, MinimumRecord)
    assert [row.attack for row in record.minimum] == ["deepfool-5", "pgd-3", "all"]
    assert (record.max_eps, record.eps[0], record.eps[-1]) == (0.2, 0.0, 0.2)
    distances = found.distances.double().sort().values
    row, curve = record.minimum[-1], record.curves[-1]
    assert row.found == int(distances.isfinite().sum())
    known = [row.lower_quartile, row.median, row.upper_quartile]
    expected = [float(distances[math.ceil(share * 59)]) for share in (0.25, 0.5, 0.75)]
    assert [math.inf if size is None else size for size in known] == expected
    assert (row.mean is None) == (row.found < 60)
    for eps, accuracy, low, high in zip(record.eps, curve.accuracy, curve.low, curve.high, strict=True):
        held = int((found.distances > eps).sum())
        assert accuracy == held / 60 == found.accuracy(eps)
        assert (low, high) == wilson(held, 60)
    assert row.passes == sum(outcome.passes for outcome in found.outcomes)
    lines = str(found).splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["attack", "deepfool-5", "pgd-3", "all"]
    assert sum(line.startswith("accuracy at eps") for line in lines) == 5
    assert repr(found).startswith("<MinimumNorms: median ")
    axes: Any = found.plot(tmp_path / "curve.png").axes[0]
    assert [len(line.get_xdata()) for line in axes.lines] == [61] * 3
    assert (tmp_path / "curve.png").stat().st_size > 0


class CutError(Exception):
    """The end of a search, for which nobody asked."""


def test_an_interrupted_search_ends_like_one_that_was_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "rows_per_chunk", lambda _shape: 64)
    monkeypatch.setattr(partial, "SECONDS_BETWEEN_WRITES", 0.0)
    samples = digits().take(slice(150))
    how = {"max_eps": 0.2, "attacks": "deepfool-5,pgd-3", "points": True}
    whole = sihg.minimum_eps(healthy(), samples, **how)  # type: ignore[arg-type]
    keep, parts = PartialResults.keep, []

    def cut(self: PartialResults, part: Part) -> None:
        keep(self, part)
        parts.append(part)
        if len([part for part in parts if part.verdict is not None]) == 4:  # one of pgd-3
            raise CutError

    monkeypatch.setattr(PartialResults, "keep", cut)
    with pytest.raises(CutError):
        sihg.minimum_eps(healthy(), samples, resume=tmp_path, **how)  # type: ignore[arg-type]
    monkeypatch.setattr(PartialResults, "keep", keep)
    found = sihg.minimum_eps(healthy(), samples, resume=tmp_path, **how)  # type: ignore[arg-type]
    assert torch.equal(found.distances, whole.distances)
    assert found.attacks == whole.attacks
    assert found.points is not None
    assert whole.points is not None
    assert torch.equal(found.points, whole.points)
    assert [outcome.passes for outcome in found.outcomes] == [outcome.passes for outcome in whole.outcomes]


def test_what_is_refused() -> None:
    model, data = torch.nn.Flatten(), (0.9 * torch.eye(4), torch.arange(4))
    with refused("minimum-attack", name="square"):
        sihg.minimum_eps(model, data, max_eps=0.5, attacks="square")
    with refused("eps-scale", eps=2.0):
        sihg.minimum_eps(model, data, max_eps=2)
    with refused("no-attack"):
        sihg.minimum_eps(model, data, max_eps=0.5, attacks="")
    found = sihg.minimum_eps(model, data, max_eps=0.5, attacks="deepfool")
    with refused("radius-not-searched", eps=0.6, max_eps=0.5):
        found.accuracy(0.6)
