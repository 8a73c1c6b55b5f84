"""`fit` and `load`: one line from any data and any model to a trained one, and back from its folder."""

import shutil
from collections import OrderedDict
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from sihg.core.processes import Processes, join_processes
from sihg.errors import InputError
from sihg.robust import models
from sihg.robust.methods import METHODS
from sihg.robust.training.config import Choice, read_run_settings, read_settings
from sihg.robust.training.events import EpochDone, Event, Trained
from sihg.robust.training.fit import fit, new_run, resume_run, run_in
from sihg.robust.training.preflight import prepare
from sihg.robust.training.trainer import Trainer
from sihg.robust.training.weights import CheckpointWarning, load
from sihg.store.files import from_toml
from sihg.store.run_folder import RunFolder, locked
from sihg.store.schema import write_toml
from tests.refused import refused
from tests.robust.small import digits, settings
from tests.robust.training.trainers import begin
from tests.store.permissions import forbid_listing

QUICK: dict[str, dict[str, Any]] = {
    **{name: {} for name in METHODS},
    **{name: {"steps": 2} for name in ("msi-hg", "pgd", "dat", "trades")},
    "free": {"replays": 2},
    "yopo": {"outer": 2, "inner": 2},
}


class Pictures(Dataset[tuple[Tensor, int]]):
    """A data set as people write them."""

    classes = ("even", "odd")

    def __init__(self) -> None:
        few = digits(40)
        self.x, self.y = few.floats(), few.y % 2

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.x[i], int(self.y[i])


def own_model(outputs: int = 2, inputs: int = 64) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, outputs))


def moved(before: dict[str, Tensor], model: nn.Module) -> bool:
    return any(not torch.equal(before[name], t) for name, t in model.state_dict().items())


@pytest.mark.parametrize("method", METHODS)
def test_a_users_model_trains_with_every_method(method: str) -> None:
    model, data = own_model(), Pictures()
    if method == "yopo":
        with refused("no-stem"):
            fit(model, data, method=method, eps=0.1, epochs=1)
        model = nn.Sequential(OrderedDict(stem=nn.Conv2d(1, 2, 3), body=own_model(inputs=72)))
    before = {name: t.clone() for name, t in model.state_dict().items()}
    trained = fit(model, data, method=method, eps=0.1, epochs=1, batch_size=16, **QUICK[method])
    assert trained.finished
    assert trained.model is model  # in place
    assert moved(before, model)
    assert len(trained.history) == 1


def test_pairs_of_tensors_and_arrays_are_the_same() -> None:
    few = digits(30)
    ends = []
    for data in (few, (few.x, few.y), (few.x.numpy(), few.y.numpy()), (few.floats(), few.y)):
        model = models.build("small-cnn", few.shape, 10, width=0.25)
        fit(model, data, method="fgsm", eps=0.1, epochs=1)
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert all(torch.equal(end, ends[0]) for end in ends[1:])


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_tables_without_bounds(norm: str) -> None:
    draw = torch.Generator().manual_seed(0)
    x = 5 * torch.randn(60, 4, generator=draw, dtype=torch.float64)
    y = (x[:, 0] > 0).long()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)).double()
    trained = fit(model, (x, y), eps=0.3, tau=0.1, norm=norm, bounds=None, epochs=20, batch_size=10, steps=2, lr=0.1)
    assert (trained.history[-1].accuracy or 0) > 0.85
    assert trained.warnings == []
    with refused("data-outside-bounds"):
        fit(model, (x, y), eps=0.3, epochs=1)


