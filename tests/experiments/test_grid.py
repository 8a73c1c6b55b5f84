"""The cells of a grid, how far each is, and the summary: recomputed by hand from the run folders."""

import csv
import json
import re
import shutil
import statistics
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from sihg.errors import InputError
from sihg.experiments.grid import Cell, Grid, RecordWarning
from sihg.experiments.grid_summary import GridWarning, collect_warnings, summarise
from sihg.robust.training.fit import new_folder
from sihg.store.files import write_bytes
from sihg.store.manifest import manifest_bytes
from sihg.store.run_folder import GRID, RunFolder, locked
from sihg.store.schema import read_json, write_json
from sihg.store.tables import Table
from tests.refused import refused
from tests.robust.small import settings

ATTACKS = ("natural", "pgd-20")


def grid(folder: Path, *methods: str, trials: int = 2, **changes: Any) -> Grid:
    chosen = {name: settings(method=name, **changes) for name in methods or ("pgd", "msi-hg")}
    return Grid(folder, chosen, trials, ATTACKS, None, 1)


def attack_row(name: str, accuracy: float) -> dict[str, Any]:
    names = ("low", "high", "samples", "broken", "passes", "forwards", "seconds", "passes_per_sample")
    return {"attack": name, "accuracy": accuracy, **dict.fromkeys((*names, "forwards_per_sample"), 0)}


def finish(cell: Cell, accuracy: float, *, epochs: int | None = None, **changes: Any) -> None:
    """Write what a cell leaves behind; its last checkpoint is that of step 12."""
    folder = new_folder(cell.folder, cell.settings, threads=1)
    table = Table(folder.metrics, ("epoch", "step", "passes", "seconds"))
    for epoch in range(1, (epochs or cell.settings.epochs) + 1):
        table.append({"epoch": epoch, "step": 4 * epoch, "passes": 6.0 * epoch, "seconds": accuracy * epoch})
    shares = {"natural": 0.9, "pgd-20": accuracy, "all": accuracy}
    write_checkpoint(folder, "last-00000008")
    record: dict[str, Any] = {
        "weights": str(folder.checkpoints / "last-00000012"),
        "sha256": write_checkpoint(folder, "last-00000012"),
        "checkpoint": "last",
        "data": "digits",
        "device": "cpu",
    }
    record |= {"split": "test", "samples": 397, "of": 397, "seed": 0, "eps": 0.25, "norm": "linf"}
    record |= {"bounds": [0.0, 1.0], "rule": "any iterate", "checks": []}
    record["attacks"] = [attack_row(name, share) for name, share in shares.items()]
    write_json(folder.evaluation / "some.json", record | changes)


def write_checkpoint(folder: RunFolder, name: str, threads: int = 1) -> str:
    """Write the manifest of a checkpoint; return the sum of its weights."""
    state = {"weights": sha256(f"{folder.path.name} {name}".encode()).hexdigest(), "threads": threads}
    write_bytes(folder.checkpoints / name / "manifest.json", manifest_bytes({}, state))
    return str(state["weights"])


def weights_of(cell: Cell, name: str) -> str:
    return str(json.loads((cell.folder / "checkpoints" / name / "manifest.json").read_bytes())["state"]["weights"])


