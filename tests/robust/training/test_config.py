"""Settings: what people type becomes what a run needs; nothing is lost on the way, nothing unknown is swallowed."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from sihg.errors import InputError
from sihg.robust.methods import METHODS, build_method, method_fields
from sihg.robust.training import config as module
from sihg.robust.training.config import (
    Choice,
    OptimizerOptions,
    Settings,
    read_preset,
    read_presets,
    read_run_settings,
    read_settings,
    resolve_name,
)
from sihg.robust.training.optimizer import build_optimizer
from sihg.store.archive import unpacked
from sihg.store.files import from_toml
from sihg.store.run_folder import RunFolder
from tests.refused import refused

ARCHIVES = Path(__file__).parents[3] / "results"


def changed(**values: Any) -> Settings:
    return Settings().with_values(values)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("eps", "8/255", 8 / 255),
        ("eps", 1, 1.0),
        ("epochs", "7", 7),
        ("epochs", 7.0, 7),
        ("epochs", "1e1", 10),
        ("flip", "yes", True),
        ("flip", "False", False),
        ("flip", True, True),
        ("samples", "none", None),
        ("samples", "100", 100),
        ("clip", "1/2", 0.5),
        ("clip", None, None),
        ("bounds", "none", None),
        ("bounds", "-1,2.5", (-1.0, 2.5)),
        ("bounds", [0, 1], (0.0, 1.0)),
        ("data", Path("digits"), "digits"),
        ("checkpoint_minutes", "0.5", 0.5),
    ],
)
def test_values_get_the_declared_type(name: str, text: Any, value: Any) -> None:
    found = getattr(changed(**{name: text}), name)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"epochs": "1.5"}, "not-an-integer"),
        ({"epochs": "inf"}, "not-an-integer"),
        ({"epochs": float("nan")}, "not-an-integer"),
        ({"epochs": True}, "not-a-number"),
        ({"epochs": "none"}, "none-not-allowed"),
        ({"epochs": 0}, "setting-value"),
        ({"theta": "abc"}, "not-a-number"),
        ({"lr": [0.1]}, "not-a-number"),
        ({"nesterov": "maybe"}, "not-a-bool"),
        ({"eps": "8/0"}, "not-a-number"),
        ({"eps": "true"}, "not-a-number"),
        ({"eps": [1]}, "not-a-number"),
        ({"flip": "maybe"}, "not-a-bool"),
        ({"bounds": "1"}, "number-of-values"),
        ({"bounds": 1}, "number-of-values"),
        ({"bounds": "0,inf"}, "bounds-not-finite"),
        ({"validation": -1}, "setting-value"),
        ({"validate_on": "test"}, "validate-on-nothing"),
        ({"validate_on": "both"}, "setting-value"),
        ({"samples": 0}, "setting-value"),
        ({"ema": 1}, "setting-value"),
        ({"clip": 0}, "setting-value"),
        ({"clip": "inf"}, "setting-value"),
        ({"checkpoint_minutes": "nan"}, "setting-value"),
        ({"tau": "far"}, "not-a-number"),
        ({"method.steps": 1.5}, "not-an-integer"),
        ({"schedule.points": "[[0, 0], [5"}, "not-a-list"),
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any], code: str) -> None:
    with refused(code):
        Settings().with_values(values)


def test_a_wrong_value_is_named_with_its_setting() -> None:
    with pytest.raises(InputError, match=r"^eps must be a number such as 5, 0.1 or 8/255, got '8/0'"):
        changed(eps="8/0")
    with pytest.raises(InputError, match=r"^epochs must be an integer >= 1, got 0: leave it out for the default"):
        changed(epochs=0)
    assert changed(checkpoint_minutes="inf").checkpoint_minutes == float("inf")  # never, but at the end of an epoch


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("epoch", "unknown-setting", "did you mean 'epochs'?"),
        ("learning_rate", "unknown-setting", "`sihg train --help` lists all settings"),
        ("taus", "unknown-setting", "did you mean 'tau'?"),
        ("optimizer.", "unknown-setting", "'optimizer.'"),
        ("data.path", "unknown-setting", "'data.path'"),
        ("replays", "setting-of-another-method", "which belongs to free: leave it out"),
        ("method.replays", "option-unknown", "its settings are eps, norm, bounds, ramp, label_smoothing"),
        ("method.eps", "run-setting", "belongs to the whole run, not to its method"),
    ],
)
def test_unknown_names_raise_with_a_hint(name: str, code: str, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)) as caught:
        Settings().with_values({name: "1"})
    assert caught.value.code == code


def test_unknown_methods_list_the_choices() -> None:
    for values in ({"method": "mis-hg"}, {"method": {"name": "mis-hg"}}, {"method.name": "mis-hg"}):
        with refused("unknown-method", name="mis-hg", choices=tuple(METHODS)):
            Settings().with_values(values)


def test_names_as_people_type_them() -> None:
    assert resolve_name("batch-size", "pgd") == "batch_size"
    assert resolve_name("weight-decay", "pgd") == "optimizer.weight_decay"
    assert resolve_name("step-size", "pgd") == "method.step_size"
    assert resolve_name("schedule.peak", "pgd") == "schedule.peak"
    assert resolve_name("method.name", "pgd") == "method"
    assert resolve_name("eps", "pgd") == "eps"
    assert changed(lr="1/2", tau=0.1).optimizer.options["lr"] == 0.5


def test_none_as_a_text_is_a_choice_where_the_setting_is_a_text() -> None:
    assert changed(augment_delta="none").method.options["augment_delta"] == "none"
    assert "step_size" not in changed(step_size="none").method.options
    assert changed(memory="none").memory is None
    assert "lr" not in changed(lr="none").optimizer.options  # torch's own


@pytest.mark.parametrize("first", ["method", "setting"])
def test_the_order_of_values_makes_no_difference(first: str) -> None:
    pairs: list[tuple[str, Any]] = [("method", "free"), ("replays", 3), ("optimizer", "adamw"), ("lr", 0.01)]
    found = Settings().with_values(dict(pairs if first == "method" else pairs[::-1]))
    assert found.method == Choice("free", {"replays": 3})
    assert found.optimizer == Choice("adamw", {"lr": 0.01})
    wrong = {"method.tau": 0.1, "method": "pgd"}
    with refused("option-unknown", option="tau"):
        Settings().with_values(wrong if first == "method" else dict(reversed(wrong.items())))


def test_another_method_keeps_what_it_has_too() -> None:
    before = changed(
        tau=0.1, steps=7, ramp=2, epochs=9, lr=0.3, weight_decay=0.01, schedule={"name": "cosine", "warmup": 1}
    )
    after = before.with_values({"method": "pgd"})
    assert after.method == Choice("pgd", {"steps": 7, "ramp": 2.0})
    assert (after.epochs, after.optimizer, after.schedule) == (9, before.optimizer, before.schedule)
    assert before.with_values({"method": "msi-hg"}) == before
    other = before.with_values({"optimizer": "adam", "schedule": "constant"})
    assert other.optimizer == Choice("adam", {"weight_decay": 0.01})  # the lr of SGD does not carry over to Adam
    assert other.schedule == Choice("constant")
    assert other.method == before.method


def test_tables_with_a_name_are_whole_sections_without_one_changes() -> None:
    assert changed(optimizer={"lr": 0.2}).optimizer == Choice("sgd", {"lr": 0.2, "momentum": 0.9})
    assert changed(optimizer={"name": "sgd", "lr": 0.2}).optimizer == Choice("sgd", {"lr": 0.2})
    assert changed(tau=0.1).with_values({"method": {"steps": 2}}).method == Choice("msi-hg", {"tau": 0.1, "steps": 2})
    assert changed(tau=0.1).with_values({"method": {"name": "pgd"}}).method == Choice("pgd")


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"eps": 8 / 255, "bounds": None, "samples": 100, "clip": 0.1, "flip": True, "ema": 0.998},
        {"bounds": (-0.1, 1.3), "tau": 0.1, "step_size": None, "noise": 0.0, "augment_delta": "none"},
        {"method": "dat", "weighted": True, "fosc": "published", "optimizer": "adamw", "optimizer.betas": (0.8, 0.99)},
        {"optimizer": {"name": "sgd", "lr": 0.1}, "schedule": "cyclic", "schedule.points": "[[0, 0], [5, 1/10]]"},
        {"optimizer": "adamw", "schedule": {"name": "piecewise", "milestones": [3, 4.5]}},
        {"method": "natural", "data": 'folder:a "b" \\ c'},
    ],
)
def test_the_saved_config_gives_equal_settings(tmp_path: Path, values: dict[str, Any]) -> None:
    if "schedule.points" in values:
        values = {**values, "schedule.points": [[0, 0], [5, 0.1]]}
    before = Settings().with_values(values)
    folder = RunFolder(tmp_path)
    folder.begin(before.as_dict(), threads=1)
    assert read_run_settings(folder) == before


def test_every_setting_has_a_help_text() -> None:
    assert [f.name for f in (*fields(Settings), *fields(OptimizerOptions)) if not f.metadata["help"]] == []


@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_be_built_from_settings(method: str) -> None:
    norm = "linf" if method == "ibp" else "l2"  # which has no other
    chosen = changed(method=method, eps=0.1, norm=norm, bounds=None, epochs=10)
    built = build_method(method, **chosen.method_arguments())
    if method != "natural":
        assert (built.eps, built.norm, built.bounds) == (0.1, norm, None)
    if method == "dat":
        assert built.control_epochs == 8
        assert build_method("dat", **changed(method="dat", control_epochs=3).method_arguments()).control_epochs == 3


@pytest.mark.parametrize("method", METHODS)
def test_every_preset_has_every_method(method: str) -> None:
    if not (names := read_presets()):
        pytest.skip("no presets yet")
    for name in names:
        chosen = read_preset(name, method)
        assert chosen.method.name == method
        assert 0 < chosen.eps < 1
        assert Settings().with_values(chosen.as_dict()) == chosen
        build_method(method, **chosen.method_arguments())
        if chosen.optimizer.name == "sgd":
            assert chosen.optimizer.options["momentum"] == 0.9


def test_presets_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {
        "about": "a test",
        "eps": "8/255",
        "method": {"name": "msi-hg", "tau": 0.1, "steps": 4},
        "optimizer": {"lr": 0.5},
        "methods": {"pgd": {"epochs": 3, "method": {"ramp": 2}, "optimizer": {"nesterov": True}}},
    }
    monkeypatch.setattr(module, "read_presets", lambda: {"one": made})
    assert read_preset("one").method == Choice("msi-hg", {"tau": 0.1, "steps": 4})
    assert read_preset("one").eps == 8 / 255
    pgd = read_preset("one", "pgd")
    assert pgd.method == Choice("pgd", {"steps": 4, "ramp": 2.0})
    assert pgd.optimizer == Choice("sgd", {"lr": 0.5, "momentum": 0.9, "nesterov": True})
    assert pgd.epochs == 3
    with refused("unknown-preset", name="two", choices=("one",)):
        read_preset("two")
    with refused("unknown-method", name="sgd"):
        read_preset("one", "sgd")
    assert "about" in made  # what was read is left as it was


def test_hyperparameters_are_no_settings_of_the_run() -> None:
    own = {f.name for f in fields(Settings)}
    assert {name for method in METHODS for name in method_fields(method) if name in own} == {"eps", "norm", "bounds"}


# ---- nothing implicit


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "adafactor"])
def test_a_complete_config_says_everything_and_gives_the_same_run(tmp_path: Path, method: str, optimizer: str) -> None:
    norm, memory = ("linf", "int8") if method == "ibp" else ("l2", "fp16")
    given = changed(method=method, optimizer=optimizer, schedule="cosine", epochs=10, norm=norm, weight_decay=0.01)
    whole = given.complete()
    assert whole.complete() == whole
    folder = RunFolder(tmp_path)
    folder.begin(whole.as_dict(), whole.help_texts(), threads=1)
    assert read_settings(folder.config) == whole
    table = from_toml(folder.config)
    assert table["method"].keys() == {"name", *method_fields(method)} - {"eps", "norm", "bounds"}
    assert table["optimizer"]["theta"] == given.theta == (1.0 if method == "msi-hg" else 0.0)
    assert (table["memory"], table["samples"]) == (memory, "none")
    assert table["schedule"] == {"name": "cosine", "warmup": 0.0}
    for before, after in ((given, whole), (whole, read_settings(folder.config))):
        assert build_method(method, **before.method_arguments()) == build_method(method, **after.method_arguments())
        first, second = (
            build_optimizer(torch.nn.Linear(2, 2), s.optimizer.name, s.optimizer.options, s.theta)
            for s in (before, after)
        )
        assert {k: v for k, v in first.param_groups[0].items() if k != "params"} == {
            k: v for k, v in second.param_groups[0].items() if k != "params"
        }


def test_every_line_of_the_config_is_explained(tmp_path: Path) -> None:
    folder, whole = RunFolder(tmp_path), changed(tau=0.1).complete()
    folder.begin(whole.as_dict(), whole.help_texts(), threads=1)
    lines = folder.config.read_text().splitlines()
    assert lines[lines.index("epochs = 20") - 1] == "# how often every sample is visited"
    assert lines[lines.index("tau = 0.1") - 1].startswith("# how far from the stored perturbation")
    assert lines[lines.index('step_size = "none"') - 1].startswith("# length of an ascent step (default 2.5 eps / T")


def test_the_usual_theta_belongs_to_its_method() -> None:
    assert changed().complete().with_values({"method": "pgd"}).theta == 0.0
    assert changed(method="pgd").complete().with_values({"method": "msi-hg"}).theta == 1.0
    assert changed(theta=0.5).with_values({"method": "pgd"}).theta == 0.5
    assert changed().complete().with_values({"method": "pgd", "theta": 1}).theta == 1.0


def test_the_memory_suits_the_norm() -> None:
    assert [changed(norm=norm).complete().memory for norm in ("Linf", "l2", "L1")] == ["int8", "fp16", "fp16"]
    assert changed(norm="L2").norm == "l2"
    assert changed(norm="l2", memory="fp32").complete().memory == "fp32"


def test_paths_mean_the_same_from_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = tmp_path.resolve()
    whole = changed(data="npz:mine.npz", model="nets.py:make").complete()
    assert (whole.data, whole.model) == (f"npz:{here / 'mine.npz'}", f"{here / 'nets.py'}:make")
    other = changed(data="folder:a:b", model="package.nets:make").complete()
    assert (other.data, other.model) == (f"folder:{here / 'a:b'}", "package.nets:make")
    assert changed(data="digits").complete().data == "digits"
    for name in ("npy:a", "hf:a", "wds:a-{0..3}.tar"):
        kind, _, path = name.partition(":")
        assert changed(data=name).complete().data == f"{kind}:{here / path}"
        assert module.code_in(changed(data=name)) == {}
        assert module.code_in(changed(model=name)) == {"model": f"model {name}"}


def test_a_file_may_be_written_like_a_preset(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('about = "mine"\neps = "8/255"\n[method]\ntau = 0.01\n[methods.pgd]\nepochs = 3\n')
    assert (read_settings(path).eps, read_settings(path).method_settings.tau) == (8 / 255, 0.01)
    assert (read_settings(path, "pgd").epochs, read_settings(path, "pgd").method) == (3, Choice("pgd"))
    for text, message, code in (
        ("epoch = 3", "mine.toml: unknown setting 'epoch': did you mean 'epochs'", "unknown-setting"),
        ("methods = 3", "mine.toml: methods must be tables", "methods-not-tables"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=message) as caught:
            read_settings(path)
        assert caught.value.code == code
    path.write_text("epochs = [")
    with pytest.raises(InputError, match=r"mine.toml is not valid TOML"):
        read_settings(path)


@pytest.mark.parametrize("archive", sorted(ARCHIVES.glob("*.zip")), ids=lambda path: path.name)
def test_the_configs_of_published_runs_still_read(archive: Path) -> None:
    with unpacked([archive]) as found:
        configs = sorted(found.places[archive].rglob("config.toml"))
        assert configs
        for path in configs:
            check_settings_are_kept(path)


def check_settings_are_kept(path: Path) -> None:
    settings = read_run_settings(RunFolder(path.parent), trust=True)  # a model of benchmarks/ is named by its code
    table, kept = settings.as_dict(), from_toml(path)
    removed = {"accumulate", "format"}  # `lanes`, which means another noise; the format is of the file
    assert {key: value for key, value in table.items() if key in kept} == {
        k: v for k, v in kept.items() if k not in removed
    }
