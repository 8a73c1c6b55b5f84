"""The trainer: what a run leaves behind, its best checkpoint, lanes, and runs that leave the numbers."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sihg.errors import InputError, NotFiniteError
from sihg.robust import data
from sihg.robust.attacks.registry import plan_attacks
from sihg.robust.attacks.runner import run_attacks
from sihg.robust.data.batches import epoch_batches
from sihg.robust.data.samples import Samples, as_samples
from sihg.robust.methods import MSIHG
from sihg.robust.threat import Ball
from sihg.robust.training.events import CheckpointSaved, EpochDone, Event, StepDone
from sihg.robust.training.fit import resume_in, run_in
from sihg.robust.training.preflight import preflight, split_off
from sihg.robust.training.trainer import Trainer
from sihg.robust.training.weights import load
from sihg.store.checkpoint import newest_checkpoint, read_checkpoint, verify_checkpoint
from sihg.store.schema import MEMORY_COLUMNS, METRICS_COLUMNS
from sihg.store.tables import read_json_lines, read_table
from tests.refused import refused
from tests.robust.small import STEPS, N, digits, fingerprint, settings
from tests.robust.training.trainers import begin, trainer


@pytest.fixture(autouse=True)
def _a_quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync, which is slow; no test here loses power."""
    monkeypatch.setattr("os.fsync", lambda _handle: None)


def test_a_run_leaves_a_row_an_epoch(tmp_path: Path) -> None:
    events: list[Event] = []
    chosen = settings(steps=2, epochs=2, schedule="cosine")
    trained = trainer(chosen, tmp_path).run(events.append)
    rows = read_table(tmp_path / "metrics.csv")
    assert tuple(rows[0]) == METRICS_COLUMNS
    assert [(r["epoch"], r["step"], r["passes"]) for r in rows] == [
        ("1", "4", "3.0"),
        ("2", "8", "6.0"),
    ]  # T + 1 a sample
    assert [float(r["loss"]) for r in rows] == [r.loss for r in trained.history]
    assert [e["event"] for e in read_json_lines(tmp_path / "log.jsonl")] == ["epoch", "epoch"]
    epoch = [*STEPS * [StepDone], EpochDone, CheckpointSaved]
    assert [type(event) for event in events] == [CheckpointSaved, *epoch, *epoch]
    assert [(e.step, e.steps) for e in events if isinstance(e, StepDone)] == [(i, 8) for i in range(1, 9)]
    assert [e.row for e in events if isinstance(e, EpochDone)] == list(trained.history)
    assert (trained.finished, trained.stopped, trained.best) == (True, "2 epochs done", None)
    assert not trained.model.training


def test_metrics_are_means_over_all_samples_of_the_epoch() -> None:
    chosen = settings(method="natural", epochs=1, lr=1e-12)  # the weights stay, so the epoch can be computed at once
    run = trainer(chosen)
    (row,) = run.run().history
    samples = digits()
    logits = run.model(samples.floats()).detach()
    assert row.loss == pytest.approx(float(nn.functional.cross_entropy(logits, samples.y)), rel=1e-5)
    assert row.accuracy == pytest.approx(float((logits.argmax(1) == samples.y).sum()) / N)
    assert (row.moved, row.saturated, row.robust, row.passes) == (None, None, None, 1.0)


def test_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    trainer(settings(steps=1, epochs=1)).run()
    assert torch.equal(torch.rand(3), expected)


def test_the_seed_decides_and_nothing_else() -> None:
    runs = []
    for seed in (1, 1, 2):
        run = trainer(settings(steps=1, epochs=1, seed=seed, crop=1))
        run.run()
        runs.append(fingerprint(run))
    assert runs[0] == runs[1] != runs[2]


# ---- held-out samples and the best checkpoint


def test_held_out_samples_are_never_trained_on() -> None:
    chosen = settings(validation=20, samples=80)
    samples = as_samples((torch.arange(N, dtype=torch.float64)[:, None] / N, torch.arange(N) % 10))
    train, held = split_off(samples, chosen)
    assert held is not None
    assert (len(train), len(held)) == (60, 20)
    epochs = [epoch_batches(train, size=32, seed=0, epoch=e, first=0, augment=None) for e in range(3)]
    seen = [batch.lanes[0].x for epoch in epochs for batch in epoch]
    assert set(torch.cat(seen).flatten().tolist()) == set(train.x.flatten().tolist())
    assert set(train.x.flatten().tolist()).isdisjoint(held.x.flatten().tolist())
    whole, nothing = split_off(samples, settings(samples=N))
    assert (len(whole), nothing) == (N, None)
    with refused("samples-range", samples=101):
        split_off(samples, settings(samples=N + 1))
    with refused("validation-range", validation=100):
        split_off(samples, settings(validation=N))


