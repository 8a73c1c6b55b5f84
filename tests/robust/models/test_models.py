from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, conv2d, linear, relu

from sihg.errors import UnknownNameError
from sihg.robust.models import MODELS, Normalise, build, split_stem
from sihg.robust.models.preact_resnet import PreActBlock
from tests.refused import refused


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def weights(model: nn.Module) -> list[Tensor]:
    return list(model.state_dict().values())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8), (2, 4, 4), (5, 17, 9), (4, 21, 33)])
def test_any_image_gives_logits_through_stem_and_body(name: str, shape: tuple[int, int, int]) -> None:
    model = build(name, shape, 7, width=0.25)
    x = torch.rand(2, *shape)
    model.eval()
    logits = model(x)
    assert logits.shape == (2, 7)
    stem, body = split_stem(model)
    assert torch.equal(logits, body(stem(x)))
    assert len(weights(stem)) + len(weights(body)) == len(weights(model))


def test_parameter_counts() -> None:
    def block(a: int, b: int) -> int:
        return 2 * a + 9 * a * b + 2 * b + 9 * b * b + (a * b if a != b else 0)

    first, last = 9 * 3 * 64, 2 * 512 + 512 * 10 + 10
    chain = [(64, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256), (256, 512), (512, 512)]
    assert first + sum(block(a, b) for a, b in chain) + last == 11_172_170
    assert count(build("preact-resnet18", (3, 32, 32), 10)) == 11_172_170
    small = 9 * 3 * 16 + block(16, 16) + block(16, 32) + block(32, 64) + 2 * 64 + 64 * 10 + 10
    assert count(build("preact-resnet8", (3, 32, 32), 10)) == small
    cnn = (9 + 1) * 16 + (9 * 16 + 1) * 32 + (9 * 32 + 1) * 64 + (64 * 4 * 4 + 1) * 10
    assert count(build("small-cnn", (1, 28, 28), 10)) == cnn


def test_small_cnn_is_what_its_lines_say() -> None:
    model = build("small-cnn", (1, 28, 28), 10, seed=3)
    a, a0, b, b0, c, c0, w, w0 = weights(model)
    x = torch.rand(4, 1, 28, 28)
    h = relu(conv2d(x, a, a0, stride=2, padding=1))
    torch.testing.assert_close(split_stem(model)[0](x), h)
    h = relu(conv2d(h, b, b0, stride=2, padding=1))
    h = relu(conv2d(h, c, c0, stride=2, padding=1)).permute(0, 2, 3, 1).flatten(1)
    torch.testing.assert_close(model(x), linear(h, w, w0))


def test_small_images_keep_their_size_in_the_stem() -> None:
    assert split_stem(build("small-cnn", (1, 8, 8), 10))[0](torch.rand(1, 1, 8, 8)).shape == (1, 16, 8, 8)
    assert split_stem(build("small-cnn", (1, 16, 40), 10))[0](torch.rand(1, 1, 16, 40)).shape == (1, 16, 16, 40)
    assert split_stem(build("small-cnn", (1, 17, 17), 10))[0](torch.rand(1, 1, 17, 17)).shape == (1, 16, 9, 9)


def test_norm_cnn_is_what_its_lines_say() -> None:
    model = build("norm-cnn", (1, 28, 28), 10, seed=3)
    state = model.state_dict()
    named = {name: value for name, value in state.items() if value.dim() > 1}
    (a, b, c, w), w0 = named.values(), state["body.7.bias"]
    x = torch.rand(4, 1, 28, 28)
    h = x
    for weight in (a, b, c):
        h = conv2d(h, weight, stride=2, padding=1)
        n = weight.shape[0]
        h = relu(batch_norm(h, torch.zeros(n), torch.ones(n), training=True))  # scale 1 and shift 0 at the start
    torch.testing.assert_close(model(x), linear(h.permute(0, 2, 3, 1).flatten(1), w, w0))
    bound = (9 * 16) ** -0.5  # torch's own: uniform up to 1 / sqrt(fan-in)
    assert bound * 0.98 < float(b.abs().max()) <= bound


@pytest.mark.parametrize("name", [name for name in MODELS if name != "norm-cnn"])
def test_weights_are_kaiming_normal_and_biases_zero(name: str) -> None:
    model = build(name, (3, 32, 32), 10)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            fan_in = layer.weight[0].numel()
            assert float(layer.weight.detach().std()) == pytest.approx((2 / fan_in) ** 0.5, rel=0.25)
            assert layer.bias is None or not layer.bias.any()


def test_the_shortcut_starts_behind_the_activation_where_the_shape_changes() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4, 6, 6)
    block = PreActBlock(4, 8, 2).eval()
    zeros, ones = torch.zeros(8), torch.ones(8)
    active = relu(batch_norm(x, zeros[:4], ones[:4]))
    inner = relu(batch_norm(conv2d(active, block.conv1.weight, stride=2, padding=1), zeros, ones))
    assert block.shortcut is not None
    kept = conv2d(active, block.shortcut.weight, stride=2)
    torch.testing.assert_close(block(x), conv2d(inner, block.conv2.weight, padding=1) + kept)
    same = PreActBlock(4, 4, 1).eval()
    nn.init.zeros_(same.conv2.weight)
    assert torch.equal(same(x), x)


