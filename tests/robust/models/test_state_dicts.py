"""Weights under the names of other programs get those of the model, or are refused."""

import os
import shutil
from argparse import Namespace
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sihg.errors import InputError
from sihg.robust.models.state_dicts import FittedWeights, StateDict, fit_names, read_state_dict, read_tensors
from tests.refused import refused
from tests.robust.models.elsewhere import prefixed, wrong


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 10))


def tensors() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {name: torch.rand_like(value.float()) for name, value in net().state_dict().items()}


def fit(found: dict[str, Tensor]) -> FittedWeights:
    return fit_names(StateDict(found, "a.pt"), net(), 10)


def read(content: object, folder: Path, key: str | None = None) -> StateDict:
    torch.save(content, folder / "a.pt")
    return read_state_dict(folder / "a.pt", key)


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "model.", "module._orig_mod.net.", "0."])
def test_a_prefix_is_removed_where_all_names_fit_behind_it(prefix: str) -> None:
    fitted = fit(prefixed(prefix, tensors()))
    assert same(fitted.tensors, tensors())
    assert fitted.notes == ((f"removed the prefix {prefix!r} from 9 names",) if prefix else ())


def test_wrappers_inside_names_are_removed() -> None:
    found = {name.replace("0.", "0.module.").replace("3.", "3._orig_mod."): one for name, one in tensors().items()}
    fitted = fit(found)
    assert same(fitted.tensors, tensors())
    assert sorted(fitted.notes) == ["removed '_orig_mod.' from 2 names", "removed 'module.' from 2 names"]


def test_a_prefix_of_the_model_itself_stays() -> None:
    model = nn.ModuleDict({"module": net()})
    found = prefixed("module.", tensors())
    assert same(fit_names(StateDict(found, "a.pt"), model, 10).tensors, found)


def test_of_weights_and_their_average_the_average_is_taken() -> None:
    found = prefixed("model.", wrong(tensors())) | prefixed("ema_model.module.", tensors())
    fitted = fit({**found, "loss.weight": torch.ones(3), "n_averaged": torch.tensor(5)})
    assert same(fitted.tensors, tensors())
    assert fitted.notes == (
        "removed the prefix 'ema_model.module.' from 9 names; --weights-key takes others: model",
        "left out 9 names that are not of the model: model.0.weight, model.0.bias, model.1.weight and 6 more",
    )
    beside = fit(wrong(tensors()) | prefixed("teacher.", tensors()))
    assert same(beside.tensors, wrong(tensors()))


def test_counters_may_be_missing_or_there_are_more() -> None:
    counted = {name: one for name, one in tensors().items() if not name.endswith("num_batches_tracked")}
    assert same(fit(counted).tensors, counted)
    assert same(fit({**tensors(), "0.total_ops": torch.ones(1)}).tensors, tensors())


def test_half_precision_becomes_float32() -> None:
    fitted = fit({name: one.bfloat16() for name, one in tensors().items()})
    assert {one.dtype for one in fitted.tensors.values()} == {torch.float32}
    assert fitted.notes == ("converted 9 tensors from bfloat16 to float32",)


@pytest.mark.parametrize(("means", "stds"), [("normalize.mean", "normalize.std"), ("mu", "sigma"), ("0.mean", "0.std")])
@pytest.mark.parametrize("unit", [1, 255])
def test_a_normalisation_beside_the_weights_is_found(means: str, stds: str, unit: int) -> None:
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    own = {means: unit * mean.view(3, 1, 1), stds: unit * std.view(1, 3, 1, 1)}
    prefix = "1." if means.startswith("0") else "model."
    fitted = fit(prefixed(prefix, tensors()) | own)
    assert str(fitted.normalisation) == "imagenet"
    assert fitted.notes[-1] == f"found the normalisation imagenet under {means}, {stds}"
    assert same(fitted.tensors, tensors())


def test_weights_of_another_model_are_refused() -> None:
    found = tensors()
    with refused("weights-other-model", why="missing: 3.weight, 3.bias"):
        fit({name: one for name, one in found.items() if not name.startswith("3.")})
    with refused("weights-other-model", why="not in the model: 4.weight"):
        fit({**found, "4.weight": torch.ones(2)})
    with refused("weights-other-model", why="not in the model: module.4.weight"):
        fit(prefixed("module.", {**found, "4.weight": torch.ones(2)}))
    with refused("weights-other-classes", outputs=1000, classes=10):
        fit({**found, "3.weight": torch.ones(1000, 16), "3.bias": torch.ones(1000)})
    with refused("weights-other-shape", name="0.weight", found=(4, 1, 3, 3), shape=(4, 3, 3, 3)):
        fit({**found, "0.weight": torch.ones(4, 1, 3, 3)})


@pytest.mark.parametrize("key", ["state_dict", "model", "net", "anything", "ema"])
def test_weights_are_found_beside_other_things(key: str, tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.rand(2, 3, 4, 4)).sum().backward()
    optimizer.step()
    around = {"epoch": 3, "optimizer": optimizer.state_dict(), "history": [1.0, 2.0], "loss": torch.tensor(0.5)}
    found = read({**around, key: tensors()}, tmp_path)
    assert same(found.tensors, tensors())
    assert found.notes == (f"took the weights {key!r}",)