def test_test_samples_may_be_watched_as_in_the_paper() -> None:
    samples, test = data.load("digits")
    chosen = settings(validation=50, validate_on="test")
    train, watched = split_off(samples, chosen, test)
    again = split_off(samples, chosen.with_values({"seed": 7}), test)[1]
    assert watched is not None
    assert again is not None
    assert len(train) == len(samples)
    assert torch.equal(watched.x, again.x)  # every seed sees the same ones
    assert {tuple(x.flatten().tolist()) for x in watched.x} <= {tuple(x.flatten().tolist()) for x in test.x}
    assert watched.y.bincount().min() >= 4
    whole = split_off(samples, settings(validation=len(test), validate_on="test"), test)[1]
    assert whole is test
    with refused("samples-range", samples=398):
        split_off(samples, settings(validation=398, validate_on="test"), test)
    with refused("no-test-set"):
        split_off(samples, chosen)
    with refused("validate-on-nothing"):
        settings(validate_on="test")
    with refused("setting-value", setting="validate_on"):
        settings(validate_on="both")


@pytest.mark.parametrize("ema", [0.0, 0.7])
def test_best_holds_the_evaluated_weights_of_the_best_row(tmp_path: Path, ema: float) -> None:
    evaluated: dict[int, dict[str, torch.Tensor]] = {}
    chosen = settings(
        steps=2, epochs=6, batch_size=10, eps=0.1, tau=0.1, lr=0.2, ema=ema, validation=20, evaluate_with="pgd-3"
    )

    def keep(event: Event) -> None:
        if isinstance(event, EpochDone):
            evaluated[event.row.epoch] = {k: v.clone() for k, v in run.optimizer.evaluated.state_dict().items()}

    run = trainer(chosen, tmp_path)
    trained = run.run(keep)
    best = max(trained.history, key=lambda row: row.robust or 0)  # the first of several
    assert trained.best == best
    assert [p.name for p in (tmp_path / "checkpoints").glob("best-*")] == [f"best-{best.step:08d}"]
    for name, row in (("best", best), ("last", trained.history[-1])):
        found = load(tmp_path, checkpoint=name)
        assert not found.training
        expected = evaluated[row.epoch]
        assert found.state_dict().keys() == expected.keys()
        assert all(torch.equal(t, expected[key]) for key, t in found.state_dict().items())
    held = split_off(digits(), chosen)[1]
    assert held is not None
    ball, names, seed = Ball(0.1), ["natural", "pgd-3"], best.epoch - 1
    again = run_attacks(load(tmp_path, checkpoint="best"), held, plan_attacks(names, ball), seed=seed)
    assert [o.accuracy for o in again] == [best.natural, best.robust]
    if ema:
        raw = run.model.state_dict()
        assert any(not torch.equal(raw[key], t) for key, t in trained.model.state_dict().items())


def test_evaluations_come_as_often_as_asked_and_at_the_end() -> None:
    chosen = settings(method="natural", epochs=5, validation=20, evaluate_every=3, evaluate_with="pgd-1")
    history = trainer(chosen).run().history
    assert [row.robust is not None for row in history] == [False, False, True, False, True]
    seconds = [row.evaluation_seconds or 0.0 for row in history]
    assert seconds[1] == 0 < seconds[2] == seconds[3] < seconds[4]


# ---- lanes


def double(n: int = 60) -> Samples:
    few = digits(n)
    return as_samples((few.floats().double(), few.y), classes=few.classes)


def linear_model(bias: float = 0.0) -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10)).double()
    with torch.no_grad():
        for number, p in enumerate(model.parameters()):
            p.copy_(torch.sin(torch.arange(p.numel(), dtype=torch.float64) + number).view_as(p) / 8 + bias)
    return model