def test_cells_are_methods_times_seeds(tmp_path: Path) -> None:
    cells = grid(tmp_path / "g").cells()
    assert [cell.name for cell in cells] == ["pgd-s0", "msi-hg-s0", "pgd-s1", "msi-hg-s1"]
    assert [cell.settings.seed for cell in cells] == [0, 0, 1, 1]
    assert cells[3].folder == tmp_path / "g" / "msi-hg-s1"
    assert cells[0].settings == settings(method="pgd").complete()
    assert (cells[0].epochs_done(), cells[0].record()) == (0, None)
    assert list(tmp_path.iterdir()) == []  # looking leaves nothing


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"weights": "somewhere/else/last-00000012"},
        {"epochs": 2},
        {"sha256": "0" * 64},
        {"sha256": ""},
        {"checkpoint": "best"},
        {"split": "train"},
        {"samples": 100},
        {"seed": 1},
        {"eps": 0.3},
        {"norm": "l2"},
        {"bounds": None},
        {"rule": "last iterate"},
        {"attacks": [attack_row("natural", 0.5)]},
        {"data": "mnist"},
    ],
)
def test_only_the_record_that_was_asked_for_makes_a_cell_done(changes: dict[str, Any], tmp_path: Path) -> None:
    cell = grid(tmp_path).cells()[0]
    finish(cell, 0.5, **changes)
    moved = "else" in changes.get("weights", "")  # a folder that was moved
    assert (cell.record() is not None) == (not changes or moved)


def test_only_a_record_of_the_newest_checkpoint_makes_a_cell_done(tmp_path: Path) -> None:
    first, second = grid(tmp_path).cells()[:2]
    for cell in (first, second):
        finish(cell, 0.5)
        assert cell.state() == "done"
    record = first.folder / "evaluation" / "some.json"
    content, newest, older = (
        json.loads(record.read_text()),
        *(weights_of(first, name) for name in ("last-00000012", "last-00000008")),
    )
    for weights, state in ((older, "trained"), (newest, "done")):  # the path that it names does not count
        write_json(record, content | {"sha256": weights, "weights": "elsewhere/last-00000012"})
        assert first.state() == state
    record.write_bytes((second.folder / "evaluation" / "some.json").read_bytes())  # of the same step in another run
    assert first.state() == "trained"
    write_json(record, content)
    shutil.rmtree(first.folder / "checkpoints")
    assert first.state() == "trained"  # nothing says what was evaluated


def test_a_changed_byte_in_the_metrics_is_noticed(tmp_path: Path) -> None:
    cell = grid(tmp_path).cells()[0]
    finish(cell, 0.5)
    metrics = cell.folder / "metrics.csv"
    before = metrics.read_bytes()
    for place in range(len(before) - 1):  # without its end, the last line counts as incomplete
        metrics.write_bytes(before[:place] + bytes([before[place] ^ 1]) + before[place + 1 :])
        with pytest.raises(InputError) as caught:
            cell.last_row()
        assert str(metrics) in str(caught.value), place
    metrics.write_bytes(before)
    assert cell.state() == "done"


def test_a_subset_of_the_test_set_is_another_record(tmp_path: Path) -> None:
    cell = replace(grid(tmp_path).cells()[0], samples=100)
    finish(cell, 0.5)
    assert cell.record() is None
    assert replace(cell, samples=397).record() is not None


def test_a_damaged_record_does_not_count(tmp_path: Path) -> None:
    cell = grid(tmp_path).cells()[0]
    finish(cell, 0.5)
    assert cell.state() == "done"
    record = cell.folder / "evaluation" / "some.json"
    before = record.read_bytes()
    for damage in (b"{", before.replace(b"0.25", b"0.75"), before[:-70] + b"}"):
        record.write_bytes(damage)
        with pytest.warns(RecordWarning, match=re.escape(str(record))):
            assert cell.record() is None
        with pytest.warns(RecordWarning):
            assert cell.state() == "trained"
    record.write_bytes(before)
    assert cell.state() == "done"


