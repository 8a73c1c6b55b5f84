"""Transfer: the points of PGD on another model, and one look at the one that is attacked."""

import pytest
import torch

from sihg.robust.attacks import PGD, Transfer
from tests.robust.attacks.trained_models import assert_inside, trained
from tests.robust.methods.nets import net, samples, watched


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_points_are_the_ends_of_pgd_on_the_source(norm: str) -> None:
    x, y = samples(150)
    eps = {"linf": 0.15, "l2": 0.9}[norm]
    source, model = trained("smooth"), trained("bn")
    attack = Transfer(eps=eps, norm=norm, source=source, steps=7)
    ends = PGD(eps=eps, norm=norm, steps=7, last_iterate=True).run(source, x, y, seed=5)
    with watched(model) as points, watched(source) as asked:
        found = attack.run(model, x, y, seed=5)
    assert torch.equal(found.x_adv, ends.x_adv)
    assert points.rows == [150]
    assert points.recorded == [False]
    assert found.passes == asked.rows_with_gradient() == 7 * 150
    assert found.forwards == sum(asked.rows) - found.passes + 150
    assert torch.equal(found.broken, model.eval()(ends.x_adv).argmax(1) != y)
    assert 0 < int(found.broken.sum()) < int(ends.broken.sum())
    assert_inside(attack, x, found.x_adv)


def test_the_source_stays_as_it_is() -> None:
    x, y = samples(20)
    source = net("bn").train()
    state = {name: value.clone() for name, value in source.state_dict().items()}
    Transfer(eps=0.1, source=source, steps=2).run(net("smooth"), x, y)
    assert all(module.training for module in source.modules())
    assert all(torch.equal(value, state[name]) for name, value in source.state_dict().items())
    assert all(p.grad is None for p in source.parameters())


def test_a_part_gives_what_the_whole_would() -> None:
    x, y = samples(100)
    attack = Transfer(eps=0.1, source=trained("smooth"), steps=3)
    some = torch.tensor([2, 70, 99])
    whole, part = attack.run(net("bn"), x, y), attack.run(net("bn"), x[some], y[some], numbers=some)
    torch.testing.assert_close(part.x_adv, whole.x_adv[some], rtol=0, atol=1e-12)