@pytest.mark.parametrize("count", [2, 4, 8, 64])
def test_lanes_of_a_batch_give_the_whole_step(count: int) -> None:
    ends = []
    for lanes in (1, count):
        chosen = settings(method="natural", epochs=2, batch_size=25, lanes=lanes, weight_decay=0.01, theta=0.5)
        run = Trainer(preflight(linear_model(), double(), chosen))
        ended = run.run()
        ends.append((run, ended.history))
    (whole, history), (split, split_history) = ends
    for a, b in zip(whole.model.parameters(), split.model.parameters(), strict=True):
        assert b.dtype == torch.float64
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    for row, other in zip(history, split_history, strict=True):
        assert other.passes == row.passes == row.epoch
        assert other.loss == pytest.approx(row.loss, rel=1e-10)
        assert other.accuracy == row.accuracy


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize(
    "values",
    [
        {"method": "pgd", "steps": 3},
        {"method": "fast"},
        {"method": "trades", "steps": 2},
        {"steps": 3, "memory": "fp32"},
        {"steps": 2, "memory": "fp32", "fresh": 0.5, "crop": 1, "augment_delta": "independent"},
        {"steps": 2, "memory": "fp32", "implicit": "proximal", "flip": True},
    ],
)
def test_lanes_of_a_batch_attack_as_the_whole_does(values: dict[str, Any], norm: str) -> None:
    """The noise of a sample is its own, so that the run is the same but for rounding."""
    ends = []
    for lanes in (1, 4):
        shared = {"epochs": 2, "batch_size": 25, "norm": norm, "eps": 0.2}
        run = Trainer(preflight(linear_model(), double(), settings(**shared, **values, lanes=lanes)))
        history = run.run().history
        ends.append((torch.cat([p.detach().flatten() for p in run.model.parameters()]), history[-1].loss))
    (whole, loss), (split, split_loss) = ends
    torch.testing.assert_close(split, whole, rtol=0, atol=1e-6)
    assert split_loss == pytest.approx(loss, rel=1e-6)
    start = torch.cat([p.detach().flatten() for p in linear_model().parameters()])
    assert float((whole - start).abs().max()) > 1e-2


@pytest.mark.parametrize("method", ["fgsm", "free"])
def test_batches_smaller_than_their_lanes(method: str) -> None:
    values = {"replays": 2} if method == "free" else {}
    chosen = settings(method=method, epochs=1, batch_size=59, lanes=8, **values)  # the last batch has one sample
    (row,) = Trainer(preflight(linear_model(), double(), chosen)).run().history
    assert (row.step, row.passes) == (2, 2.0)


def test_clipping_bounds_every_step() -> None:
    before: list[torch.Tensor] = []
    steps: list[float] = []

    def measure(event: Event) -> None:
        now = torch.cat([p.detach().flatten() for p in run.model.parameters()])
        if isinstance(event, StepDone) and before:
            steps.append(float((now - before[-1]).norm()))
        before.append(now)

    chosen = settings(method="fgsm", epochs=1, clip=1e-3, optimizer={"name": "sgd", "lr": 0.5})
    run = trainer(chosen)
    run.run(measure)
    assert steps
    assert max(steps) <= 0.5e-3 * (1 + 1e-3)
    assert max(steps) > 0.4e-3  # and the gradients were longer


# ---- numbers


@pytest.mark.parametrize("method", ["msi-hg", "pgd", "natural", "free", "dat"])
@pytest.mark.parametrize("validation", [0, 20])
def test_a_huge_learning_rate_is_named_with_its_remedy(tmp_path: Path, method: str, validation: int) -> None:
    chosen = settings(method=method, lr=1e30, validation=validation, batch_size=100 if validation else 32)
    run = trainer(chosen, tmp_path)
    with pytest.raises(
        NotFiniteError,
        match=r"^the .*after \d.\d\d epochs, at learning rate 1e\+30: start a new run with a lower lr, or with clip$",
    ):
        run.run()
    checkpoint, skipped = newest_checkpoint(tmp_path / "checkpoints", "last")
    assert skipped == []
    assert all(torch.isfinite(t).all() for t in checkpoint.tensors["weights"].values())
    if isinstance(run.method, MSIHG):
        assert run.method.memory is not None
        assert torch.isfinite(run.method.memory.read(torch.arange(run.method.memory.n), run.progress.epoch + 1)).all()
    assert trainer(chosen, tmp_path, again=True).resume() == []
    assert verify_checkpoint(checkpoint.path) == []


OVERFLOWS: dict[str, dict[str, Any]] = {
    "weight decay": {"lr": 3e38, "weight_decay": 0.5},
    "adam without eps": {"optimizer": {"name": "adam", "lr": 0.05, "eps": 0.0}},  # 0 / 0 for pixels that are 0
    "the last step of all": {"lr": 3e38, "weight_decay": 100.0, "epochs": 1, "batch_size": 100},
    "the last step of all, averaged": {"lr": 3e38, "weight_decay": 100.0, "epochs": 1, "batch_size": 100, "ema": 0.5},
}


