"""Number formats: what runs in bfloat16, what stays float32, and how `auto` chooses."""

import os
import signal
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sihg
from sihg.robust import models
from sihg.robust._fast_passes import quick_input_gradients
from sihg.robust.certify import worst_case_margins
from sihg.robust.gradients import cross_entropy_sum, inner_mode, input_gradient
from sihg.robust.methods import METHODS
from sihg.robust.precision import choose_format, exact_float32, is_compiled, number_formats
from sihg.robust.training.config import read_run_settings
from sihg.robust.training.fit import fit
from sihg.store.run_folder import RunFolder
from tests.refused import refused
from tests.robust.small import digits


class Spy(nn.Linear):
    """A linear layer that notes the format of its output."""

    def __init__(self) -> None:
        super().__init__(64, 10)
        self.seen: list[torch.dtype] = []

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        self.seen.append(out.dtype)
        return out


def spied() -> tuple[nn.Module, Spy]:
    torch.manual_seed(0)
    spy = Spy()
    return nn.Sequential(OrderedDict(stem=nn.Flatten(), body=spy)), spy


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("natural", "ibp", "yopo")])
def test_every_method_searches_and_trains_in_its_format(method: str) -> None:
    steps = {"steps": 2} if method in ("msi-hg", "pgd", "dat", "trades") else {}
    few = digits(20)
    for ascent, training in (("bfloat16", "float32"), ("float32", "bfloat16"), ("bfloat16", "bfloat16")):
        model, spy = spied()
        shared: dict[str, Any] = {"eps": 0.1, "epochs": 1, "batch_size": 20, "evaluate_every": 1, **steps}
        done = fit(model, few, method=method, precision=ascent, train_precision=training, **shared)
        assert done.finished
        names = {str(dtype).removeprefix("torch.") for dtype in spy.seen[1:]}  # the first is preflight's
        assert names >= ({training} if method == "free" else {ascent, training})
        assert {weight.dtype for weight in model.parameters()} == {torch.float32}
        assert not is_compiled(model)
        assert "_compiled_call_impl" not in vars(model)


@pytest.mark.parametrize("method", ["yopo", "ibp", "natural"])
def test_stem_and_body_and_interval_bounds_train_in_bfloat16(method: str) -> None:
    few = digits(20)
    weights = []
    for name in ("float32", "bfloat16"):
        model = models.build("small-cnn", (1, 8, 8), 10, seed=0)
        fit(model, few, method=method, eps=0.05, epochs=1, batch_size=20, precision=name, train_precision=name)
        weights.append(torch.cat([weight.detach().flatten() for weight in model.parameters()]))
    change = float((weights[0] - weights[1]).norm() / weights[0].norm())
    assert 0 < change < 0.01


def test_default_runs_are_float32() -> None:
    model, spy = spied()
    fit(model, digits(20), method="pgd", eps=0.1, epochs=1, steps=2)
    assert set(spy.seen) == {torch.float32}


def test_a_loop_of_ones_own_gets_float32_logits_and_gradients() -> None:
    model, spy = spied()
    x, y = digits(5).floats(), digits(5).y
    with number_formats(model, ascent="bfloat16", training="float32"):
        assert model(x).dtype == torch.float32
        with inner_mode(model, "running"):
            g = input_gradient(model, x, y)
            assert model(x).dtype == torch.float32
        cross_entropy_sum(model(x), y).backward()
    assert spy.seen == [torch.float32, torch.bfloat16, torch.bfloat16, torch.float32]
    assert g.dtype == torch.float32
    assert spy.weight.grad is not None
    assert spy.weight.grad.dtype == torch.float32


def test_scopes_nest_and_inputs_may_have_names() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 3)

        def forward(self, image: Tensor) -> Tensor:
            out: Tensor = self.conv(image)
            return out.float() + (out.dtype == torch.bfloat16)

    model, x = Named(), torch.zeros(1, 1, 4, 4)
    plain = model(x)
    with number_formats(model, training="bfloat16"), number_formats(model, ascent="bfloat16"):
        assert torch.equal(model(image=x), plain)
        assert not is_compiled(model)
        with inner_mode(model, "running"):
            assert bool((model(image=x) > plain + 0.5).all())
    assert torch.equal(model(x), plain)


