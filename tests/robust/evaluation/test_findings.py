"""What an evaluation gives to Python: points, records that can be read and reported, resumption, curves."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sihg
from sihg.robust.attacks import PGD, Transfer, runner
from sihg.robust.attacks.registry import Attacks
from sihg.robust.evaluation import partial
from sihg.robust.evaluation.diagnostics import inspect_model
from sihg.robust.evaluation.findings import Evaluation, Findings
from sihg.robust.threat import Ball
from sihg.store.files import sha256_of_file
from sihg.store.schema import Check, CurveRecord, EvaluationRecord, count_results, read_evaluation
from tests.refused import refused
from tests.robust.attacks.trained_models import assert_inside
from tests.robust.evaluation.heard import by_part
from tests.robust.evaluation.test_evaluate import Threshold, on_a_line
from tests.robust.planted import EPS, digits, healthy

CHECKS_PAGE = Path(__file__).parents[3] / "docs" / "checks.md"


class CutError(Exception):
    """An interruption."""


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "rows_per_chunk", lambda _shape: 64)
    monkeypatch.setattr(partial, "SECONDS_BETWEEN_WRITES", 0.0)


def stop_after(parts: int) -> Any:
    """A progress that interrupts after so many parts."""
    heard = []

    def progress(name: str, done: int, total: int) -> None:
        heard.append((name, done, total))
        if len(heard) == parts:
            raise CutError

    return by_part(progress)


def small_digits() -> tuple[Tensor, Tensor]:
    samples = digits().take(slice(150))
    return samples.floats(), samples.y


def sealed_as(record: Any, found: Findings) -> Any:
    """The record of an evaluation, with what only its file has."""
    own = {name: getattr(record, name) for name in ("files", "own_seal_with_seconds")}
    return msgspec.structs.replace(found.record, **own)


def test_a_saved_evaluation_is_read_as_it_was(tmp_path: Path) -> None:
    found = sihg.evaluate(healthy(), small_digits(), eps=EPS, attacks="natural,pgd-3", samples=100, seed=2)
    path = found.save(tmp_path)
    assert path == tmp_path / "evaluation" / "Sequential_data_natural+pgd-3_eps-0.05_n100_seed2.json"
    record = read_evaluation(path)
    assert isinstance(record, EvaluationRecord)
    assert record == sealed_as(record, found)
    assert record.files == {f"{path.stem}.npz": sha256_of_file(path.with_suffix(".npz"))}
    assert (record.samples, record.of, record.seed, record.eps, record.bounds) == (100, 150, 2, EPS, (0.0, 1.0))
    assert (record.checkpoint, record.weights, record.data, record.rule) == ("Sequential", "", "data", "any iterate")
    assert [row.attack for row in record.attacks] == ["natural", "pgd-3", "all"]
    with np.load(path.with_suffix(".npz")) as file:
        assert file["attack"].tolist() == ["natural", "pgd-3"]
        assert torch.equal(torch.from_numpy(file["broken"][1]), found["pgd-3"].broken)
        assert small_digits()[1][torch.from_numpy(file["index"])].tolist() == file["label"].tolist()
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name, path.with_suffix(".npz").name]
    assert found.save(tmp_path, name="mine").name == "mine.json"


def test_the_weights_in_a_record_are_those_of_the_model() -> None:
    x, y = small_digits()
    first = sihg.evaluate(healthy(), (x, y), eps=EPS, attacks="natural").record.sha256
    assert first == sihg.evaluate(healthy(), (x, y), eps=0.1, attacks="natural").record.sha256
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    assert first != sihg.evaluate(other, (x, y), eps=EPS, attacks="natural").record.sha256


@pytest.mark.parametrize(
    ("bounds", "recorded"),
    [
        (None, None),
        ((-1, 2), (-1.0, 2.0)),
        ((torch.zeros(1, 8, 8), 1 + torch.eye(8)[None]), (0.0, 2.0)),
        ((torch.zeros(1, 8, 8), torch.full((1, 8, 8), torch.inf)), None),
    ],
)
def test_bounds_in_a_record(bounds: Any, recorded: tuple[float, float] | None, tmp_path: Path) -> None:
    found = sihg.evaluate(healthy(), small_digits(), eps=EPS, attacks="natural", bounds=bounds)
    assert read_evaluation(found.save(tmp_path)).bounds == recorded


def test_points_are_adversarial_examples(tmp_path: Path) -> None:
    x, y = small_digits()
    settings: dict[str, Any] = {"eps": EPS, "attacks": "natural,noise-1,pgd-10"}
    found = sihg.evaluate(healthy(), (x, y), **settings, points=True)
    assert found.points is not None
    assert found.points.shape == x.shape
    assert torch.equal(healthy()(found.points).argmax(1) != y, found.broken)
    assert 0 < int(found.broken.sum()) < len(y)
    assert_inside(PGD(eps=EPS), x, found.points)
    wrong = found["natural"].broken
    assert torch.equal(found.points[wrong], x[wrong])  # the first attack that broke them moved nothing
    found.save(tmp_path, name="a")
    home = tmp_path / "evaluation"
    assert np.array_equal(np.load(home / "a.points.npy"), found.points.numpy())
    files = read_evaluation(home / "a.json").files
    assert files == {name: sha256_of_file(home / name) for name in ("a.npz", "a.points.npy")}
    assert sihg.evaluate(healthy(), (x, y), **settings).points is None


@pytest.mark.parametrize("parts", [1, 4, 7])
@pytest.mark.parametrize("points", [True, False])
def test_an_interrupted_evaluation_continues(parts: int, points: bool, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"eps": EPS, "attacks": "natural,pgd-3", "points": points}
    whole = sihg.evaluate(healthy(), small_digits(), **settings)
    with pytest.raises(CutError):
        sihg.evaluate(healthy(), small_digits(), **settings, resume=tmp_path, progress=stop_after(parts))
    heard: list[tuple[str, int, int]] = []
    again = sihg.evaluate(
        *(healthy(), small_digits()), **settings, resume=tmp_path, progress=by_part(lambda *part: heard.append(part))
    )
    done = [0, *(min(64 * part, 150) for part in (1, 2, 3))]  # a part of no samples comes first
    assert heard[0] == (("natural", done[parts - 1], 150) if parts <= 4 else ("natural", 150, 150))
    for one, other in zip(whole.outcomes, again.outcomes, strict=True):
        assert torch.equal(one.broken, other.broken)
        assert torch.equal(one.margin, other.margin)
        assert (one.passes, one.forwards) == (other.passes, other.forwards)
    if points:
        assert whole.points is not None
        assert again.points is not None
        assert torch.equal(whole.points, again.points)
    again.save(tmp_path)
    names = {"", ".points"} if points else {""}
    kept = {path.stem.removeprefix(again.name) for path in (tmp_path / "evaluation").iterdir()}
    assert kept == names  # and no partial results


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 1},
        {"eps": EPS / 2},
        {"attacks": "natural,pgd-4"},
        {"bounds": None},
        {"last_iterate": True},
        {"samples": 140},
        {"norm": "l2"},
    ],
)
def test_other_settings_have_other_partial_results(changed: dict[str, Any], tmp_path: Path) -> None:
    """They have another name; even under the same name they would not be used."""
    settings: dict[str, Any] = {"eps": EPS, "attacks": "natural,pgd-3"}
    with pytest.raises(CutError):
        sihg.evaluate(healthy(), small_digits(), **settings, resume=tmp_path, progress=stop_after(7))
    (kept,) = (tmp_path / "evaluation").iterdir()
    alone = sihg.evaluate(healthy(), small_digits(), **{**settings, **changed})
    assert not kept.name.startswith(f"{alone.name}.")
    kept.rename(kept.with_name(f"{alone.name}.partial.npz"))
    with pytest.warns(partial.EvaluationWarning, match="is not used"):
        found = sihg.evaluate(healthy(), small_digits(), **{**settings, **changed}, resume=tmp_path)
    assert found.accuracy == alone.accuracy


def test_other_models_and_data_have_other_partial_results(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"eps": EPS, "attacks": "natural,pgd-3", "resume": tmp_path}
    (x, y), net = small_digits(), nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    smooth = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10))
    smooth.load_state_dict(healthy().state_dict())  # the same weights in another model
    for model, data in ((net, (x, y)), (smooth, (x, y)), (healthy(), (x, (y + 1) % 10)), (healthy(), (1 - x, y))):
        with pytest.raises(CutError):
            sihg.evaluate(healthy(), (x, y), **settings, progress=stop_after(3))
        with pytest.warns(partial.EvaluationWarning, match="is not used"):
            sihg.evaluate(model, data, **settings)
        for file in (tmp_path / "evaluation").iterdir():
            file.unlink()


def test_sources_of_transfers_are_told_apart_and_functions_cannot_be_resumed(tmp_path: Path) -> None:
    x, y = small_digits()
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    settings: dict[str, Any] = {"eps": EPS, "resume": tmp_path}
    attacks: Attacks = {"natural": "natural", "other": Transfer(eps=EPS, source=other)}
    with pytest.raises(CutError):
        sihg.evaluate(healthy(), (x, y), attacks=attacks, **settings, progress=stop_after(7))
    with torch.no_grad():
        other[1].weight.add_(1.0)  # type: ignore[operator]
    with pytest.warns(partial.EvaluationWarning, match="is not used"):
        sihg.evaluate(healthy(), (x, y), attacks=attacks, **settings)
    with refused("resume-function", name="mine"):
        sihg.evaluate(healthy(), (x, y), attacks={"mine": lambda x, _y: x}, **settings)


def test_a_finished_evaluation_is_not_computed_again_until_it_is_saved(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"eps": EPS, "attacks": "natural,noise-1", "resume": tmp_path, "trained_with": "natural"}
    first = sihg.evaluate(healthy(), small_digits(), **settings)
    heard: list[int] = []
    again = sihg.evaluate(healthy(), small_digits(), **settings, progress=by_part(lambda *part: heard.append(part[1])))
    assert heard == [150, 150]  # all is known
    assert torch.equal(first.broken, again.broken)
    again.save(tmp_path)
    assert not list(tmp_path.glob("evaluation/*.partial.npz"))


def test_a_curve_is_what_evaluations_at_its_radii_leave(tmp_path: Path) -> None:
    data = small_digits()
    curve = sihg.robust_curve(healthy(), data, radii=[0, "1/20", 0.1], attacks="pgd-3,noise-1")
    assert curve.radii == (0.0, 0.05, 0.1)
    for attack in ("pgd-3", "noise-1"):
        broken, expected = torch.zeros(150, dtype=torch.bool), []
        for eps, name in ((0.1, "natural"), (0.05, attack), (0.1, attack)):
            broken |= sihg.evaluate(healthy(), data, eps=eps, attacks=name)[name].broken
            expected.append(int((~broken).sum()) / 150)
        assert curve.accuracy(attack) == tuple(expected)
    assert curve.accuracy("pgd-3")[-1] < curve.accuracy("pgd-3")[0]
    path = curve.save(tmp_path)
    record = read_evaluation(path)
    assert isinstance(record, CurveRecord)
    assert record == sealed_as(record, curve)
    assert record.files == {f"{path.stem}.npz": sha256_of_file(path.with_suffix(".npz"))}
    assert path.stem == "Sequential_data_pgd-3+noise-1_curve-0-0.1-3"
    (axes,) = curve.plot(tmp_path / "curve.png").axes
    assert (tmp_path / "curve.png").stat().st_size > 1000
    assert [line.get_label() for line in axes.get_lines()] == ["pgd-3", "noise-1"]
    assert np.allclose(axes.get_lines()[0].get_ydata(), curve.accuracy("pgd-3"))
    lines = str(curve).splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["eps", "0", "0.05", "0.1"]
    assert "\n" not in repr(curve)
    with refused("attack-not-run", attack="pgd-4"):
        curve.accuracy("pgd-4")


def test_an_interrupted_curve_continues(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"radii": [0, 0.05, 0.1], "attacks": "pgd-3", "points": True}
    whole = sihg.robust_curve(healthy(), small_digits(), **settings)
    with pytest.raises(CutError):
        sihg.robust_curve(healthy(), small_digits(), **settings, resume=tmp_path, progress=stop_after(6))
    again = sihg.robust_curve(healthy(), small_digits(), **settings, resume=tmp_path)
    assert _plain(whole) == _plain(again)
    assert whole.points is not None
    assert again.points is not None
    assert torch.equal(whole.points, again.points)


def _plain(curve: sihg.RadiusCurve) -> dict[str, Any]:
    (row,) = curve.rows()
    return {name: getattr(row, name) for name in ("attack", "accuracy", "low", "high", "passes", "forwards")}


@pytest.mark.parametrize("radii", [[], [0.1], [0.2, 0.1], [-0.1, 0.1], [0, 0.1, 0.1], [0.1, "1/20"]])
def test_radii_that_do_not_grow_are_refused(radii: list[float | str]) -> None:
    with refused("radii-range", given=radii):
        sihg.robust_curve(Threshold(), on_a_line(), radii=radii)


def test_a_curve_takes_names_alone() -> None:
    with refused("not-a-number", value="a"):
        sihg.robust_curve(Threshold(), on_a_line(), radii=[0, "a"])
    attacks: Any = {"mine": PGD(eps=0.1)}
    with refused("attacks-type", kind="dict"):
        sihg.robust_curve(Threshold(), on_a_line(), radii=[0, 0.1], attacks=attacks)


def test_a_radius_as_text() -> None:
    found = sihg.evaluate(Threshold(), on_a_line(), eps="1/4", attacks="pgd-10")
    assert (found.ball.eps, found.accuracy) == (0.25, 3 / 7)
    assert "\n" not in repr(found)
    assert re.match(
        r"<Evaluation: 42\.86 % under pgd-10; linf, eps 0\.25 = .*, 7 samples, warnings: \d, errors: 0>", repr(found)
    )


def test_warnings_name_their_place_in_the_documents() -> None:
    x, y = small_digits()
    found = sihg.evaluate(healthy(), (x, y), eps=EPS, attacks="natural", samples=100)
    assert [check.name for check in found.warnings] == ["all samples"]
    assert f"warning: {found.warnings[0].message} (docs/checks.md#all-samples)" in str(found).splitlines()
    assert f"checks: {count_results(found.checks)}" in str(found).splitlines()


def test_checks_that_were_not_run_are_named_with_their_reason() -> None:
    found = sihg.evaluate(healthy(), small_digits(), eps=EPS, attacks="natural,noise-1", trained_with="natural")
    assert [line for line in str(found).splitlines() if line.startswith("not run: ")] == [
        "not run: black box: needs an attack of several gradient steps and one of none, as in standard",
        "not run: few steps: there is no attack with gradients",
        "not run: other attacks: it was not trained against an attack",
    ]
    found = sihg.evaluate(healthy(), small_digits(), eps=EPS, attacks="pgd-2")
    lines = str(found).splitlines()
    assert lines[lines.index(f"checks: {count_results(found.checks)}") + 1] == (
        "not run: above chance, below natural: natural is not among the attacks"
    )


def every_check() -> set[str]:
    """The names of all checks, from evaluations in which each of them is made or is said not to run."""
    samples = digits().take(slice(60))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    found = sihg.evaluate(model, samples, eps=0.01, attacks="natural,pgd-2,certified")
    return {check.link.partition("#")[2] for check in found.checks}


def test_every_check_is_documented() -> None:
    text = CHECKS_PAGE.read_text(encoding="utf-8")
    anchors = re.findall(r'^\| <a id="([a-z0-9-]+)"></a>`', text, re.MULTILINE)
    assert len(anchors) == len(set(anchors))
    assert set(anchors) == every_check()
    cells = [line.split(" | ") for line in text.splitlines() if line.startswith("| <a id=")]
    assert {len(row) for row in cells} == {4}
    assert Check("proof: pgd-20", "error").link == "docs/checks.md#proof"


def test_the_wilson_interval_of_a_row_is_the_records(tmp_path: Path) -> None:
    found = sihg.evaluate(Threshold(), on_a_line(), eps=0.25, attacks="natural,pgd-10")
    assert isinstance(found, Evaluation)
    content = json.loads(found.save(tmp_path).read_text())
    assert content["attacks"][1]["low"] == pytest.approx(0.15822, abs=1e-5)  # of 3 of 7, from a table
    assert content["attacks"][1]["high"] == pytest.approx(0.74954, abs=1e-5)


def test_checks_of_the_model_alone_without_attacks() -> None:
    names = [check.name for check in inspect_model(healthy(), digits(), Ball(EPS), 0, attacked=False)]
    assert names == ["precision", "logits", "repeatable"]


def test_a_radius_of_a_curve_is_after_all_stages_of_its_attack() -> None:
    curve = sihg.robust_curve(Threshold(), on_a_line(), radii=[0, 0.15, 0.25], attacks="standard")
    assert curve.accuracy("standard") == (6 / 7, 5 / 7, 3 / 7)


def test_without_attack_the_radius_does_not_matter() -> None:
    found = sihg.evaluate(Threshold(), on_a_line(), eps=5, norm="l2", attacks="natural")
    assert found.accuracy == 6 / 7


def test_a_proof_does_not_replace_the_points_of_attacks() -> None:
    settings: dict[str, Any] = {"eps": EPS, "points": True}
    alone = sihg.evaluate(healthy(), small_digits(), attacks="pgd-3", **settings)
    for attacks in ("pgd-3,certified", "certified,pgd-3"):
        found = sihg.evaluate(healthy(), small_digits(), attacks=attacks, **settings)
        assert bool((found["certified"].broken & ~found["pgd-3"].broken).any())  # neither broken nor proven robust
        assert found.points is not None
        assert alone.points is not None
        assert torch.equal(found.points, alone.points)


def test_samples_without_a_proof_are_not_broken() -> None:
    """The robust accuracy counts what attacks broke; a proof alone is a lower bound of it."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    data = (digits().floats(), model(digits().floats()).argmax(1))
    found = sihg.evaluate(model, data, eps=EPS, attacks="natural,certified")
    assert found["certified"].accuracy < 1
    assert found.accuracy == 1
    alone = sihg.evaluate(model, data, eps=EPS, attacks="certified")
    assert alone.accuracy == found["certified"].accuracy