def test_settings_reach_the_run(tmp_path: Path) -> None:
    fit(
        *(own_model(), Pictures()),
        method="pgd",
        eps=0.1,
        out=tmp_path / "run",
        epochs=1,
        steps=3,
        lr=0.01,
        optimizer="adamw",
        ramp=0.5,
        schedule="cosine",
        validation=10,
    )
    saved = read_run_settings(RunFolder.open(tmp_path / "run"))
    usual = {"label_smoothing": 0.0, "awp_gamma": 0.0, "awp_warmup": 0.0}
    assert saved.method == Choice("pgd", {"steps": 3, "ramp": 0.5, "statistics": "batch", **usual})
    assert (saved.optimizer.name, saved.optimizer.options["lr"], saved.theta) == ("adamw", 0.01, 0.0)
    assert (saved.schedule.name, saved.validation, saved.batch_size) == ("cosine", 10, 40)
    assert saved == saved.complete()
    with pytest.raises(InputError, match="unknown setting 'epoch': did you mean 'epochs'"):
        fit(own_model(), Pictures(), eps=0.1, epoch=1)
    with pytest.raises(InputError, match="method 'fgsm' has no setting 'tau', which belongs to msi-hg"):
        fit(own_model(), Pictures(), method="fgsm", eps=0.1, tau=1)


def test_a_folder_is_used_once_at_a_time(tmp_path: Path) -> None:
    options: dict[str, Any] = {"method": "natural", "eps": 0.1, "epochs": 1}
    in_use: list[str] = []

    def try_to_lock(event: Event) -> None:
        if isinstance(event, EpochDone):
            with pytest.raises(InputError, match="is in use by process") as error, locked(tmp_path):
                pass
            in_use.append(str(error.value))

    fit(own_model(), Pictures(), out=tmp_path, on_event=try_to_lock, **options)
    assert len(in_use) == 1
    with refused("run-exists"):
        fit(own_model(), Pictures(), out=tmp_path, **options)
    assert fit(own_model(), Pictures(), out=tmp_path, overwrite=True, **options).finished


def test_weights_of_a_users_model_need_such_a_model(tmp_path: Path) -> None:
    trained = fit(own_model(), Pictures(), method="natural", eps=0.1, out=tmp_path, epochs=1, ema=0.5)
    with refused("load-needs-model", model="Sequential"):
        load(tmp_path)
    found = load(tmp_path, model=own_model())
    assert all(torch.equal(t, trained.model.state_dict()[name]) for name, t in found.state_dict().items())
    with refused("weights-other-model"):
        load(tmp_path, model=own_model(outputs=3))


def test_a_run_given_by_its_settings_alone_comes_back(tmp_path: Path) -> None:
    chosen = settings(samples=60, epochs=1, steps=1, model="preact-resnet8", width=1 / 8)
    folder = begin(tmp_path, chosen)
    prepared = prepare(chosen)
    assert (len(prepared.train), prepared.held_out) == (60, None)
    trained = Trainer(prepared, folder).run()
    found = load(tmp_path)
    assert found.state_dict().keys() == trained.model.state_dict().keys()
    assert all(torch.equal(t, trained.model.state_dict()[name]) for name, t in found.state_dict().items())


def test_a_damaged_checkpoint_is_not_skipped_in_silence(tmp_path: Path) -> None:
    fit(own_model(), Pictures(), method="natural", eps=0.1, out=tmp_path, epochs=2)
    newest = max((tmp_path / "checkpoints").glob("last-*"))
    (newest / "weights.safetensors").unlink()
    with pytest.warns(
        CheckpointWarning, match=f"skipped damaged checkpoint {newest.name}: weights.safetensors is missing"
    ):
        load(tmp_path, model=own_model())


def test_a_call_that_is_refused_costs_no_earlier_run_and_leaves_no_folder(tmp_path: Path) -> None:
    options: dict[str, Any] = {"method": "natural", "eps": 0.1, "epochs": 1}
    fit(own_model(), Pictures(), out=tmp_path / "run", **options)
    kept = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    for wrong, code in (
        ({"evaluate_with": "pgd"}, "unknown-attack"),
        ({"validation": 40}, "validation-range"),
        ({"optimizer": "sdg"}, "unknown-optimizer"),
    ):
        for out in (tmp_path / "run", tmp_path / "new"):
            with refused(code):
                fit(own_model(), Pictures(), out=out, overwrite=True, **options, **wrong)
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == kept
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_run_that_fails_before_its_first_checkpoint_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: Any, **_options: Any) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr("sihg.robust.training.state.write_checkpoint", broken)
    with pytest.raises(RuntimeError, match="a fault"):
        fit(own_model(), Pictures(), out=tmp_path / "run", method="natural", eps=0.1, epochs=1)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_removed_if_it_is_unclear_whether_there_is_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FaultError(Exception):
        pass

    def fail(event: Event) -> None:
        if isinstance(event, EpochDone):
            forbid_listing(monkeypatch, tmp_path / "run" / "checkpoints")
            raise FaultError

    with pytest.raises(FaultError):
        fit(own_model(), Pictures(), out=tmp_path / "run", method="natural", eps=0.1, epochs=2, on_event=fail)
    monkeypatch.undo()
    assert (tmp_path / "run" / "config.toml").is_file()
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["last-00000000"]


