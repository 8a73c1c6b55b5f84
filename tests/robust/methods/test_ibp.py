"""IBP, and the share of interval bounds in MSI-HG, against the loss written out."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from sihg.errors import InputError
from sihg.robust.certify import worst_case_margins
from sihg.robust.methods import IBP, MSIHG, build_method
from sihg.robust.training.fit import fit
from tests.refused import refused
from tests.robust.methods.nets import gradients, net, one_batch, samples, sgd, watched, weights

EPS = 0.1


def test_ibp_is_a_share_of_the_clean_loss_and_a_share_of_the_bounds() -> None:
    batch, model, twin = one_batch(), net("plain"), net("plain")
    log = IBP(eps=EPS, interval=0.3).step(model, batch, sgd(model))
    low, high = (batch.x - EPS).clamp(0, 1), (batch.x + EPS).clamp(0, 1)
    clean, bound = (
        cross_entropy(twin(batch.x), batch.y),
        cross_entropy(worst_case_margins(twin, low, high, batch.y), batch.y),
    )
    loss = 0.7 * clean + 0.3 * bound
    loss.backward()
    torch.testing.assert_close(gradients(model), gradients(twin), rtol=0, atol=1e-12)
    assert log.loss == pytest.approx(float(loss.detach()), rel=1e-12)
    assert log.passes == 4 * 12


def test_the_share_grows_with_the_ball() -> None:
    batch = one_batch()
    half = type(batch)(**{**vars(batch), "time": 1.0})
    model, twin = net("plain"), net("plain")
    IBP(eps=EPS, interval=0.3, ramp=2).step(model, half, sgd(model))
    IBP(eps=EPS / 2, interval=0.15).step(twin, batch, sgd(twin))
    torch.testing.assert_close(weights(model), weights(twin), rtol=0, atol=1e-12)


def test_msi_hg_mixes_the_bounds_into_the_loss_where_it_trains() -> None:
    batch, model, twin, other = one_batch(), net("plain"), net("plain"), net("plain")
    log = MSIHG(eps=EPS, tau=0.05, steps=3, interval=0.4).step(model, batch, sgd(model))
    with watched(other) as points:
        MSIHG(eps=EPS, tau=0.05, steps=3).step(other, batch, sgd(other))
    point = points.inputs[3]
    low, high = (batch.x - EPS).clamp(0, 1), (batch.x + EPS).clamp(0, 1)
    attacked, bound = (
        cross_entropy(twin(point), batch.y),
        cross_entropy(worst_case_margins(twin, low, high, batch.y), batch.y),
    )
    (0.6 * attacked + 0.4 * bound).backward()
    torch.testing.assert_close(gradients(model), gradients(twin), rtol=0, atol=1e-12)
    assert log.passes == 7 * 12


@pytest.mark.parametrize("name", ["ibp", "msi-hg"])
def test_a_share_of_interval_bounds_has_limits(name: str) -> None:
    with refused("setting-value", setting="interval", value=1.5):
        build_method(name, eps=EPS, interval=1.5)
    with refused("interval-loss-norm", norm="l2"):
        build_method(name, eps=EPS, interval=0.5, norm="l2")


def test_a_model_without_bounds_is_refused_before_a_run_begins() -> None:
    for method in ({"method": "ibp"}, {"method": "msi-hg", "interval": 0.2}):
        with pytest.raises(InputError, match="interval bounds do not know a BatchNorm2d"):
            fit(net("bn", dtype=torch.float32), samples(20, dtype=torch.float32), eps=EPS, epochs=1, **method)
