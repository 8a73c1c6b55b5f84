"""Attacks towards the user's own targets: the criterion, iterates by hand, all attacks that know targets."""

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sihg.robust.attacks import APGD, CW, FAB, FGSM, MIFGSM, PGD, Attack, Certified, DeepFool, Natural, Noise, Square
from sihg.robust.attacks.targeted import check_targets
from tests.refused import refused
from tests.robust.attacks.linear_models import linear_model
from tests.robust.attacks.trained_models import assert_inside, mixed, trained
from tests.robust.methods.nets import net, samples

ATTACKS: dict[str, Attack] = {
    "natural": Natural(),
    "fgsm": FGSM(eps=0.15),
    "pgd": PGD(eps=0.15, steps=5, restarts=2),
    "mi-fgsm": MIFGSM(eps=0.15),
    "apgd-ce": APGD(eps=0.15, steps=10),
    "apgd-t": APGD(eps=0.15, loss="dlr-t", steps=10),
    "fab-t": FAB(eps=0.15, steps=10),
    "cw": CW(eps=0.4, steps=40, searches=4, first_c=0.1),
    "noise": Noise(eps=0.15, draws=3),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_broken_means_predicted_as_the_target(name: str) -> None:
    """Not as any other wrong class; the margin is the largest other logit minus that of the target."""
    x, y = samples(120, (6,), dtype=torch.float32)
    model, attack = trained("table", torch.float32).eval(), ATTACKS[name]
    targets = (y + 1 + torch.arange(120) % 3) % 4
    found = attack.run(model, x, y, seed=1, targets=targets)
    logits = model(found.x_adv)
    assert torch.equal(logits.argmax(1) == targets, found.broken)
    others = logits.masked_fill(nn.functional.one_hot(targets, 4).bool(), -torch.inf).amax(1)
    torch.testing.assert_close(found.margin, others - logits.gather(1, targets[:, None])[:, 0], rtol=0, atol=1e-5)
    assert_inside(attack, x, found.x_adv)
    untargeted = attack.run(model, x, y, seed=1)
    assert int(found.broken.sum()) < int(untargeted.broken.sum())
    if name not in ("natural", "noise"):
        assert mixed(found.broken)
        assert int(found.broken.sum()) > 1.5 * int(Natural().run(model, x, y, targets=targets).broken.sum())
    assert torch.equal(attack(model, x, y, seed=1, targets=targets), found.x_adv)


def test_steps_descend_the_loss_of_the_target() -> None:
    x, y = samples(20)
    model = net("smooth").eval()
    targets = (y + 1) % 4
    point = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(cross_entropy(model(point), targets, reduction="sum"), point)
    for attack in (FGSM(eps=0.1, last_iterate=True), MIFGSM(eps=0.1, steps=1, last_iterate=True)):
        found = attack(model, x, y, targets=targets)
        torch.testing.assert_close(found, (x - 0.1 * g.sign()).clamp(0, 1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_linear_models_get_their_target_up_to_the_exact_distance(norm: str) -> None:
    """With two classes the target is the other one: margin / |w_y - w_t|."""
    model, x, y = linear_model(2, n=60)
    assert isinstance(model, nn.Linear)
    z, targets = model(x), 1 - y
    slope = torch.linalg.vector_norm(model.weight[0] - model.weight[1], ord=1 if norm == "linf" else 2)
    distance = (z[:, 0] - z[:, 1]).abs() / slope
    eps = float(distance.median())
    within: dict[str, Any] = {"eps": eps, "norm": norm, "bounds": None}
    for attack in (PGD(**within, steps=40), APGD(**within, steps=40), FAB(**within, steps=5)):
        broken = attack.run(model, x, y, targets=targets).broken
        assert not broken[distance > eps].any()
        assert broken[1.02 * distance < eps].all()


def test_one_class_for_all_and_parts_of_a_set() -> None:
    x, y = samples(100, (6,))
    model, attack, rest = trained("table"), PGD(eps=0.15, steps=3), y != 2
    x, y = x[rest], y[rest]
    whole = attack.run(model, x, y, seed=1, targets=2)
    assert torch.equal(whole.x_adv, attack(model, x, y, seed=1, targets=torch.full_like(y, 2)))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    targets = (y + 1) % 4
    several = attack.run(model, x, y, seed=1, targets=targets)
    parts = [
        attack.run(model, x[rows], y[rows], seed=1, targets=targets[rows], numbers=rows) for rows in order.split(30)
    ]
    assert torch.equal(torch.cat([part.broken for part in parts]), several.broken[order])


def test_what_is_refused() -> None:
    x, y = samples(10, (6,))
    model, attack = trained("table"), PGD(eps=0.1)
    for other in (Square(eps=0.1), DeepFool(eps=0.1), Certified(eps=0.1)):
        with refused("attack-without-targets", name=type(other).__name__):
            other.run(model, x, y, targets=(y + 1) % 4)
    with refused("target-is-label", row=0, target=int(y[0])):
        attack.run(model, x, y, targets=y)
    with refused("targets-shape", shape=(3,), count=10):
        attack.run(model, x, y, targets=y[:3])
    with refused("targets-type"):
        attack.run(model, x, y, targets=y.double())
    with refused("targets-type"):
        attack.run(model, x, y, targets="cat")  # type: ignore[arg-type]
    with refused("targets-range", row=0, target=-1):
        attack.run(model, x, y, targets=-1)
    with refused("targets-range", target=4, most=3):
        attack.run(model, x, y, targets=4)
    with refused("targets-votes", votes=3):
        attack.run(model, x, y, targets=(y + 1) % 4, votes=3)
    with refused("targets-range", target=7, most=5):
        check_targets(torch.tensor([7]), torch.tensor([0]), 6)


@pytest.mark.peer
@pytest.mark.parametrize("steps", [1, 5])
def test_iterates_of_torchattacks_and_foolbox(steps: int) -> None:
    torchattacks, foolbox = (pytest.importorskip(name) for name in ("torchattacks", "foolbox"))
    x, y = samples(20, dtype=torch.float32)
    model, targets = trained("plain", torch.float32).eval(), (y + 1) % 4
    theirs = torchattacks.MIFGSM(model, eps=0.1, alpha=0.1 / steps, steps=steps, decay=1.0)
    theirs.set_mode_targeted_by_label(quiet=True)
    ours = MIFGSM(eps=0.1, steps=steps, last_iterate=True)(model, x, y, targets=targets)
    torch.testing.assert_close(ours, theirs(x, targets), rtol=0, atol=1e-6)
    pgd = foolbox.attacks.LinfPGD(abs_stepsize=0.25 / steps, steps=steps, random_start=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = foolbox.PyTorchModel(model, bounds=(0, 1))
        _, points, _ = pgd(wrapped, x, foolbox.criteria.TargetedMisclassification(targets), epsilons=0.1)
    attack = PGD(eps=0.1, steps=steps, random_start=False, last_iterate=True)
    torch.testing.assert_close(attack(model, x, y, targets=targets), points, rtol=0, atol=1e-6)


def test_no_rows_need_no_targets() -> None:
    none = torch.zeros(0, dtype=torch.long)
    assert len(PGD(eps=0.1).run(nn.Identity(), torch.zeros(0, 2), none, targets=none, numbers=none).broken) == 0
