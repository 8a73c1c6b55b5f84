"""Models from elsewhere load, or are refused with the remedy: twelve checkpoints by the command line, then the rest."""

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import sihg
from sihg.cli.main import main
from sihg.robust.models import ModelNote, Normalise
from tests.refused import refused
from tests.robust.models.elsewhere import (
    CLASSES,
    SHAPE,
    fake_robustbench,
    fake_timm,
    fake_transformers,
    prefixed,
    samples,
    state,
    write_data,
    write_hf_folder,
    wrong,
)

Evaluated = Callable[..., tuple[int, dict[str, Any], str]]
Make = Callable[[Path, pytest.MonkeyPatch], tuple[str, ...]]
NET = "NET"  # stands for nets.py in the folder of the test


def in_file(content: object, *words: str, name: str = "weights.pt") -> Make:
    def make(folder: Path, _: pytest.MonkeyPatch) -> tuple[str, ...]:
        torch.save(content, folder / name)
        return (str(folder / name), "--model", f"{NET}:Net", *words)

    return make


def hf_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    fake_transformers(monkeypatch)
    write_hf_folder(folder / "hf", state("half"), image_mean=[0.5] * 3, image_std=[0.5] * 3)
    return (f"hf:{folder / 'hf'}",)


def of_timm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    save_file(state("half"), folder / "model.safetensors")
    fake_timm(monkeypatch, folder / "model.safetensors")
    return ("timm:net10",)


def other_outputs(name: str) -> Make:
    def make(folder: Path, _: pytest.MonkeyPatch) -> tuple[str, ...]:
        torch.save(state(), folder / "weights.pt")
        return (str(folder / "weights.pt"), "--model", f"{NET}:{name}")

    return make