def test_the_summary_by_hand(tmp_path: Path) -> None:
    made = grid(tmp_path, trials=3)
    shares = {"pgd": (0.5, 0.4375, 0.25), "msi-hg": (0.75,)}
    for cell in made.cells():
        if cell.settings.seed < len(shares[cell.method]):
            finish(cell, shares[cell.method][cell.settings.seed])
    pgd, msi = summarise(made)
    found, passes = [], []
    for folder in sorted(tmp_path.glob("pgd-s*")):
        record = json.loads((folder / "evaluation" / "some.json").read_text())
        found += [row["accuracy"] for row in record["attacks"] if row["attack"] == "pgd-20"]
        with (folder / "metrics.csv").open() as file:
            passes.append(float(list(csv.DictReader(file))[-1]["passes"]))
    robust = pgd.spread("pgd-20")
    assert robust is not None
    assert robust.mean == pytest.approx(statistics.fmean(found))
    assert robust.deviation == pytest.approx((sum((x - statistics.fmean(found)) ** 2 for x in found) / 2) ** 0.5)
    assert (pgd.seeds, pgd.passes) == ((0, 1, 2), tuple(passes))
    assert pgd.seconds == (1.5, 1.3125, 0.75)
    assert (msi.seeds, msi.spread("pgd-20")) == ((0,), (0.75, None, 1, None, None, None))
    assert summarise(grid(tmp_path / "none", "pgd"))[0].spread("pgd-20") is None


def test_a_check_is_one_warning(tmp_path: Path) -> None:
    made = grid(tmp_path)
    fine = {"name": "radius", "result": "fine", "message": ""}
    found = [
        {"name": "steps", "result": "warning", "message": f"{cell.method} breaks {k}.5 % more"}
        for k, cell in enumerate(made.cells()[:3])
    ]
    for cell, check in zip(made.cells(), found, strict=False):
        finish(cell, 0.5, checks=[check, fine])
    finish(made.cells()[3], 0.5, checks=[{"name": "ball", "result": "error", "message": "a point is outside"}])
    assert collect_warnings(made) == [
        GridWarning("error", ("msi-hg-s1",), "a point is outside"),
        GridWarning("warning", ("pgd-s0", "msi-hg-s0", "pgd-s1"), "pgd breaks 0.5 % more"),
    ]
    assert str(collect_warnings(made)[1]) == "warning (pgd-s0 and 2 more): pgd breaks 0.5 % more"


def test_a_later_evaluation_answers_a_warning(tmp_path: Path) -> None:
    made = grid(tmp_path, "pgd", trials=2)
    for cell in made.cells():
        finish(cell, 0.5, checks=[{"name": "other attacks", "result": "warning", "message": "add standard"}])
    first, second = made.cells()
    record = read_json(first.folder / "evaluation" / "some.json", "")
    fine = {"name": "other attacks", "result": "fine", "message": ""}
    later = record | {"attacks": [record["attacks"][0] | {"attack": "standard"}], "checks": [fine]}
    write_json(first.folder / "evaluation" / "standard.json", later)
    assert collect_warnings(made) == [GridWarning("warning", (second.name,), "add standard")]


def opened(made: Grid) -> None:
    with made.opened():
        pass


@pytest.mark.parametrize(("epochs", "state"), [(1, "1 of 3 epochs"), (2, "2 of 3 epochs"), (3, "done")])
def test_a_cell_is_trained_after_its_last_epoch(epochs: int, state: str, tmp_path: Path) -> None:
    cell = grid(tmp_path).cells()[0]
    finish(cell, 0.5, epochs=epochs)
    assert cell.state() == state


def test_settings_are_kept_and_methods_and_trials_may_be_added(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "g"
    opened(grid(folder, "pgd"))
    first = (folder / GRID).read_bytes()
    opened(grid(folder, "pgd", trials=5))
    assert (folder / GRID).read_bytes() == first
    opened(grid(folder, "msi-hg", "dat"))
    kept = (folder / GRID).read_text()
    assert [name for name in ("pgd", "msi-hg", "dat") if f"[methods.{name}]" in kept] == ["pgd", "msi-hg", "dat"]
    opened(grid(folder, "pgd", "dat"))
    with refused("grid-settings-differ", settings=("methods.pgd.epochs",)):
        opened(grid(folder, "pgd", epochs=4))


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda g: replace(g, attacks=("natural",)), ["attacks"]),
        (lambda g: replace(g, samples=50), ["test_samples"]),
        (lambda g: replace(g, threads=2), ["threads"]),
        (
            lambda g: replace(g, settings={"pgd": settings(method="pgd", steps=7, lr=0.5, crop=1, flip=True)}),
            [f"methods.pgd.{name}" for name in ("flip", "crop", "method.steps", "optimizer.lr")],
        ),
    ],
)
def test_other_settings_are_refused(change: Callable[[Grid], Grid], names: list[str], tmp_path: Path) -> None:
    made = grid(tmp_path)
    opened(made)
    before = (tmp_path / GRID).read_bytes()
    with refused("grid-settings-differ", settings=tuple(names)):
        opened(change(made))
    with refused("grid-settings-differ"):
        change(made).check()
    assert (tmp_path / GRID).read_bytes() == before