@pytest.mark.parametrize(("plain", "average"), [("state_dict", "state_dict_ema"), ("params", "params_ema")])
def test_the_average_is_taken_unless_another_is_named(plain: str, average: str, tmp_path: Path) -> None:
    content = {plain: wrong(tensors()), average: tensors()}
    assert same(read(content, tmp_path).tensors, tensors())
    assert same(read(content, tmp_path, plain).tensors, wrong(tensors()))
    nested = {"model": wrong(tensors()), "ema": {"module": tensors(), "decay": 0.9}}
    assert same(read(nested, tmp_path).tensors, tensors())
    assert same(read(nested, tmp_path, "ema.module").tensors, tensors())


def test_a_key_may_be_the_first_part_of_names(tmp_path: Path) -> None:
    content = {"state_dict": prefixed("model.", tensors()) | prefixed("ema.", wrong(tensors()))}
    assert same(read(content, tmp_path, "model").tensors, tensors())
    with refused("weights-key", key="other", names="state_dict"):
        read(content, tmp_path, "other")


def test_several_weights_that_nothing_tells_apart_are_refused(tmp_path: Path) -> None:
    with refused("weights-several", names="generator, critic"):
        read({"generator": tensors(), "critic": tensors()}, tmp_path)


def test_a_whole_model_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds .*torch.nn.modules.container.Sequential") as caught:
        read(net(), tmp_path)
    assert caught.value.code == "weights-not-only-tensors"


def test_what_is_not_a_tensor_is_left_out(tmp_path: Path) -> None:
    """As the programs of timm and others save it: the arguments of the training, and numbers of numpy."""
    around = {"args": Namespace(lr=0.1, nested=Namespace(a=[1])), "best": np.float64(93.1), "net": nn.Linear(2, 2)}
    found = read({"state_dict": tensors(), **around}, tmp_path)
    assert same(found.tensors, tensors())
    assert found.notes[0] == "took the weights 'state_dict'"
    assert found.notes[1].startswith("left out what is not a tensor: argparse.Namespace, numpy.")
    skipped = read_tensors(tmp_path / "a.pt")[1]
    assert skipped == sorted(skipped)  # in every process, since a record with other notes is another evaluation


@pytest.mark.parametrize("kind", ["sparse", "meta", "nested"])
def test_tensors_that_are_not_dense_are_refused(kind: str, tmp_path: Path) -> None:
    bias = {
        "sparse": lambda: torch.eye(2).to_sparse(),
        "meta": lambda: torch.ones(2, device="meta"),
        "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    }[kind]()
    with refused("weights-not-dense", name="0.bias"):
        read({**tensors(), "0.bias": bias}, tmp_path)


def test_a_small_file_of_a_huge_tensor_is_refused(tmp_path: Path) -> None:
    with refused("weights-too-large"):
        read({**tensors(), "huge": torch.zeros(1).expand(10**14)}, tmp_path)
    assert (tmp_path / "a.pt").stat().st_size < 10**5


def test_integers_and_complex_numbers_are_no_weights() -> None:
    name, value = next(iter(tensors().items()))
    for dtype in (torch.int8, torch.complex64):
        with refused("weights-other-type", name=name, dtype=dtype):
            fit({**tensors(), name: value.to(dtype)})


def test_a_scalar_is_of_another_shape_not_of_no_classes() -> None:
    name = [*tensors()][-1]
    with refused("weights-other-shape", name=name, found=()):
        fit({**tensors(), name: torch.tensor(1.0)})


def test_a_normalisation_that_cannot_be_one_is_left_out() -> None:
    wrapped = {f"model.{name}": tensor for name, tensor in tensors().items()}
    found = fit({**wrapped, "mean": torch.zeros(3), "std": torch.zeros(3)})
    assert found.normalisation is None
    assert "left out 2 names that are not of the model: mean, std" in found.notes


@pytest.mark.parametrize("beside", [defaultdict(list, loss=[1.0]), deque([1.0])])
def test_filled_containers_of_other_classes_are_refused(beside: object, tmp_path: Path) -> None:
    """torch fills only dicts and lists, so that no stand-in can take what they hold."""
    with refused("weights-not-only-tensors"):
        read({"state_dict": tensors(), "history": beside}, tmp_path)


class Evil:
    def __init__(self, function: Callable[..., object], *args: str) -> None:
        self.call = function, args

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, ...]]:
        return self.call


def test_functions_in_a_file_are_not_called(tmp_path: Path) -> None:
    owned = tmp_path / "owned"
    for function, words in ((os.system, f"touch {owned}"), (eval, f"open({str(owned)!r}, 'w')")):
        with refused("weights-not-only-tensors"):
            read({"state_dict": tensors(), "evil": Evil(function, words)}, tmp_path)
    found = read({"state_dict": tensors(), "evil": Evil(shutil.rmtree, str(tmp_path))}, tmp_path)
    assert "left out what is not a tensor: shutil.rmtree" in found.notes
    assert (tmp_path / "a.pt").exists()
    assert not owned.exists()