def test_formats_end_with_their_scope_also_after_an_error() -> None:
    model, spy = spied()
    with pytest.raises(ZeroDivisionError), number_formats(model, training="bfloat16"):
        raise ZeroDivisionError
    model(digits(2).floats())
    assert spy.seen == [torch.float32]
    with refused("unknown-number-format", name="float8"), number_formats(model, ascent="float8"):
        pass


def test_a_models_compiled_call_is_used_and_comes_back() -> None:
    model = nn.Linear(2, 2)
    calls: list[bool] = []

    def own(x: Tensor) -> Tensor:
        calls.append(torch.is_autocast_enabled("cpu"))
        return x

    vars(model)["_compiled_call_impl"] = own
    assert is_compiled(model)
    with number_formats(model, training="bfloat16"):
        assert is_compiled(model)
        model(torch.zeros(1, 2))
    assert calls == [True]
    assert vars(model)["_compiled_call_impl"] is own


def test_interval_bounds_are_the_same_within_autocast() -> None:
    model = models.build("small-cnn", (1, 8, 8), 10, seed=0)
    x, y = digits(4).floats(), digits(4).y
    expected = worst_case_margins(model, x - 0.1, x + 0.1, y)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(worst_case_margins(model, x - 0.1, x + 0.1, y), expected)
    bare = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))[1]  # a model that is one layer has bounds in a scope, too
    with number_formats(bare, training="bfloat16"):
        assert worst_case_margins(bare, torch.zeros(1, 64), torch.ones(1, 64), y[:1]).dtype == torch.float32


def test_exact_float32_sets_ieee_and_puts_back_what_was() -> None:
    a, b = torch.rand(64, 64), torch.rand(64, 64)
    exact = a @ b
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")  # bfloat16 inside the kernels of some processors
        if hasattr(torch.backends.mkldnn, "matmul"):
            kept = torch.backends.mkldnn.matmul.fp32_precision
            with exact_float32("cpu"):
                assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"
                assert torch.equal(a @ b, exact)
            assert torch.backends.mkldnn.matmul.fp32_precision == kept
        with torch.autocast("cpu", torch.bfloat16), exact_float32("cpu"):
            assert torch.equal(a @ b, exact)
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 2, 1), (5, 1, 2), ((3, 5), (2, 1), (1, 0))])
def test_the_quick_gradient_stays_under_autocast(
    layout: torch.memory_format, kernel: Any, stride: Any, padding: Any
) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(1, 6, kernel, stride, padding)
    model = nn.Sequential(conv, nn.ReLU(), nn.Conv2d(6, 4, 3), nn.Flatten()).to(memory_format=layout)  # type: ignore[call-overload]
    x, weights = torch.rand(5, 1, 13, 17), None

    def gradient(name: str) -> Tensor:
        nonlocal weights
        with number_formats(model, training=name):
            point = x.clone().requires_grad_()
            out = model(point)
            weights = torch.randn_like(out) if weights is None else weights
            (g,) = torch.autograd.grad((out * weights).sum(), point)
        return g

    exact, plain = gradient("float32"), gradient("bfloat16")
    with quick_input_gradients(model):
        quick = gradient("bfloat16")
        with torch.autocast("cpu", torch.bfloat16):
            out = conv(x.clone().requires_grad_())
        assert "_Product" in type(out.grad_fn).__name__
        assert out.dtype == torch.bfloat16
    assert quick.dtype == torch.float32
    error, plain_error = ((g - exact).norm() / exact.norm() for g in (quick, plain))
    assert float(error) < max(0.01, 1.5 * float(plain_error))


# ---- auto