def test_a_run_without_a_checkpoint_is_not_removed_if_its_folder_was_moved(tmp_path: Path) -> None:
    folder, other = tmp_path / "run", tmp_path / "other"
    other.mkdir()
    (other / "config.toml").write_text("not ours")

    class FaultError(Exception):
        pass

    def swap() -> None:
        with new_run(folder, settings()):
            folder.rename(tmp_path / "moved")
            other.rename(folder)
            raise FaultError

    with pytest.raises(FaultError):
        swap()
    assert (folder / "config.toml").read_text() == "not ours"
    assert (tmp_path / "moved" / "config.toml").is_file()


def test_overwrite_refuses_files_of_somebody_else(tmp_path: Path) -> None:
    options: dict[str, Any] = {"method": "natural", "eps": 0.1, "epochs": 1}
    fit(own_model(), Pictures(), out=tmp_path, **options)
    (tmp_path / "evaluation").mkdir()
    for name in ("evaluation/notes.txt", "checkpoints/thesis.tex", "notes.txt"):
        (tmp_path / name).write_text("mine")
        before = {path for path in tmp_path.rglob("*") if path.name != ".lock"}
        with refused("foreign-file"):
            fit(own_model(), Pictures(), out=tmp_path, overwrite=True, **options)
        assert {path for path in tmp_path.rglob("*") if path.name != ".lock"} == before
        (tmp_path / name).unlink()
    assert fit(own_model(), Pictures(), out=tmp_path, overwrite=True, **options).finished


def test_a_changed_config_is_not_the_one_of_the_checkpoint(tmp_path: Path) -> None:
    fit(own_model(), Pictures(), method="natural", eps=0.1, out=tmp_path, epochs=1)
    folder = RunFolder.open(tmp_path)
    text = folder.config.read_text()
    folder.config.write_text(text.replace("eps = 0.1", "eps = 0.3"))
    with refused("seal-wrong", path=folder.config):
        load(tmp_path, model=own_model())
    table = {key: value for key, value in from_toml(folder.config).items() if key != "format"}
    write_toml(folder.config, table)  # with a right seal
    with refused("config-not-of-checkpoint", differences={"eps": (0.1, 0.3)}):
        load(tmp_path, model=own_model())
    folder.config.write_text(text)
    load(tmp_path, model=own_model())


def test_a_copy_names_no_code_without_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets.py").write_text(
        "from pathlib import Path\nfrom torch import nn\n\n\ndef make(shape, classes):\n"
        "    Path('ran').touch()\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    chosen = settings(samples=60, epochs=2, method="natural", width=1, model="nets.py:make")
    run_in(tmp_path / "run", prepare(chosen))
    shutil.copytree("run", "copy")
    Path("ran").unlink()
    for act in (load, resume_run):
        with refused("foreign-code", folder=Path("copy"), settings=Path("copy/config.toml")):
            act("copy")
    with refused("foreign-code"):
        read_settings(Path("copy/config.toml"))
    assert not Path("ran").exists()
    assert resume_run("copy", trust=True).finished
    for options in ({"trust": True}, {"model": nn.Sequential(nn.Flatten(), nn.Linear(64, 10))}):
        assert not load("copy", **options).training
    Path("run").rename("moved")
    assert not load("moved").training


