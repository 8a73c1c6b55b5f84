"""Lengths of presets keep their share of eps; lengths of the user, given or in a file, stay."""

from pathlib import Path

import pytest

from sihg.cli.main import main
from sihg.cli.train import choose_settings
from sihg.experiments.grid_run import build_grid
from sihg.robust.methods.registry import METHODS, method_fields
from sihg.robust.training.config import Settings, read_preset, read_presets
from sihg.robust.training.lengths import change_config, change_preset
from tests.refused import refused

LENGTHS = ("tau", "noise", "step_size")


def shares(settings: Settings) -> dict[str, float]:
    """All lengths of a run, in units of eps."""
    found = settings.method.options
    return {name: float(found[name]) / settings.eps for name in LENGTHS if name in found}  # type: ignore[arg-type]


def test_every_length_is_marked() -> None:
    marked = {name for method in METHODS for name, item in method_fields(method).items() if item.metadata.get("length")}
    assert marked == set(LENGTHS)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("preset", read_presets())
def test_every_length_of_every_preset_keeps_its_share_of_eps(preset: str, method: str, norm: str) -> None:
    if method == "ibp" and norm == "l2":
        pytest.skip("interval bounds are for linf")
    before = read_preset(preset, method)
    after, lines = change_preset(preset, before, {"eps": "3/7", "norm": norm})
    assert (after.eps, after.norm) == (3 / 7, norm)
    assert shares(after) == pytest.approx(shares(before))
    assert [line.split()[0] for line in lines] == [name for name in after.method.options if name in LENGTHS]
    same = {name: value for name, value in before.method.options.items() if name not in LENGTHS}
    assert {name: value for name, value in after.method.options.items() if name not in LENGTHS} == same
    assert change_preset(preset, before, {"epochs": 3}) == (before.with_values({"epochs": 3}), [])


def test_the_digits_example(capsys: pytest.CaptureFixture[str]) -> None:
    settings = choose_settings("digits", {"norm": "l2", "eps": "1"})
    assert settings.method.options["tau"] == 0.5
    assert capsys.readouterr().err.splitlines() == [
        "settings: preset digits",
        "settings: tau 0.125 -> 0.5: it follows eps (preset: tau = 0.5 eps)",
    ]


@pytest.mark.parametrize("eps", ["0", "-1", "nan", "inf"])
def test_no_length_follows_an_eps_that_cannot_be_used(eps: str) -> None:
    """The error is then about eps, which the user gave, and not about tau."""
    before = read_preset("digits", "msi-hg")
    after, lines = change_preset("digits", before, {"eps": eps})
    assert (after.method.options["tau"], lines) == (0.125, [])


@pytest.mark.parametrize("name", ["tau", "method.tau"])
def test_what_the_user_gives_stays(name: str) -> None:
    before = read_preset("mnist-robust")
    after, lines = change_preset("mnist-robust", before, {"eps": 0.2, name: 0.3})
    assert after.method.options["tau"] == 0.3
    assert after.method.options["noise"] == pytest.approx(0.1)
    assert [line.split()[0] for line in lines] == ["noise"]
    after, lines = change_preset("mnist-robust", before, {"eps": 0.2, "method": {"tau": 0.3}})
    assert (after.method.options["tau"], len(lines)) == (0.3, 1)


def test_a_length_of_another_method_does_not_come_along() -> None:
    settings = choose_settings("cifar10", {"method": "yopo", "eps": "4/255"})
    assert settings.method.options["step_size"] == pytest.approx(1 / 255)
    assert not choose_settings("cifar10", {"method": "pgd", "eps": "4/255"}).method.options.keys() & set(LENGTHS)


def test_a_file_of_the_users_own_is_taken_as_it_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('data = "digits"\neps = 0.25\n[method]\nname = "msi-hg"\ntau = 0.125\n', encoding="utf-8")
    settings = choose_settings(None, {"eps": "0.5"}, config=path)
    assert settings.method.options["tau"] == 0.125
    assert capsys.readouterr().err.splitlines()[1:] == [
        f"settings: tau stays 0.125, as {path} has it, with eps 0.5 instead of 0.25"
    ]
    choose_settings(None, {"eps": "0.5", "tau": "0.25"}, config=path)
    choose_settings(None, {"epochs": "2"}, config=path)
    assert capsys.readouterr().err.splitlines() == [f"settings: {path}"] * 2
    settings, lines = change_config(path, settings, {"norm": "l2", "eps": 0.5})
    assert len(lines) == 1  # the same number in another norm


@pytest.mark.parametrize("source", ["preset", "file", "nothing"])
def test_another_norm_needs_an_eps(source: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('data = "digits"\neps = 0.3\n', encoding="utf-8")
    given = {"norm": "l2", **({"data": "fashion-mnist"} if source == "nothing" else {})}
    with refused("norm-without-radius", norm="l2", source_norm="linf"):
        choose_settings("digits" if source == "preset" else None, given, config=path if source == "file" else None)
    assert choose_settings("digits", {"norm": "linf"}).norm == "linf"


def test_a_run_keeps_what_was_resolved(tmp_path: Path) -> None:
    words = "--preset digits --eps 1 --norm l2 --epochs 1 --samples 60 --validation 10 --width 0.25"
    assert main(["train", *words.split(), "--out", str(tmp_path / "run")]) == 0
    assert "tau = 0.5" in (tmp_path / "run" / "config.toml").read_text(encoding="utf-8")
    assert main(["resume", str(tmp_path / "run")]) == 0


def test_a_grid_says_what_followed() -> None:
    grid = build_grid("digits", methods="pgd,msi-hg", settings={"eps": 0.5})
    assert grid.settings["msi-hg"].method.options["tau"] == 0.25
    assert grid.remarks == ("msi-hg: tau 0.125 -> 0.25: it follows eps (preset: tau = 0.5 eps)",)
    assert build_grid("digits", methods="msi-hg", settings={"eps": 0.5, "tau": 0.1}).remarks == ()
    with refused("norm-without-radius", norm="l2"):
        build_grid("digits", methods="pgd", settings={"norm": "l2"})
