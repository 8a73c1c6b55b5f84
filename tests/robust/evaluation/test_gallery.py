"""A sample of each class before and after an attack."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from sihg.cli.main import main
from sihg.robust.attacks.outcome import Outcome
from sihg.robust.attacks.registry import build_plan
from sihg.robust.attacks.runner import run_attacks
from sihg.robust.data.samples import Samples
from sihg.robust.evaluation.gallery import (
    MAX_CLASSES_SHOWN,
    has_pictures,
    has_stronger_gallery,
    make_gallery,
    strongest_attack,
    write_gallery,
)
from sihg.robust.models import build
from sihg.robust.threat import Ball
from sihg.store.schema import GalleryHeader

BALL = Ball(0.2)


def images(n: int = 60, classes: int = 3) -> Samples:
    x = torch.rand(n, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    y = torch.arange(n) % classes
    x[torch.arange(n), 0, y, y] += 1  # a bright spot tells the class
    return Samples(x.clamp(0, 1), y, tuple("abc"[:classes]), "spots")


def spotter() -> nn.Module:
    """Reads the class off the brightest of three spots."""
    linear = nn.Linear(36, 3, bias=False)
    with torch.no_grad():
        linear.weight.zero_()
        for label in range(3):
            linear.weight[label, 7 * label] = 10.0
    return nn.Sequential(nn.Flatten(), linear)


@pytest.mark.parametrize("name", ["pgd-5-2", "standard"])
def test_points_are_those_of_the_evaluation(name: str) -> None:
    samples, model = images(), spotter()
    parts = {part: attack for part, attack in build_plan(name, BALL).items() if part != "square"}
    (outcome,) = run_attacks(model, samples, {name: parts}, seed=3)
    found = make_gallery(model, samples, parts, outcome, seed=3)
    assert found["label"].tolist() == [0, 1, 2]
    numbers = torch.from_numpy(found["number"])
    assert samples.y[numbers].tolist() == [0, 1, 2]
    assert (outcome.prediction[numbers].numpy() == found["after"]).all()
    x_adv = torch.from_numpy(found["adversarial"])
    assert (model(x_adv).argmax(1).numpy() == found["after"]).all()
    assert (model(samples.x[numbers]).argmax(1).numpy() == found["before"]).all()
    assert float((x_adv - samples.x[numbers]).abs().max()) <= BALL.eps + 1e-6
    for i, label in enumerate(found["label"]):
        mine = samples.y == int(label)
        right = model(samples.x).argmax(1) == samples.y
        if bool((mine & right & outcome.broken).any()):
            assert found["before"][i] == label != found["after"][i]


def test_where_nothing_breaks_the_nearest_is_shown() -> None:
    samples, model = images(), spotter()
    weak = build_plan("pgd-3", Ball(1e-3))
    (outcome,) = run_attacks(model, samples, {"pgd-3": weak}, seed=0)
    assert not bool(outcome.broken.any())
    found = make_gallery(model, samples, weak, outcome, seed=0)
    for label, number in enumerate(found["number"]):
        mine = samples.y == label
        assert outcome.margin[number] == outcome.margin[mine].min()


def test_of_many_classes_the_first_are_shown() -> None:
    samples = Samples(torch.rand(50, 1, 6, 6), torch.arange(50) % 25, tuple(map(str, range(25))), "many")
    model, parts = build("small-cnn", samples.shape, 25), build_plan("fgsm", BALL)
    (outcome,) = run_attacks(model, samples, {"fgsm": parts})
    assert make_gallery(model, samples, parts, outcome, seed=0)["label"].tolist() == list(range(MAX_CLASSES_SHOWN))


def test_the_strongest_attack_is_no_proof() -> None:
    none = torch.zeros(4, dtype=torch.bool)
    outcomes = [Outcome.begin(name, none) for name in ("natural", "fgsm", "pgd-20", "certified")]
    outcomes[0].broken[:] = outcomes[3].broken[:] = True
    outcomes[2].broken[0] = True
    outcomes[3].proof = True
    assert strongest_attack(outcomes) is outcomes[2]
    assert strongest_attack([outcomes[0], outcomes[3]]) is None


def test_a_stronger_one_of_the_same_weights_stays(tmp_path: Path) -> None:
    about = GalleryHeader(
        sha256="1",
        checkpoint="last",
        data="digits",
        split="test",
        eps=0.1,
        norm="linf",
        bounds=(0.0, 1.0),
        rule="any iterate",
        classes=("0", "1"),
        attack="pgd-20",
        accuracy=0.5,
    )
    file = write_gallery(tmp_path / "gallery.npz", about, {"label": np.array([0])})
    weaker = msgspec.structs.replace(about, attack="fgsm", accuracy=0.75)
    assert has_stronger_gallery(file, weaker)
    assert not has_stronger_gallery(file, msgspec.structs.replace(about, accuracy=0.25))
    assert not has_stronger_gallery(file, msgspec.structs.replace(weaker, sha256="2"))
    file.write_bytes(b"PK")
    assert not has_stronger_gallery(file, weaker)
    assert not has_stronger_gallery(tmp_path / "none", weaker)


@pytest.mark.parametrize(
    ("shape", "pictures"), [((1, 8, 8), True), ((3, 8, 8), True), ((2, 8, 8), False), ((5,), False)]
)
def test_pictures_are_grey_or_in_colour(shape: tuple[int, ...], pictures: bool) -> None:
    assert has_pictures(Samples(torch.zeros(2, *shape), torch.zeros(2, dtype=torch.int64), ("a",), "x")) is pictures


def test_evaluations_of_a_run_leave_a_gallery(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train = ["train", "--data", "digits", "--method", "natural", "--epochs", "1", "--samples", "200", "--out", str(run)]
    assert main([*train, "--validation", "0"]) == 0

    def evaluate(*more: str) -> dict[str, Any]:
        assert main(["evaluate", str(run), "--samples", "60", *more]) == 0
        with np.load(run / "gallery.npz", allow_pickle=False) as file:
            about: dict[str, Any] = json.loads(str(file["about"]))
            assert len(file["clean"]) == len(file["label"]) == 10
        return about

    assert evaluate("--attacks", "natural,fgsm")["attack"] == "fgsm"
    before = (run / "gallery.npz").read_bytes()
    (run / "gallery.npz").unlink()
    for other in (["--eps", "0.1"], ["--split", "train"], ["--curve", "0:0.1:2"], ["--out", str(tmp_path / "else")]):
        assert main(["evaluate", str(run), "--samples", "60", "--attacks", "fgsm", *other]) == 0
        assert not (run / "gallery.npz").exists()
    assert evaluate("--attacks", "natural,fgsm")["attack"] == "fgsm"
    assert (run / "gallery.npz").read_bytes() == before
    found = evaluate("--attacks", "pgd-20")
    assert found["attack"] == "pgd-20"
    assert evaluate("--attacks", "fgsm")["accuracy"] <= found["accuracy"]


def test_a_model_is_left_as_it_was() -> None:
    samples = images()
    model = build("small-cnn", samples.shape, 3).train()
    parts = build_plan("fgsm", BALL)
    (outcome,) = run_attacks(model, samples, {"fgsm": parts})
    before = {name: value.clone() for name, value in model.state_dict().items()}
    make_gallery(model, samples, parts, outcome, seed=0)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