def at_speed(clock: list[float], **seconds: float) -> Any:
    def run_pass(name: str) -> None:
        clock[0] += seconds[name]

    return run_pass


@pytest.mark.parametrize(
    ("seconds", "chosen"), [((1.0, 0.8), "bfloat16"), ((1.0, 0.81), "float32"), ((1.0, 2.0), "float32")]
)
def test_auto_takes_bfloat16_from_a_quarter_faster(seconds: tuple[float, float], chosen: str) -> None:
    clock = [0.0]
    run_pass = at_speed(clock, float32=seconds[0], bfloat16=seconds[1])
    choice = choose_format(run_pass, "cpu", clock=lambda: clock[0])
    assert choice.name == chosen
    assert f"{seconds[0] / seconds[1]:.2f} times" in choice.reason
    assert clock == [0.0]  # it ran in another process
    assert choose_format(run_pass, "meta", clock=lambda: clock[0]).name == chosen  # and here for other devices


def in_bfloat16(act: Any) -> Any:
    return lambda name: act() if name == "bfloat16" else None


def test_a_crash_a_hang_and_an_error_mean_float32() -> None:
    crash = choose_format(in_bfloat16(lambda: os.kill(os.getpid(), signal.SIGILL)), "cpu")
    assert crash.name == "float32"
    assert f"code {-signal.SIGILL}" in crash.reason
    hang = choose_format(in_bfloat16(lambda: time.sleep(1000)), "cpu", waits=(30.0, 0.2))
    assert hang.name == "float32"
    assert "silent" in hang.reason

    def fail() -> None:
        raise RuntimeError("no such kernel")

    for device in ("cpu", "meta"):
        error = choose_format(in_bfloat16(fail), device)
        assert error.name == "float32"
        assert "no such kernel" in error.reason


def test_the_choice_is_in_the_config_and_a_resumed_run_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sihg.robust import precision
    from sihg.robust.training import preflight

    def chosen(run_pass: Any, device: str) -> precision.FormatChoice:
        run_pass("bfloat16")
        return precision.FormatChoice("bfloat16", f"planted for {device}")

    monkeypatch.setattr(preflight, "choose_format", chosen)
    shared: dict[str, Any] = {"method": "pgd", "eps": 0.1, "epochs": 1, "steps": 2, "out": tmp_path / "run"}
    fit(spied()[0], digits(20), precision="auto", train_precision="auto", **shared)
    kept = read_run_settings(RunFolder.open(tmp_path / "run"))
    assert (kept.precision, kept.train_precision) == ("bfloat16", "bfloat16")
    monkeypatch.setattr(preflight, "choose_format", None)
    done = fit(spied()[0], digits(20), precision="auto", train_precision="auto", resume=True, **shared)
    assert done.finished
    with refused("resume-other-settings", differences={"precision": ("bfloat16", "float32")}):
        fit(spied()[0], digits(20), train_precision="auto", resume=True, **shared)


def test_a_real_probe_leaves_the_model_as_it_was() -> None:
    model = models.build("preact-resnet8", (1, 8, 8), 10, width=1 / 4, seed=0).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    from sihg.robust.training.config import Settings
    from sihg.robust.training.preflight import preflight

    values = {"method": "pgd", "batch_size": 10, "precision": "auto", "train_precision": "auto"}
    prepared = preflight(model, digits(20), Settings().with_values(values))
    assert prepared.settings.precision in ("float32", "bfloat16")
    assert [remark.partition(":")[0] for remark in prepared.remarks] == ["precision", "train_precision"]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())
    assert not model.training


def test_a_grid_wants_one_format_for_all_runs(tmp_path: Path) -> None:
    from sihg.experiments.grid import Grid
    from sihg.robust.training.config import Settings

    with refused("grid-precision-auto", method="pgd"):
        Grid(tmp_path, {"pgd": Settings(precision="auto")}, trials=1, attacks=("natural",))


def test_the_scope_is_public() -> None:
    assert sihg.number_formats is number_formats