def test_a_run_with_other_threads_is_refused(tmp_path: Path) -> None:
    """Sums of floats depend on their number, so the grid would mix two kinds of results."""
    made = grid(tmp_path)
    opened(made)
    cell = made.cells()[1]
    finish(cell, 0.5)
    made.check()
    folder = RunFolder(cell.folder)
    write_checkpoint(folder, "last-00000012", threads=made.threads + 1)
    with refused("grid-settings-differ", settings=("threads",), folder=cell.folder):
        made.check()
    shutil.rmtree(folder.checkpoints)
    made.check()  # as when the run began
    folder.begin(cell.settings.as_dict(), threads=made.threads + 1)
    with refused("grid-settings-differ", settings=("threads",), folder=cell.folder):
        made.check()


def test_runs_of_other_settings_are_refused_even_without_the_grids_file(tmp_path: Path) -> None:
    made = grid(tmp_path)
    opened(made)
    finish(grid(tmp_path, lr=0.5).cells()[2], 0.5)
    with refused("grid-settings-differ", settings=("optimizer.lr",)) as caught:
        made.check()
    assert f"{tmp_path / 'pgd-s1'} has optimizer.lr = 0.5 (here 0.05): give the same" in str(caught.value)
    replace(made, trials=1).check()
    config = tmp_path / "pgd-s1" / "config.toml"
    config.write_text(config.read_text().replace("lr = 0.5", "lr = 0.05"))
    with refused("seal-wrong", path=config):
        made.check()
    config.write_text("= broken")
    with refused("not-toml"):
        made.check()


def test_a_changed_byte_in_the_grids_file_is_noticed(tmp_path: Path) -> None:
    made = grid(tmp_path, "pgd")
    opened(made)
    config = tmp_path / GRID
    before = config.read_bytes()
    for place in range(len(before)):
        config.write_bytes(before[:place] + bytes([before[place] ^ 1]) + before[place + 1 :])
        for trust in (False, True):
            with pytest.raises(InputError) as caught:
                replace(made, trust=trust).check()
            assert str(config) in str(caught.value), place
    config.write_bytes(before)
    made.check()


def test_a_grid_that_no_own_command_made_needs_trust(tmp_path: Path) -> None:
    """Its results would count as the user's."""
    made = grid(tmp_path / "mine")
    opened(made)
    (tmp_path / "mine").rename(tmp_path / "moved")
    opened(replace(made, folder=tmp_path / "moved"))  # still the user's own
    copy = replace(made, folder=Path(shutil.copytree(tmp_path / "moved", tmp_path / "copy")))
    for use in (opened, Grid.check):
        with refused("foreign-grid", folder=copy.folder):
            use(copy)
        use(replace(copy, trust=True))


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with refused("folder-not-a-grid", found="thesis.tex"):
        opened(grid(tmp_path))
    with refused("out-is-a-file"):
        grid(tmp_path / "thesis.tex").check()
    with refused("cannot-make-folder"):
        opened(grid(tmp_path / "thesis.tex" / "g"))
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    for left in (".lock", f".{GRID}.0123abcd", "..owner.0123abcd"):  # of a process that was killed
        (fresh / left).write_text("")
    opened(grid(fresh))


def test_one_grid_at_a_time(tmp_path: Path) -> None:
    with locked(tmp_path), refused("folder-in-use"):
        opened(grid(tmp_path))