@pytest.mark.parametrize("name", MODELS)
def test_weights_depend_on_the_seed_alone(name: str) -> None:
    first = build(name, (1, 8, 8), 10, width=0.25, seed=1)
    torch.rand(5)
    again, other = (build(name, (1, 8, 8), 10, width=0.25, seed=seed) for seed in (1, 2))
    assert all(map(torch.equal, weights(first), weights(again)))
    assert not all(map(torch.equal, weights(first), weights(other)))


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    build("small-cnn", (1, 8, 8), 10, seed=5)
    with pytest.raises(UnknownNameError):
        build("nothing", (1, 8, 8), 10)
    assert torch.equal(before, torch.get_rng_state())


def test_the_width_multiplies_the_channels() -> None:
    assert split_stem(build("small-cnn", (1, 8, 8), 10, width=1.5))[0](torch.rand(1, 1, 8, 8)).shape[1] == 24
    assert split_stem(build("preact-resnet8", (1, 8, 8), 10, width=0.001))[0](torch.rand(1, 1, 8, 8)).shape[1] == 1


def test_an_unknown_name_lists_the_choices() -> None:
    with refused("unknown-model", name="resnet", choices=(*MODELS, "timm:NAME", "package.module:name", "path.py:name")):
        build("resnet", (1, 8, 8), 10)


@pytest.mark.parametrize("shape", [(1, 3, 8), (1, 8, 3), (64,), (8, 8), (0, 8, 8), (1, 1, 8, 8)])
def test_samples_that_are_not_images_are_refused(shape: tuple[int, ...]) -> None:
    with refused("image-shape", shape=shape):
        build("small-cnn", shape, 10)


def test_bad_numbers_are_refused() -> None:
    with refused("too-few-classes", classes=1):
        build("small-cnn", (1, 8, 8), 1)
    for width in (0.0, -1.0, float("nan"), float("inf")):
        with refused("width-range"):
            build("small-cnn", (1, 8, 8), 10, width=width)


def test_a_users_own_model(tmp_path: Path) -> None:
    (tmp_path / "own_net.py").write_text(
        "from torch import nn\n"
        "def make(shape, classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1], classes))\n"
        "def number(shape, classes):\n    return 3\n"
        "def none():\n    return nn.Flatten()\n"
        "def picky(shape):\n    return nn.Flatten(len(shape))\n"
        "class Own(nn.Flatten):\n    def __init__(self, start_dim=2):\n        super().__init__(start_dim)\n"
        "def positional(shape, /):\n    return nn.Flatten()\n"
        "def more(shape, classes, depth):\n    return nn.Flatten()\n"
        "def free(**settings):\n    return nn.Flatten()\n"
        "def fails(shape, classes):\n    raise TypeError\n"
    )
    own = f"{tmp_path / 'own_net.py'}:"
    model = build(own + "make", (3, 5), 4, seed=1)
    assert model(torch.rand(2, 3, 5)).shape == (2, 4)
    assert all(map(torch.equal, weights(model), weights(build(own + "make", (3, 5), 4, seed=1))))
    with refused("model-type", name=own + "number"):
        build(own + "number", (3, 5), 4)
    for name, start in {"none": 1, "picky": 2, "Own": 2}.items():  # they are given what they take
        assert build(own + name, (3, 5), 4).start_dim == start
    for name, takes in {"positional": "positional(shape, /)", "more": "more(shape, classes, depth)"}.items():
        with refused("model-arguments", name=own + name, own=takes, call=f"{name}(shape=(3, 5), classes=4)"):
            build(own + name, (3, 5), 4)
    with refused("user-code-failed", name=own + "fails", filename=str(tmp_path / "own_net.py")):
        build(own + "fails", (3, 5), 4)
    assert isinstance(build(own + "free", (3, 5), 4), torch.nn.Flatten)
    with refused("width-of-user-model", width=2):
        build(own + "make", (3, 5), 4, width=2)


def test_a_model_without_parts_is_told_how_to_get_them() -> None:
    with refused("no-stem", missing=["stem", "body"]):
        split_stem(nn.Linear(2, 2))
    with refused("no-stem", missing=["body"]):
        split_stem(nn.Sequential(OrderedDict(stem=nn.Flatten())))
    parts = nn.Flatten(), nn.Linear(4, 2)
    assert split_stem(nn.Sequential(OrderedDict(stem=parts[0], body=parts[1]))) == parts


def test_normalise_works_by_channel() -> None:
    x = torch.rand(2, 3, 4, 4)
    mean, std = [0.1, 0.2, 0.3], [1.0, 2.0, 4.0]
    expected = torch.stack([(x[:, c] - mean[c]) / std[c] for c in range(3)], dim=1)
    torch.testing.assert_close(Normalise(mean, std)(x), expected)
    assert set(Normalise(mean, std).state_dict()) == {"mean", "std"}
    assert not list(Normalise(mean, std).parameters())


def test_normalise_refuses_what_does_not_fit() -> None:
    for mean, std in ([[0.1], [1.0, 2.0]], [[], []]):
        with refused("normalise-channels"):
            Normalise(mean, std)
    for spread in (0.0, float("nan")):
        with refused("normalise-range"):
            Normalise([0.5], [spread])
    with refused("image-channels", channels=2):
        Normalise([0.5, 0.5], [1.0, 1.0])(torch.rand(2, 3, 4, 4))
