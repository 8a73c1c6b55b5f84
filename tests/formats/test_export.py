"""A trained model in other formats: read back with the same bits, the same logits, and a card of what was measured."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import sihg
from sihg.cli.main import main
from sihg.formats import graph_files
from sihg.robust import data, models
from sihg.robust.models.normalise import Normalise
from sihg.store.schema import read_evaluation
from tests.refused import refused

TRAIN = ["--data", "digits", "--method", "msi-hg", "--samples", "300", "--validation", "50", "--epochs", "2"]
TRAIN += ["--width", "0.5", "--steps", "2", "--ramp", "1"]
FILES = {"README.md", "config.json", "model.safetensors"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was not evaluated."""
    out = tmp_path_factory.mktemp("runs") / "trained"
    assert main(["train", *TRAIN, "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with evaluations by a few attacks and by the standard set."""
    out = tmp_path_factory.mktemp("evaluated") / "trained"
    assert main(["train", *TRAIN, "--out", str(out)]) == 0
    for attacks in ("natural,pgd-2", "natural,standard"):
        assert main(["evaluate", str(out), "--attacks", attacks, "--samples", "20"]) == 0
    assert main(["evaluate", str(out), "--attacks", "fgsm", "--samples", "20", "--curve", "0:0.25:2"]) == 0
    return out


def images(n: int = 64) -> torch.Tensor:
    return data.load("digits")[1].floats(torch.arange(n))


# ---- the Hugging Face folder


@pytest.mark.parametrize("checkpoint", ["last", "best"])
def test_a_folder_is_read_back_with_the_same_bits(run: Path, tmp_path: Path, checkpoint: str) -> None:
    done = sihg.export(run, tmp_path / "model", to="hf", checkpoint=checkpoint)
    assert {file.name for file in done.files} == FILES == {path.name for path in (tmp_path / "model").iterdir()}
    ours, theirs = sihg.load(run, checkpoint=checkpoint), sihg.load(tmp_path / "model")
    weights = theirs.state_dict()
    assert ours.state_dict().keys() == weights.keys()
    for name, value in ours.state_dict().items():
        assert value.dtype == weights[name].dtype
        assert torch.equal(value, weights[name])
    assert torch.equal(ours(images()), theirs(images()))


def test_averaged_weights_are_exported(tmp_path: Path) -> None:
    assert main(["train", *TRAIN, "--ema", "0.9", "--out", str(tmp_path / "run")]) == 0
    sihg.export(tmp_path / "run", tmp_path / "model", to="hf")
    assert torch.equal(sihg.load(tmp_path / "run")(images()), sihg.load(tmp_path / "model")(images()))


def test_an_evaluation_of_the_folder_is_that_of_the_run(evaluated: Path, tmp_path: Path) -> None:
    sihg.export(evaluated, tmp_path / "model", to="hf")
    request = sihg.EvaluationRequest("natural,pgd-2", samples=20)
    found = sihg.evaluate_run(tmp_path / "model", request, out=tmp_path / "out")
    (path,) = (path for path in (evaluated / "evaluation").glob("*pgd-2*.json"))
    record, of_run = found.record, read_evaluation(path)
    assert record.sha256 == of_run.sha256
    scores = [
        [(row.attack, row.accuracy, row.broken) for row in part.attacks]  # type: ignore[union-attr]
        for part in (record, of_run)
    ]
    assert scores[0] == scores[1]
    assert {c.name: c.result for c in record.checks} == {c.name: c.result for c in of_run.checks}


def test_a_model_of_fit(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, y = torch.rand(40, 1, 4, 4), torch.arange(40) % 2

    def net() -> nn.Module:
        return nn.Sequential(Normalise([0.5], [0.25]), nn.Flatten(), nn.Linear(16, 2))

    trained = sihg.fit(net(), (x, y), method="fgsm", eps=0.1, epochs=1, out=tmp_path / "run").model
    for to, name in (("hf", "model"), ("torch-export", "model.pt2")):
        sihg.export(tmp_path / "run", tmp_path / name, to=to, model=net(), data=(x, y))
    assert torch.equal(sihg.load(tmp_path / "model", model=net())(x), trained(x))
    with refused("load-needs-model"):
        sihg.load(tmp_path / "model")
    with refused("export-data-in-memory"):
        sihg.export(tmp_path / "run", tmp_path / "again.pt2", to="torch-export", model=net())
    assert "model=net" in (tmp_path / "model" / "README.md").read_text()


def test_damaged_and_foreign_folders(run: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    sihg.export(run, model, to="hf")
    config, weights = model / "config.json", model / "model.safetensors"
    content = json.loads(config.read_text())
    for change, code in (
        ({"model": "nets.py:make"}, "foreign-code"),
        ({"format": 9}, "hub-folder-format"),
        ({"shape": "x"}, "hub-folder-unreadable"),
        ({"shape": [1, 10**5, 10**5]}, "weights-other-model"),  # which would need 120 GB
        ({"shape": [1, 10**12, 10**12]}, "weights-other-model"),
        ({"width": 1e9}, "weights-other-model"),
    ):
        config.write_text(json.dumps(content | change))
        with refused(code):
            sihg.load(model)
    config.write_text(json.dumps(content | {"data": "mine.py:load"}))
    assert isinstance(sihg.load(model), nn.Module)  # which needs no data
    with refused("foreign-code"):
        sihg.evaluate_run(model)
    config.write_text(json.dumps(content))
    save_file({name: value + 1 for name, value in load_file(weights).items()}, weights)
    with refused("hub-folder-weights"):
        sihg.load(model)
    weights.write_bytes(b"x" * 100)
    with refused("hub-folder-unreadable"):
        sihg.load(model)


def test_paths_of_this_machine_stay_here(tmp_path: Path) -> None:
    source = tmp_path / "secret" / "mine.npz"
    source.parent.mkdir()
    x, y = np.random.default_rng(0).random((60, 1, 4, 4), dtype=np.float32), np.arange(60) % 3
    np.savez(source, x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
    words = ["--data", f"npz:{source}", "--method", "fgsm", "--eps", "0.1", "--epochs", "1", "--validation", "0"]
    assert main(["train", *words, "--out", str(tmp_path / "run")]) == 0
    assert main(["evaluate", str(tmp_path / "run"), "--attacks", "natural,standard", "--samples", "10"]) == 0
    sihg.export(tmp_path / "run", tmp_path / "model", to="hf")
    sihg.export(tmp_path / "run", tmp_path / "info", to="robustbench")
    info = tmp_path / "info" / "model_info" / "npz_mine_npz" / "Linf" / "run.json"
    for file in (tmp_path / "model" / "config.json", tmp_path / "model" / "README.md", info):
        text = file.read_text()
        assert "secret" not in text
        assert "npz:mine.npz" in text


# ---- the card


def test_the_card_says_what_was_measured(evaluated: Path, tmp_path: Path) -> None:
    sihg.export(evaluated, tmp_path / "model", to="hf")
    card = (tmp_path / "model" / "README.md").read_text()
    for path in (evaluated / "evaluation").glob("*.json"):
        for row in getattr(read_evaluation(path), "attacks", ()):
            interval = f"{100 * row.low:.2f} - {100 * row.high:.2f}"
            assert f"| {row.attack} | {100 * row.accuracy:.2f} | {interval} |" in card
    for text in ("linf, eps 0.25", "20 of 397 samples of digits (test)", "all samples: ", "| `method.steps` | 2 |"):
        assert text in card
    assert "not been evaluated" not in card
    assert "\n\n\n" not in card


def test_the_front_matter_is_valid_for_the_hub(evaluated: Path, tmp_path: Path) -> None:
    hub: Any = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    sihg.export(evaluated, tmp_path / "model", to="hf")
    card = hub.ModelCard.load(tmp_path / "model" / "README.md")
    assert card.data.library_name == "sihg"
    assert "msi-hg" in card.data.tags
    found = {(result.metric_name, result.metric_value) for result in card.data.eval_results}
    (path,) = (evaluated / "evaluation").glob("*standard*.json")
    rows = [row for row in read_evaluation(path).attacks if not row.proof]  # type: ignore[union-attr]
    attacks = ", ".join(row.attack for row in rows if row.attack != "all")
    for row in rows:
        under = f"accuracy under {f'all of {attacks}' if row.attack == 'all' else row.attack}, linf eps 0.25"
        assert ("clean accuracy" if row.attack == "natural" else under, round(row.accuracy, 6)) in found


def test_a_card_without_evaluations_says_how_to_make_one(run: Path, tmp_path: Path) -> None:
    sihg.export(run, tmp_path / "model", to="hf")
    card = (tmp_path / "model" / "README.md").read_text()
    assert "have not been evaluated yet" in card
    assert f"sihg evaluate {run.name} --attacks natural,standard" in card
    assert "model-index" not in card


def test_commands_of_the_card_quote_names(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)
    sihg.export(".", tmp_path / 'my "model"', to="hf")
    card = (tmp_path / 'my "model"' / "README.md").read_text()
    assert f"sihg evaluate {run.name} --attacks" in card
    assert 'sihg.load("my \\"model\\"")' in card
    assert "sihg evaluate 'my \"model\"' --attacks" in card


def test_evaluations_of_other_weights_are_left_out(evaluated: Path, tmp_path: Path) -> None:
    """The best weights are another checkpoint; if they are those of the last epoch, they are the same weights."""
    sihg.export(evaluated, tmp_path / "model", to="hf", checkpoint="best")
    ours, best = (sihg.load(evaluated, checkpoint=name).state_dict() for name in ("last", "best"))
    same = all(torch.equal(ours[name], best[name]) for name in ours)
    assert ("have not been evaluated yet" in (tmp_path / "model" / "README.md").read_text()) is not same


# ---- existing targets


def test_nothing_is_replaced_unasked(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model"
    words = ["export", str(run), "--to", "hf", str(out)]
    assert main(words) == 0
    (out / "notes.txt").write_text("mine")
    capsys.readouterr()
    assert main(words) == 2
    assert capsys.readouterr().err.endswith("[export-exists]\n")
    assert main([*words, "--overwrite"]) == 0
    assert (out / "notes.txt").read_text() == "mine"
    file = tmp_path / "model.pt2"
    file.write_text("mine")
    for overwrite in (False, True):
        if overwrite:
            sihg.export(run, file, to="torch-export", overwrite=True)
            assert file.stat().st_size > 1000
        else:
            with refused("export-exists", out=file):
                sihg.export(run, file, to="torch-export")
    with refused("unknown-format", name="onx"):
        sihg.export(run, file, to="onx")


# ---- graphs


def graph_models() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """Every kind of model, with weights that are not those of the start."""
    torch.manual_seed(0)
    grey, colour = images(), torch.rand(20, 3, 16, 16)
    names = ("small-cnn", "norm-cnn", "threshold-cnn", "threshold-pair")
    made = {name: (models.build(name, (1, 8, 8), 10), grey) for name in names}
    resnet = models.build("preact-resnet8", (3, 16, 16), 10, width=0.25)
    made["normalised"] = nn.Sequential(Normalise([0.4, 0.5, 0.6], [0.2, 0.2, 0.3]), resnet), colour
    for model, x in made.values():
        model.train()(x)  # moves the statistics of batch normalisation
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01 * torch.randn_like(parameter))
    return {name: (model.eval(), x) for name, (model, x) in made.items()}


@pytest.mark.parametrize("name", ["small-cnn", "norm-cnn", "threshold-cnn", "threshold-pair", "normalised"])
def test_torch_export_computes_the_same(name: str, tmp_path: Path) -> None:
    model, x = graph_models()[name]
    assert graph_files.write_torch_export(model, x, tmp_path / "model.pt2") <= 1e-5


@pytest.mark.parametrize("name", ["small-cnn", "norm-cnn", "threshold-cnn", "threshold-pair", "normalised"])
def test_onnx_computes_the_same(name: str, tmp_path: Path) -> None:
    for package in graph_files.PACKAGES:
        pytest.importorskip(package, reason="the extra sihg[onnx] is not installed (make test-extras)")
    model, x = graph_models()[name]
    assert graph_files.write_onnx(model, x, tmp_path / "model.onnx") <= 1e-5


def test_a_run_as_a_graph(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(run), "--to", "torch-export", str(tmp_path / "model.pt2"), "--samples", "40"]) == 0
    said = capsys.readouterr()
    assert "largest difference of a logit on 40 samples: " in said.err
    loaded = torch.export.load(str(tmp_path / "model.pt2")).module()
    torch.testing.assert_close(loaded(images(7)), sihg.load(run)(images(7)), rtol=0, atol=1e-5)
    with refused("export-samples", samples=0):
        sihg.export(run, tmp_path / "other.pt2", to="torch-export", samples=0)


def test_a_graph_that_differs_is_refused(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval(), images(8)
    out = tmp_path / "wrong"
    for wrong, code in (
        (lambda part: model(part) + 2e-5, "export-differs"),
        (lambda part: model(part)[:2], "export-shape"),
    ):
        with refused(code, out=out):
            graph_files._compare(model, x, wrong, out)
    with refused("export-differs"):
        graph_files._compare(model, x, lambda part: model(part) * float("nan"), out)


def test_an_earlier_file_stays_if_the_new_one_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "model.pt2"
    out.write_text("the earlier graph")
    monkeypatch.setattr(graph_files, "MAX_DIFFERENCE", -1.0)
    with refused("export-differs", out=out):
        graph_files.write_torch_export(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval(), images(8), out)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("model.pt2", "the earlier graph")]


def test_a_model_that_has_no_graph(tmp_path: Path) -> None:
    class Branches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1) if float(x.sum()) > 0 else -x.flatten(1)

    with refused("export-failed", to="torch-export"):
        graph_files.write_torch_export(Branches(), images(4), tmp_path / "model.pt2")


def test_missing_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with refused("onnx-missing", package="onnx"):
        graph_files.write_onnx(nn.Flatten(), images(2), tmp_path / "model.onnx")


# ---- RobustBench

FIELDS = (  # of model_info/cifar10/Linf/*.json in RobustBench's repository
    *("link", "name", "authors", "additional_data", "number_forward_passes", "dataset", "venue", "architecture"),
    *("eps", "clean_acc", "reported", "autoattack_acc", "footnote", "unreliable"),
)


def test_robustbench(evaluated: Path, run: Path, tmp_path: Path) -> None:
    done = sihg.export(evaluated, tmp_path, to="robustbench")
    file = tmp_path / "model_info" / "digits" / "Linf" / "trained.json"
    assert done.files == (file,)
    info = json.loads(file.read_text())
    assert tuple(info) == FIELDS
    (path,) = (evaluated / "evaluation").glob("*standard*.json")
    rows = {row.attack: row.accuracy for row in read_evaluation(path).attacks}  # type: ignore[union-attr]
    assert info["clean_acc"] == f"{100 * rows['natural']:.2f}"
    assert info["autoattack_acc"] == f"{100 * rows['standard']:.2f}"
    assert (info["eps"], info["dataset"], info["architecture"]) == ("0.25", "digits", "small-cnn")
    assert any("20 of 397" in note for note in done.notes)
    with refused("export-exists", out=file):
        sihg.export(evaluated, tmp_path, to="robustbench")
    assert sihg.export(evaluated, tmp_path / "mine.json", to="robustbench").files == (tmp_path / "mine.json",)
    with refused("robustbench-needs-standard", checkpoint="last"):
        sihg.export(run, tmp_path / "other.json", to="robustbench")
