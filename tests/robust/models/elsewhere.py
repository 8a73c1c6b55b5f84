"""A planted data set and a network that is right on it, with batch normalisation; stand-ins for other libraries."""

import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sihg.robust.models.normalise import Normalisation, put_in_front

SHAPE, CLASSES, COUNT = (3, 4, 4), 10, 100
SOURCE = '''
from torch import nn

class Net(nn.Module):
    """The class whose prototype is nearest."""

    def __init__(self, shape, classes):
        super().__init__()
        self.scale = nn.BatchNorm2d(shape[0], affine=False)
        self.head = nn.Linear(shape[0] * shape[1] * shape[2], classes)

    def forward(self, x):
        return self.head(self.scale(x).flatten(1))

class Tuple(Net):
    def forward(self, x):
        return x.mean((2, 3)), super().forward(x)

class Dict(Net):
    def forward(self, x):
        return {"features": x.flatten(1), "logits": super().forward(x)}
'''


def prototypes() -> Tensor:
    brightness = torch.linspace(0.3, 1.2, CLASSES)[:, None, None, None]
    values = 0.2 + 0.6 * torch.rand(CLASSES, *SHAPE, generator=torch.Generator().manual_seed(0))
    return (values * brightness).clamp(0.05, 0.95)


def samples() -> tuple[Tensor, Tensor]:
    y = torch.arange(COUNT) % CLASSES
    noise = torch.randn(COUNT, *SHAPE, generator=torch.Generator().manual_seed(1))
    return (prototypes()[y] + 0.03 * noise).clamp(0, 1), y


def state(normalise: str = "none") -> dict[str, Tensor]:
    """The weights of Net, right on all samples if they are normalised like this."""
    before = put_in_front(Normalisation.parse(normalise), nn.Identity(), SHAPE)
    scale = nn.BatchNorm2d(SHAPE[0], affine=False)
    with torch.no_grad():
        scale(before(samples()[0]))
        points = scale.eval()(before(prototypes())).flatten(1)
    found = {f"scale.{name}": value for name, value in scale.state_dict().items()}
    return found | {"head.weight": points.contiguous(), "head.bias": -points.square().sum(1) / 2}


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def wrong(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Other weights of the same names."""
    return {name: torch.ones_like(tensor) for name, tensor in tensors.items()}


def write_data(folder: Path) -> tuple[str, str]:
    """Write the samples and the code of the network; return what --data and --model call them."""
    x, y = samples()
    np.savez(folder / "data.npz", x_train=x.numpy(), y_train=y.numpy(), x_test=x.numpy(), y_test=y.numpy())
    (folder / "nets.py").write_text(SOURCE)
    return f"npz:{folder / 'data.npz'}", f"{folder / 'nets.py'}:Net"


def make_net(**about: Any) -> nn.Module:
    """Net as a library would make it, with what the library keeps on it."""
    scope: dict[str, Any] = {}
    exec(SOURCE, scope)
    net: nn.Module = scope["Net"](SHAPE, CLASSES)
    for name, value in about.items():
        setattr(net, name, value)
    return net


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **contents: object) -> None:
    """Put a module with these contents where `import name` finds it."""
    module = types.ModuleType(name)
    vars(module).update(contents)
    monkeypatch.setitem(sys.modules, name, module)


def fake_timm(monkeypatch: pytest.MonkeyPatch, cached: Path | None, download: Callable[..., str] | None = None) -> None:
    """A timm with one model, net10, whose weights are this file in the cache of the hub."""

    def create_model(name: str, *, pretrained: bool, num_classes: int = CLASSES, in_chans: int = 3) -> nn.Module:
        assert not pretrained
        assert in_chans == 3
        if name != "net10":
            raise RuntimeError(f"Unknown model ({name})")
        config = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5), "input_size": (3, 4, 4), "hf_hub_id": "timm/net10.a"}
        net = make_net(pretrained_cfg=config)
        if num_classes != CLASSES:
            net.head = nn.Linear(48, num_classes)
        return net

    def try_to_load_from_cache(repository: str, file: str) -> str | None:
        assert repository == "timm/net10.a"
        return str(cached) if cached is not None and file.endswith(cached.suffix) else None

    stand_in(monkeypatch, "timm", create_model=create_model)
    hub = {"try_to_load_from_cache": try_to_load_from_cache, "hf_hub_download": download}
    stand_in(monkeypatch, "huggingface_hub", **hub)


class HfOutput(dict[str, Tensor]):
    """What transformers returns: a dict whose values are attributes, too."""

    logits: Tensor


class HfNet(nn.Module):
    def __init__(self, labels: dict[int, str]) -> None:
        super().__init__()
        self.net = make_net()
        self.config = types.SimpleNamespace(id2label=labels)

    def forward(self, pixel_values: Tensor) -> HfOutput:
        output = HfOutput(logits=self.net(pixel_values))
        output.logits = output["logits"]
        return output


def write_hf_folder(folder: Path, tensors: dict[str, Tensor], **preprocessor: object) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"num_labels": CLASSES}))
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    save_file(prefixed("net.", tensors), folder / "model.safetensors")


def fake_transformers(monkeypatch: pytest.MonkeyPatch, labels: dict[int, str] | None = None) -> None:
    """A transformers that reads folders of `write_hf_folder`, and reports lost names as it does."""

    class AutoModelForImageClassification:
        @staticmethod
        def from_pretrained(path: str, **options: object) -> tuple[nn.Module, dict[str, object]]:
            safe = {"local_files_only": True, "use_safetensors": True, "trust_remote_code": False}
            assert options == {**safe, "output_loading_info": True}
            net = HfNet(labels or {i: f"LABEL_{i}" for i in range(CLASSES)})
            lost, _ = net.load_state_dict(load_file(Path(path) / "model.safetensors"), strict=False)
            return net, {"missing_keys": set(lost), "mismatched_keys": set()}

    stand_in(monkeypatch, "transformers", AutoModelForImageClassification=AutoModelForImageClassification)


def fake_robustbench(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_model(model_name: str, model_dir: str, dataset: str, threat_model: str) -> nn.Module:
        print("Downloading nothing")  # as libraries do
        net = make_net()
        net.load_state_dict(torch.load(Path(model_dir) / dataset / threat_model / f"{model_name}.pt"))
        return net

    stand_in(monkeypatch, "robustbench")
    models = {"Carmon": {"gdrive_id": "a"}, "Three": {"gdrive_id": ["a", "b", "c"]}}
    names = {"BenchmarkDataset": str, "ThreatModel": str, "all_models": {"cifar10": {"L2": models}}}
    stand_in(monkeypatch, "robustbench.utils", load_model=load_model, **names)
