"""Freed memory is kept; the quick gradient in the input equals torch's own, and leaves the model as it was."""

import os
import platform
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sihg.robust import models
from sihg.robust._fast_passes import USER_VARIABLES, quick_input_gradients

PASSES = """
import resource, torch
from sihg.robust.models import build
from sihg.robust.gradients import input_gradient
torch.set_num_threads(1)
{first}
model, x, y = build("preact-resnet8", (3, 32, 32), 10), torch.rand(100, 3, 32, 32), torch.arange(100) % 10
for i in range(9):
    if i == 3:  # it has what it needs by now
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    input_gradient(model, x, y)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
KEEP = "from sihg.robust._fast_passes import keep_freed_memory; keep_freed_memory()"
ASCENT = "from sihg.robust.gradients import inner_mode\nwith inner_mode(torch.nn.ReLU(), 'batch'): pass"


def slope(model: nn.Module, x: Tensor) -> Tensor:
    point = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(model(point).square().sum(), point)
    return g


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(3, 2, 1), (3, 1, 1), (5, 1, 2), (4, 2, 1), ((3, 5), (2, 1), (1, 0)), (1, 1, 0)]
)
@pytest.mark.parametrize("bias", [True, False])
def test_gradient_is_torchs(layout: torch.memory_format, kernel: Any, stride: Any, padding: Any, bias: Any) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(1, 6, kernel, stride, padding, bias=bias).double()
    model = nn.Sequential(conv, nn.ReLU(), nn.Conv2d(6, 4, 3)).double().to(memory_format=layout)  # type: ignore[call-overload]
    x = torch.rand(5, 1, 13, 17, dtype=torch.float64)
    expected = slope(model, x)
    with quick_input_gradients(model):
        found = slope(model, x)
        assert "_Product" in type(conv(x.clone().requires_grad_()).grad_fn).__name__
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_the_output_is_the_models_to_the_bit() -> None:
    model = models.build("small-cnn", (1, 28, 28), 10, seed=0)
    x = torch.rand(7, 1, 28, 28)
    expected = model(x)
    with quick_input_gradients(model):
        assert torch.equal(model(x.clone().requires_grad_()), expected)


def test_afterwards_weights_learn_again() -> None:
    model = models.build("small-cnn", (1, 8, 8), 10, seed=0)
    x, y = torch.rand(4, 1, 8, 8), torch.arange(4)
    with pytest.raises(ZeroDivisionError), quick_input_gradients(model):
        raise ZeroDivisionError
    assert not any("forward" in vars(module) for module in model.modules())
    cross_entropy(model(x), y).backward()
    assert all(weight.grad is not None for weight in model.parameters())


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(3, 6, 3),
        nn.Conv2d(1, 6, 3, dilation=2),
        nn.Conv2d(1, 6, 3, padding="same"),
        nn.Conv2d(1, 6, 3, padding=1, padding_mode="reflect"),
        type("Own", (nn.Conv2d,), {})(1, 6, 3),
    ],
    ids=["three channels", "dilation", "same", "reflect", "subclass"],
)
def test_other_convolutions_are_left_alone(layer: nn.Module) -> None:
    with quick_input_gradients(nn.Sequential(layer)):
        assert "forward" not in vars(layer)


def test_a_forward_of_the_users_own_is_left_alone() -> None:
    conv = nn.Conv2d(1, 2, 3)
    own = conv.__dict__["forward"] = nn.Identity()
    with quick_input_gradients(conv):
        assert conv.forward is own
    assert conv.forward is own


def test_foreign_code_works_within() -> None:
    conv = nn.Conv2d(1, 2, 3)
    model, x = nn.Sequential(conv, nn.Flatten(), nn.Linear(72, 1)), torch.rand(3, 1, 8, 8)
    expected = slope(model, x)
    with quick_input_gradients(model):
        found = torch.func.grad(lambda point: model(point).square().sum())(x)
        each = torch.func.vmap(torch.func.grad(lambda point: model(point[None]).square().sum()))(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert conv(x.clone().requires_grad_()).dtype == torch.bfloat16
        assert torch.equal(conv(input=x), conv(x))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(each, expected)


@pytest.mark.parametrize("inner", ["autograd", "func"])
def test_models_that_take_gradients_themselves_have_the_right_ones(inner: str) -> None:
    class Purified(nn.Module):  # moves its input downhill before it reads it
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(1, 4, 3, 2, 1), nn.Linear(49, 3)

        def energy(self, x: Tensor) -> Tensor:
            energy: Tensor = self.conv(x).tanh().square().sum()
            return energy

        def forward(self, x: Tensor) -> Tensor:
            if inner == "func":
                down = torch.func.grad(self.energy)(x)
            else:
                with torch.enable_grad():
                    (down,) = torch.autograd.grad(self.energy(x), x, create_graph=True)
            logits: Tensor = self.head((x - down).flatten(1))
            return logits

    torch.manual_seed(0)
    model, x = Purified().double(), torch.rand(5, 1, 7, 7, dtype=torch.float64)
    expected = slope(model, x)
    with quick_input_gradients(model):
        torch.testing.assert_close(slope(model, x), expected, rtol=1e-12, atol=1e-12)


def test_a_compiled_model_is_left_alone() -> None:
    class Compiled(nn.Module):  # what torch.compile gives, without its time
        def __init__(self) -> None:
            super().__init__()
            self._orig_mod = nn.Conv2d(1, 2, 3)

    model = Compiled()
    with quick_input_gradients(model):
        assert "forward" not in vars(model._orig_mod)


def test_a_single_image_without_a_batch_still_passes() -> None:
    conv, x = nn.Conv2d(1, 2, 3), torch.rand(1, 6, 6, requires_grad=True)
    with quick_input_gradients(conv):
        conv(x).sum().backward()
    assert x.grad is not None


def faults(first: str, **environment: str) -> int:
    plain = {name: value for name, value in os.environ.items() if name not in USER_VARIABLES}
    command = [sys.executable, "-c", PASSES.format(first=first)]
    done = subprocess.run(command, env=plain | environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc that is told")
def test_an_ascent_makes_pages_stay_unless_the_user_has_chosen() -> None:
    without, asked, within = faults(""), faults(KEEP), faults(ASCENT)
    assert max(asked, within) < without / 4
    assert faults(ASCENT, MALLOC_TRIM_THRESHOLD_="131072") > without / 2
