"""The paper's numbers next to ours."""

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from sihg.report.read.published import departures, describe_departures, find_published
from sihg.report.read.runs import group_trials, read_run
from sihg.report.tables.training_tables import entry_table
from sihg.report.training_report import report_training
from sihg.robust.training.config import read_preset
from sihg.store.schema import Settings, flatten_settings
from sihg.store.statistics import Spread
from tests.report.folders import write_evaluation, write_run

MNIST: Settings = {
    "data": "mnist",
    "model": "small-cnn",
    "width": 1.0,
    "eps": 0.4,
    "norm": "linf",
    "method.name": "msi-hg",
}
SETTINGS: dict[str, Any] = {"data": "mnist", "width": 1.0, "eps": 0.4}


def test_numbers_of_the_paper() -> None:
    paper = find_published(MNIST)
    assert paper is not None
    assert paper.final["pgd-50-10"] == Spread(0.4451, 0.0204, 5)
    assert paper.best["pgd-20"] == Spread(0.6631, 0.0341, 5)
    assert paper.citation(best=False).endswith(", Table 3 (section 5)")
    assert paper.citation(best=True).endswith(", Table 3 (section 5) and Table 4 (section 5)")
    svhn = find_published({**MNIST, "data": "svhn", "model": "preact-resnet8", "eps": 4 / 255, "method.name": "pgd"})
    assert svhn is not None
    assert svhn.final["natural"] == Spread(0.9131, 0.0055, 5)
    quoted = find_published(
        {**MNIST, "data": "cifar10", "model": "preact-resnet18", "eps": 8 / 255, "method.name": "yopo"}
    )
    assert quoted is not None
    assert quoted.final["natural"] == Spread(0.8399, None, None)
    assert quoted.best == {}
    assert quoted.trials is None
    assert quoted.citation(best=True).endswith(", Table 3 (section 5)")
    assert quoted.recipe["epochs"] == 36  # the authors', not the paper's 30


@pytest.mark.parametrize(
    "change",
    [{"data": "digits"}, {"width": 0.5}, {"eps": 0.3}, {"method.name": "trades"}, {"norm": "l2"}, {"model": "mine"}],
)
def test_other_settings_have_no_published_result(change: dict[str, Any]) -> None:
    assert find_published({**MNIST, **change}) is None


def test_both_networks_that_the_papers_words_allow_have_its_results() -> None:
    assert find_published({**MNIST, "model": "norm-cnn"}) == find_published(MNIST) is not None


@pytest.mark.parametrize("name", ["mnist", "svhn", "cifar10"])
def test_files_are_complete(name: str) -> None:
    about = tomllib.loads(files("sihg.report.read").joinpath(f"paper/{name}.toml").read_text(encoding="utf-8"))
    assert about["setting"]["data"] == name
    assert {*about["methods"]} == {"pgd", "dat", "yopo", "msi-hg"}
    for method in about["methods"].values():
        for numbers in (*method["final"].values(), *method.get("best", {}).values()):
            assert all(0 <= number <= 100 for number in numbers)
            assert len(numbers) in (1, 2)


def test_a_row_of_the_paper_stands_below_ours(tmp_path: Path) -> None:
    for seed in range(2):
        write_evaluation(write_run(tmp_path / f"m-s{seed}", seed=seed, **SETTINGS), data="mnist", eps=0.4)
    found = group_trials([read_run(tmp_path / f"m-s{seed}") for seed in range(2)])
    table, owners = entry_table(found)
    keys = [column.key for column in table.columns]
    assert owners == [found[0], None]
    paper = dict(zip(keys, table.rows[1], strict=True))
    assert paper["entry"] == "paper: MSI-HG"
    assert paper["test pgd-20"] == Spread(0.6234, 0.0333, 5)
    assert paper["best_robust"] == Spread(0.6631, 0.0341, 5)
    assert paper["seconds"] is None
    report_training(tmp_path)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "62.34" in page
    assert "Table 3 (section 5) and Table 4 (section 5)" in page
    assert "epochs (50): 3" in page
    assert "bounds (none): [0.0, 1.0]" in page


def test_each_data_set_has_its_row_of_the_paper(tmp_path: Path) -> None:
    other: dict[str, Any] = {"data": "svhn", "model": "preact-resnet8", "width": 1.0, "eps": 4 / 255}
    runs = [write_run(tmp_path / "m", **SETTINGS), write_run(tmp_path / "n", **SETTINGS, batch_size=1)]
    runs += [write_run(tmp_path / "s", **other)]
    table, _ = entry_table(group_trials([read_run(run) for run in runs]))
    assert [row[0] for row in table.rows] == ["m", "paper: MSI-HG", "n", "s", "paper: MSI-HG"]
    column = [column.key for column in table.columns].index("best_robust")
    assert [table.rows[i][column] for i in (1, 4)] == [Spread(0.6631, 0.0341, 5), Spread(0.6844, 0.0015, 5)]


def test_digits_have_no_row_of_the_paper(tmp_path: Path) -> None:
    write_evaluation(write_run(tmp_path / "m"))
    report_training(tmp_path / "m")
    assert "paper" not in (tmp_path / "m" / "index.html").read_text(encoding="utf-8").split("</style>")[1]


def test_departures_are_the_settings_that_differ() -> None:
    assert departures({"epochs": 15, "lr": 0.1}, {"epochs": 50, "lr": 0.1, "crop": 0}) == {"epochs": (15, 50)}
    said = {"a": "some", "b": "some", "tau": "6/255", "clip": "none"}
    ours = {"a": 0, "b": 4, "tau": 6 / 255, "clip": 0.45}
    assert departures(ours, said) == {"a": (0, "some"), "clip": (0.45, "none")}


def test_values_of_all_runs_are_listed_if_some_differ() -> None:
    paper = find_published(MNIST)
    assert paper is not None
    one, other = {**MNIST, "ema": 0.998, "clip": "none"}, {**MNIST, "ema": 0.0, "clip": "none"}
    (said,) = describe_departures([(one, paper), (other, paper)])
    assert said.endswith(": ema (0): 0.998 / 0.0.")
    assert list(describe_departures([(other, paper)])) == []


def test_a_method_can_have_its_own_recipe() -> None:
    def recipe(method: str, **change: Any) -> dict[str, Any]:
        paper = find_published({**MNIST, **change, "method.name": method})
        assert paper is not None
        return dict(paper.recipe)

    svhn: dict[str, Any] = {"data": "svhn", "model": "preact-resnet8", "eps": 4 / 255}
    assert (recipe("msi-hg")["optimizer.theta"], recipe("pgd")["optimizer.theta"]) == (1, 0)
    assert (recipe("msi-hg")["method.tau"], recipe("msi-hg", **svhn)["method.tau"]) == (0.2, "6/255")
    assert recipe("yopo")["epochs"] == 50
    assert (recipe("yopo", **svhn)["batch_size"], recipe("pgd", **svhn)["batch_size"]) == (256, 100)
    assert recipe("yopo", **svhn)["schedule.name"] == "piecewise"


@pytest.mark.parametrize("name", ["mnist", "svhn", "cifar10"])
@pytest.mark.parametrize("method", ["pgd", "dat", "yopo", "msi-hg"])
def test_recipes_name_existing_settings(name: str, method: str) -> None:
    settings = flatten_settings(read_preset(name, method).complete().as_dict())
    paper = find_published(settings)
    assert paper is not None
    assert {key for key in paper.recipe if key not in settings} == set()