@pytest.fixture(name="four_threads_of_torch")
def four_threads_of_torch_() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("four_threads_of_torch")
def test_a_run_computes_with_its_own_number_of_threads(tmp_path: Path) -> None:
    """One unless more are asked for, kept in the config, also on a resume; torch's own number is as before."""
    common: dict[str, Any] = {"method": "natural", "eps": 0.1, "epochs": 1}
    used: set[int] = set()

    def keep(_: object) -> None:
        used.add(torch.get_num_threads())

    for expected, given in ((1, common), (2, {**common, "threads": 2})):
        out = tmp_path / str(expected)
        fit(own_model(), Pictures(), **given, out=out, on_event=keep)
        assert from_toml(out / "config.toml")["threads"] == expected
        assert RunFolder(out).read_environment().threads == expected
        shutil.rmtree(out / "checkpoints")
        (out / "metrics.csv").unlink()
        fit(own_model(), Pictures(), **common, out=out, resume=True, on_event=keep)
        assert used == {expected}
        assert torch.get_num_threads() == 4
        used.clear()
    with pytest.warns(CheckpointWarning, match="computed with 2 threads and continues with 3"):
        fit(own_model(), Pictures(), **common, threads=3, out=tmp_path / "2", resume=True)
    for wrong in (0, 1025):
        with refused("setting-value", setting="threads", value=wrong):
            fit(own_model(), Pictures(), **common, threads=wrong)


def test_memory_files_live_in_the_folder(tmp_path: Path) -> None:
    trained = fit(own_model(), Pictures(), out=tmp_path / "run", eps=0.1, epochs=1, steps=1, memory_files=True)
    assert trained.finished
    assert (tmp_path / "run" / "memory" / "memory.json").is_file()


def test_of_many_keys_that_do_not_fit_three_are_named(tmp_path: Path) -> None:
    fit(own_model(), Pictures(), method="natural", eps=0.1, out=tmp_path, epochs=1)
    deep = nn.Sequential(nn.Flatten(), nn.Linear(64, 2), *(nn.Linear(2, 2) for _ in range(8)))
    with pytest.raises(InputError, match=r"\(Missing key\(s\) in state_dict: \S+, \S+, \S+ and 11 more\): give"):
        load(tmp_path, model=deep)


def test_a_run_of_fit_goes_on_with_fit(tmp_path: Path) -> None:
    """To the weights of the uninterrupted run; the command line says how."""

    def stop(event: Event) -> None:
        if isinstance(event, EpochDone) and event.row.epoch == 2:
            raise KeyboardInterrupt

    common: dict[str, Any] = {"method": "pgd", "eps": 0.1, "epochs": 4, "steps": 2}
    model = own_model()
    twin = deepcopy(model)
    whole = fit(model, Pictures(), **common)
    with pytest.raises(KeyboardInterrupt):
        fit(twin, Pictures(), **common, out=tmp_path / "run", on_event=stop)
    rest = fit(own_model(), Pictures(), **common, out=tmp_path / "run", resume=True)
    assert rest.finished
    assert len(rest.history) < 4
    for a, b in zip(whole.model.parameters(), rest.model.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(InputError, match=r"continue it with sihg.fit\(..., out=..., resume=True\)"):
        prepare(read_settings(tmp_path / "run" / "config.toml"))
    with refused("resume-folder"):
        fit(own_model(), Pictures(), **common, resume=True)


def test_too_many_held_out_samples_are_refused() -> None:
    with refused("validation-range", validation=30):
        fit(own_model(), Pictures(), eps=0.1, samples=40, validation=30)


def test_a_search_of_a_threshold_is_refused_before_it_begins(tmp_path: Path) -> None:
    with refused("no-threshold"):
        fit(own_model(), Pictures(), eps=0.1, epochs=1, search="threshold", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_joined_processes_must_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them, each would train on its own, and write into the same folder."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "here"}.items():
        monkeypatch.setenv(name, value)
    for name, number in {"is_initialized": True, "get_rank": 0, "get_world_size": 2}.items():
        monkeypatch.setattr(f"torch.distributed.{name}", lambda number=number: number)

    def train(**options: Any) -> Trained:
        return fit(own_model(), Pictures(), method="natural", eps=0.1, epochs=1, **options)

    with join_processes():
        with refused("processes-not-given", size=2):
            train()
        with refused("processes-not-given", size=2):
            resume_run("any")
        assert train(processes=Processes()).finished
    assert train().finished  # nothing is joined any more