@pytest.mark.parametrize("values", OVERFLOWS.values(), ids=list(OVERFLOWS))
@pytest.mark.parametrize("validation", [0, 20])
@pytest.mark.parametrize("minutes", [0, 60])
def test_weights_that_overflow_are_never_kept(
    tmp_path: Path, values: dict[str, Any], validation: int, minutes: float
) -> None:
    held = {"validation": validation, "evaluate_with": "pgd-1"}
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    run = trainer(settings(method="natural", checkpoint_minutes=minutes, **held, **values), tmp_path, model=model)
    with refused("training-diverged"):
        run.run()
    folders = [path for path in (tmp_path / "checkpoints").iterdir() if path.name.startswith(("last", "best"))]
    assert folders
    for path in folders:
        for group in read_checkpoint(path).tensors.values():
            assert [name for name, t in group.items() if not bool(torch.isfinite(t).all())] == []
    assert read_table(tmp_path / "metrics.csv", sealed=True) == []


def test_the_state_of_the_optimiser_is_never_kept_if_it_is_not_finite(tmp_path: Path) -> None:
    run = trainer(settings(method="natural", epochs=1), tmp_path)

    def spoil(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == STEPS:
            next(iter(run.optimizer.inner.state.values()))["momentum_buffer"][...] = torch.inf

    with refused("training-diverged"):
        run.run(spoil)
    checkpoint, _ = newest_checkpoint(tmp_path / "checkpoints", "last")
    assert checkpoint.path.name == "last-00000000"


def test_a_model_may_hold_infinities_of_its_own(tmp_path: Path) -> None:
    """Such as a mask of an attention, which training does not change."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    model.register_buffer("mask", torch.full((2,), -torch.inf))
    assert trainer(settings(method="natural", epochs=1), tmp_path, model=model).run().finished


# ---- the folder


@pytest.mark.parametrize("moment", [StepDone, EpochDone])
def test_a_folder_that_is_moved_ends_the_training(tmp_path: Path, moment: type) -> None:
    folder, moved = tmp_path / "run", tmp_path / "moved"
    chosen = settings(method="natural", epochs=2, checkpoint_minutes=0)
    prepared = trainer(chosen).prepared

    def move(event: Event) -> None:
        if isinstance(event, moment) and folder.exists():
            folder.rename(moved)

    with refused("folder-moved", path=folder):
        run_in(folder, prepared, on_event=move)
    assert not folder.exists()
    kept, _ = newest_checkpoint(moved / "checkpoints", "last")
    assert kept.path.name == f"last-{0 if moment is StepDone else STEPS - 1:08d}"
    assert resume_in(moved, trainer(chosen).prepared).finished


def test_another_folder_in_the_place_of_the_run_gets_no_files(tmp_path: Path) -> None:
    folder, moved = tmp_path / "run", tmp_path / "moved"

    def swap(event: Event) -> None:
        if isinstance(event, EpochDone):
            folder.rename(moved)
            folder.mkdir()
            (folder / "thesis.tex").write_text("years of work")

    with refused("folder-moved", path=folder):
        run_in(folder, trainer(settings(method="natural", epochs=2)).prepared, on_event=swap)
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]
    assert (moved / "config.toml").is_file()


@pytest.mark.parametrize("name", ["metrics.csv", "log.jsonl", "memory.csv"])
@pytest.mark.parametrize("kind", ["link", "hard link"])
def test_a_table_that_is_also_another_file_is_not_written(tmp_path: Path, name: str, kind: str) -> None:
    chosen, path = settings(steps=1, epochs=2), tmp_path / "run"
    trainer(chosen, path).run()
    other = tmp_path / "other"
    (path / name).rename(other)
    if kind == "link":
        (path / name).symlink_to(other)
    else:
        (path / name).hardlink_to(other)
    before = other.read_bytes()
    shutil.rmtree(path / "checkpoints" / f"last-{2 * STEPS:08d}")  # the last epoch is trained again
    with refused("linked-file", path=path / name):
        again = trainer(chosen, path, again=True)
        again.resume()
        again.run()
    assert other.read_bytes() == before


@pytest.mark.parametrize("name", ["checkpoints", "evaluation", "memory"])
def test_a_folder_of_the_run_that_is_a_link_is_refused(tmp_path: Path, name: str) -> None:
    chosen, path = settings(steps=1, epochs=1), tmp_path / "run"
    begin(path, chosen)
    (tmp_path / "elsewhere").mkdir()
    (path / name).symlink_to(tmp_path / "elsewhere")
    with refused("linked-folder", path=path / name):
        trainer(chosen, path, again=True)
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("method", ["msi-hg", "free", "dat", "trades", "natural", "fast"])
def test_float64_stays_float64(method: str) -> None:
    run = Trainer(preflight(linear_model(), double(), settings(method=method, epochs=1, ema=0.5, validation=0)))
    trained = run.run()
    assert {p.dtype for p in trained.model.parameters()} == {torch.float64}
    assert {p.dtype for p in run.model.parameters()} == {torch.float64}
    assert {t.dtype for s in run.optimizer.inner.state.values() for t in s.values() if t is not None} == {torch.float64}


# ---- what is refused before anything is trained


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"memory_files": True}, "memory-files-folder"),
        ({"memory": "int2"}, "unknown-dtype-of-the-memory"),
        ({"device": "cuda:99"}, "device-unavailable"),
        ({"device": "gpu"}, "device-unavailable"),
        ({"evaluate_with": "pgd10"}, "unknown-attack"),
        ({"eps": 8}, "eps-scale"),
        ({"bounds": (0.2, 1)}, "data-outside-bounds"),
        ({"optimizer": "sdg"}, "unknown-optimizer"),
        ({"schedule": "cyclic"}, "option-missing"),
        ({"norm": "l3"}, "unknown-norm"),
        ({"statistics": "none"}, "setting-value"),
    ],
)
def test_mistakes_are_found_at_once(values: dict[str, Any], code: str) -> None:
    with refused(code):
        trainer(settings(**values)).run()


def test_a_crop_larger_than_the_images_is_found_at_once() -> None:
    with pytest.raises(InputError, match="up to 8 pixels"):
        trainer(settings(crop=8))


def test_models_that_do_not_fit_the_data() -> None:
    with refused("model-refuses-samples"):
        trainer(settings(), model=nn.Linear(3, 10))
    with refused("too-few-outputs"):
        trainer(settings(), model=nn.Sequential(nn.Flatten(), nn.Linear(64, 5)))


def bn_model(*, spatial: bool = False) -> nn.Module:
    if spatial:
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10))
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))


def test_batch_normalisation_of_a_single_sample_is_refused_at_once() -> None:
    for values in ({"batch_size": 33}, {"batch_size": 1}, {"batch_size": 50, "lanes": 32}):
        with refused("batch-too-small", samples=100, batch_size=values["batch_size"]):
            trainer(settings(method="natural", **values), model=bn_model())
    model = bn_model(spatial=True)  # has many pixels a sample
    before = {name: t.clone() for name, t in model.state_dict().items()}
    run = trainer(settings(method="natural", batch_size=33, epochs=1), model=model)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())  # looking changes nothing
    assert run.run().finished
    assert trainer(settings(method="natural", epochs=1), model=bn_model()).run().finished


def test_the_memory_has_its_table(tmp_path: Path) -> None:
    for norm, eps in (("linf", 0.25), ("l2", 1.0)):
        path = tmp_path / norm
        run = trainer(settings(steps=3, epochs=2, norm=norm, eps=eps, tau=eps / 2), path)
        history = run.run().history
        rows = read_table(path / "memory.csv")
        assert tuple(rows[0]) == MEMORY_COLUMNS
        assert [row["epoch"] for row in rows] == ["1", "2"]
        assert [(float(r["moved"]), float(r["saturated"])) for r in rows] == [(h.moved, h.saturated) for h in history]
        assert isinstance(run.method, MSIHG)
        assert run.method.memory is not None
        stored = run.method.memory.read(torch.arange(N), 2) / eps
        sizes = (stored.abs() if norm == "linf" else stored.flatten(1).norm(dim=1)).flatten().tolist()
        for k, name in enumerate(MEMORY_COLUMNS[3:]):
            share = sum(k <= 10 * size < k + 1 or (k == 9 and size >= 1) for size in sizes) / len(sizes)
            assert float(rows[1][name]) == pytest.approx(share, abs=1e-3)
        assert sum(float(rows[1][name]) for name in MEMORY_COLUMNS[3:]) == pytest.approx(1)
    trainer(settings(method="natural", epochs=1), tmp_path / "natural").run()
    assert not (tmp_path / "natural" / "memory.csv").exists()


def test_a_best_checkpoint_needs_held_out_samples(tmp_path: Path) -> None:
    trainer(settings(method="natural", epochs=1), tmp_path).run()
    with refused("no-best-checkpoint"):
        load(tmp_path, checkpoint="best")
    with refused("unknown-checkpoint", name="first"):
        load(tmp_path, checkpoint="first")


def test_each_step_seeds_the_draws_of_the_model_anew() -> None:
    run = trainer(settings(method="natural", epochs=2))
    seeds: list[int] = []
    run.model.register_forward_pre_hook(lambda *_: seeds.append(torch.initial_seed()))
    run.run()
    assert len(set(seeds)) == 2 * STEPS