def truncated(folder: Path, _: pytest.MonkeyPatch) -> tuple[str, ...]:
    torch.save(state(), folder / "weights.pt")
    whole = (folder / "weights.pt").read_bytes()
    (folder / "weights.pt").write_bytes(whole[: len(whole) // 2])
    return (str(folder / "weights.pt"), "--model", f"{NET}:Net")


def half(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def nested(tensors: dict[str, Tensor]) -> dict[str, Any]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
    return {"epoch": 3, "state_dict": prefixed("model.", tensors), "optimizer": optimizer.state_dict(), "acc": 93.1}


FOUND = "samples are normalised by half, as found"
CHECKPOINTS: dict[str, tuple[Make, str]] = {  # what it is: how it is made, and what the command says about it
    "plain": (in_file(state()), "no normalisation was found"),
    "module.": (in_file(prefixed("module.", state())), "removed the prefix 'module.' from 5 names"),
    "_orig_mod.": (in_file(prefixed("_orig_mod.", state())), "removed the prefix '_orig_mod.' from 5 names"),
    "nested": (in_file(nested(state()), name="last.ckpt"), "took the weights 'state_dict'"),
    "EMA": (
        in_file({"model": wrong(state()), "model_ema": prefixed("module.", state()), "args": None}),
        "took the weights 'model_ema'; --weights-key takes others: model",
    ),
    "half precision": (in_file(half(state())), "converted 4 tensors from float16 to float32"),
    "HF folder": (hf_folder, FOUND),
    "timm": (of_timm, FOUND),
    "wrong normalisation": (in_file(state("255")), "give --normalise 255"),
    "tuple output": (other_outputs("Tuple"), "the model returns tuple, of which the logits are taken: output[1]"),
    "dict output": (other_outputs("Dict"), "the model returns dict, of which the logits are taken: output['logits']"),
    "truncated": (truncated, "if it is cut short, copy it again; else save model.state_dict() again"),
}


@pytest.fixture
def evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Evaluated:
    """`sihg evaluate` on the planted samples: its exit code, its JSON and what it says."""
    data, net = write_data(tmp_path)
    home = net.rpartition(":")[0]

    def run(*words: str) -> tuple[int, dict[str, Any], str]:
        words = tuple(word.replace(NET, home) for word in words)
        code = main(["evaluate", *words, "--data", data, "--eps", "0.01", "--attacks", "natural,fgsm", "--json"])
        captured = capsys.readouterr()
        return code, json.loads(captured.out or "{}"), captured.err

    return run


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_twelve_checkpoints_load_or_are_refused_with_the_remedy(
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    evaluated: Evaluated,
) -> None:
    make, said = CHECKPOINTS[kind]
    code, record, err = evaluated(*make(tmp_path, monkeypatch))
    assert said in err
    if kind == "truncated":
        assert (code, record) == (2, {})
        assert "[weights-unreadable]" in err
        return
    accuracy = record["attacks"][0]["accuracy"]
    assert (code, accuracy) == (0, 0.1 if kind == "wrong normalisation" else 1.0)
    assert said in " ".join([*record.get("notes", []), *(check.get("message", "") for check in record["checks"])])
    (check,) = (check for check in record["checks"] if check["name"] == "normalisation")
    assert check["result"] == ("warning" if kind == "wrong normalisation" else "fine")


def test_the_other_weights_and_another_normalisation_can_be_chosen(tmp_path: Path, evaluated: Evaluated) -> None:
    torch.save({"model": state("255"), "model_ema": wrong(state())}, tmp_path / "both.pt")
    words = (str(tmp_path / "both.pt"), "--model", f"{NET}:Net", "--out", str(tmp_path / "records"))
    _, record, err = evaluated(*words, "--weights-key", "model", "--normalise", "255")
    assert record["attacks"][0]["accuracy"] == 1
    assert record["weights"] == str(tmp_path / "both.pt")
    (path,) = (tmp_path / "records").glob("*.json")
    assert f"record: {path}" in err
    _, other, _ = evaluated(*words)
    assert len([*(tmp_path / "records").glob("*.json")]) == 2
    assert other["attacks"][0]["accuracy"] < 0.2
    assert other["sha256"] != record["sha256"]


def load(source: object, **options: Any) -> tuple[nn.Module, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ModelNote)
        model = sihg.load_model(str(source), shape=SHAPE, classes=CLASSES, **options)
    return model, [str(warning.message) for warning in caught]


def accuracy(model: nn.Module) -> float:
    x, y = samples()
    return float((model(x).argmax(1) == y).double().mean())


def test_python_loads_what_the_command_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, net = write_data(tmp_path)
    torch.save(prefixed("module.", state("half")), tmp_path / "a.pth")
    model, notes = load(tmp_path / "a.pth", model=net, normalise="half")
    assert notes == ["removed the prefix 'module.' from 5 names", "samples are normalised by half, as given"]
    assert isinstance(model[0], Normalise)  # type: ignore[index]
    assert (accuracy(model), model.training, model[1].training) == (1, False, False)  # type: ignore[index]
    model, notes = load(*of_timm(tmp_path, monkeypatch))
    assert (accuracy(model), notes) == (1, [f"{FOUND}: --normalise changes it"])
    model, notes = load(*of_timm(tmp_path, monkeypatch), normalise="255")
    assert notes == ["samples are normalised by 255, as given; half was found"]


def test_weights_of_a_file_get_the_architecture_of_timm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_timm(monkeypatch, None)
    torch.save(state("half"), tmp_path / "a.bin")
    model, notes = load(tmp_path / "a.bin", model="timm:net10")
    assert (accuracy(model), notes) == (1, [f"{FOUND}: --normalise changes it"])
    with refused("weights-other-classes", outputs=CLASSES, classes=3):
        sihg.load_model(tmp_path / "a.bin", shape=SHAPE, classes=3, model="timm:net10")


def test_weights_of_timm_come_from_the_cache_or_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = []

    def download(repository: str, file: str) -> str:
        assert repository == "timm/net10.a"
        fetched.append(file)
        if file == "model.safetensors":
            raise OSError("no such file there")
        torch.save(state("half"), tmp_path / file)
        return str(tmp_path / file)

    fake_timm(monkeypatch, None, download)
    with refused("weights-not-cached", source="timm:net10"):
        load("timm:net10")
    assert fetched == []
    assert accuracy(load("timm:net10", download=True)[0]) == 1
    assert fetched == ["model.safetensors", "pytorch_model.bin"]
    with refused("outputs-other-classes", outputs=CLASSES, classes=4):
        sihg.load_model("timm:net10", shape=SHAPE, classes=4, download=True)
    with refused("library-model", library="timm", name="net11"):
        load("timm:net11")


@pytest.mark.parametrize("name", ["timm:../a", "timm:hf-hub:a/b", "timm:", "robustbench:a/../b", "robustbench:a@../b"])
def test_names_that_lead_elsewhere_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_timm(monkeypatch, None)
    fake_robustbench(monkeypatch)
    with refused("library-model-name"):
        load(name)


@pytest.mark.parametrize(("source", "package"), [("timm:a", "timm"), ("robustbench:a", "robustbench")])
def test_a_library_that_is_not_installed(source: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with refused("library-missing", package=package):
        load(source)


def test_a_folder_of_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_transformers(monkeypatch)
    pixels = {"image_mean": [127.5] * 3, "image_std": [127.5] * 3, "do_rescale": False}
    write_hf_folder(tmp_path / "pixels", half(state("half")), size={"height": 224, "width": 224}, **pixels)
    model, notes = load(f"hf:{tmp_path / 'pixels'}")
    assert accuracy(model) == 1
    assert notes == [
        "the model returns HfOutput, of which the logits are taken: output.logits",
        "the model was trained on images of 224 x 224 pixels; these have 4 x 4, as they are",
        f"{FOUND}: --normalise changes it",
    ]
    write_hf_folder(tmp_path / "raw", state(), do_normalize=False)
    assert accuracy(load(f"hf:{tmp_path / 'raw'}")[0]) == 1
    to_two = {"rescale_factor": 1 / 127.5, "image_mean": [1.0] * 3, "image_std": [1.0] * 3}  # [0, 2], then [-1, 1]
    write_hf_folder(tmp_path / "two", state("half"), size={"height": 4}, **to_two)
    model, notes = load(f"hf:{tmp_path / 'two'}")
    assert accuracy(model) == 1
    assert notes[-1] == f"{FOUND}: --normalise changes it"
    write_hf_folder(tmp_path / "offset", state("half"), rescale_offset=True, **to_two)
    assert "no normalisation was found" in load(f"hf:{tmp_path / 'offset'}")[1][-1]
    write_hf_folder(tmp_path / "zero", state(), do_normalize=False, rescale_factor=0)
    with refused("hf-model-unreadable"):
        load(f"hf:{tmp_path / 'zero'}")
    write_hf_folder(tmp_path / "lost", {"head.bias": state()["head.bias"]})
    with refused("hf-model-incomplete", count=3, name="net.head.weight"):
        load(f"hf:{tmp_path / 'lost'}")
    (tmp_path / "lost" / "model.safetensors").write_bytes(b"short")
    with refused("hf-model-unreadable"):
        load(f"hf:{tmp_path / 'lost'}")
    (tmp_path / "lost" / "model.safetensors").rename(tmp_path / "lost" / "pytorch_model.bin")
    with refused("hf-model-pickled"):
        load(f"hf:{tmp_path / 'lost'}")
    with refused("no-hf-model"):
        load(f"hf:{tmp_path}")


def test_classes_in_another_order_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"kind {i}" for i in range(CLASSES)]
    fake_transformers(monkeypatch, dict(enumerate(reversed(names))))
    write_hf_folder(tmp_path / "hf", state())
    with refused("class-order", place=0, data="kind 0", label="kind 9"):
        sihg.load_model(f"hf:{tmp_path / 'hf'}", shape=SHAPE, classes=names)


def test_a_model_of_robustbench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evaluated: Evaluated) -> None:
    fake_robustbench(monkeypatch)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "models" / "cifar10" / "L2"
    folder.mkdir(parents=True)
    code, record, err = evaluated("robustbench:Carmon@cifar10/L2")
    assert code == 2
    assert "[weights-not-cached]" in err
    torch.save(state(), folder / "Carmon.pt")
    code, record, err = evaluated("robustbench:Carmon@cifar10/L2")
    assert (code, record["attacks"][0]["accuracy"]) == (0, 1)
    assert record["weights"] == "robustbench:Carmon@cifar10/L2"
    assert "note: the models of RobustBench contain their normalisation" in err
    assert "[library-model]" in evaluated("robustbench:Nobody@cifar10/L2")[2]
    torch.save(state(), folder / "Three.pt_m0.pt")  # an ensemble of three: the others would be downloaded
    assert "[weights-not-cached]" in evaluated("robustbench:Three@cifar10/L2")[2]
    torch.save(nn.Linear(2, 2), folder / "Carmon.pt")  # a whole model: refused before the library reads it
    assert "[weights-not-only-tensors]" in evaluated("robustbench:Carmon@cifar10/L2")[2]


def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evaluated: Evaluated) -> None:
    fake_timm(monkeypatch, None)
    torch.save(state(), tmp_path / "a.pt")
    write_hf_folder(tmp_path / "hf", state())
    (tmp_path / "run").mkdir()
    file, net = str(tmp_path / "a.pt"), ("--model", f"{NET}:Net")
    for words, code in (
        (("timm:net10", *net), "model-and-library"),
        (("timm:net10", "--weights-key", "a"), "weights-key-of-library"),
        (("timm:net10", "--checkpoint", "best"), "checkpoint-of-file"),
        ((file, *net, "--normalise", "imagnet"), "unknown-normalisation"),
        ((file, *net, "--normalise", "0.5,0.5/0.5,0.5"), "normalise-shape"),
        ((file, *net, "--normalise", "0.5/0"), "normalise-range"),
        ((file, *net, "--normalise", "0.5/x"), "not-a-number"),
        ((file, *net, "--weights-key", "ema"), "weights-key"),
        ((str(tmp_path / "hf"),), "hf-without-prefix"),
        ((str(tmp_path / "run"), "--normalise", "half"), "flag-of-foreign-model"),
    ):
        status, _, err = evaluated(*words)
        assert status == 2, words
        assert f"[{code}]" in err, err
    with refused("weights-without-model"):
        sihg.load_model(file, shape=SHAPE, classes=CLASSES)
    with refused("weights-suffix"):
        sihg.load_model("a.txt", shape=SHAPE, classes=CLASSES, model="small-cnn")


def test_nothing_of_other_libraries_is_imported_otherwise() -> None:
    code = "import sys, sihg, sihg.robust.evaluation.evaluate_run\n"
    code += "print({'timm', 'transformers', 'robustbench', 'huggingface_hub'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "set()\n"
