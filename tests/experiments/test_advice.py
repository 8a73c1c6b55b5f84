"""What `sihg doctor` advises."""

from typing import Any

import pytest

from sihg.experiments import advice


def advise(**changes: Any) -> tuple[str, ...]:
    found: dict[str, Any] = {
        "cores": 1,
        "load": 0.1,
        "bfloat16_speedup": 1.0,
        "devices": ("cpu",),
        "data": {"digits": "bundled", "mnist": "present"},
        "free_gigabytes": {"here": 50.0},
    }
    return advice.advise(**(found | changes))


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)


def test_a_machine_that_lacks_nothing_gets_no_advice() -> None:
    assert advise() == ()
    assert advise(load=None, bfloat16_speedup=None) == ()


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"load": 3.0, "cores": 4}, "others compute with 3.0 of 4 cores"),
        ({"load": 0.8, "cores": 4}, "--threads 3"),
        ({"load": None, "cores": 4}, "--threads 4"),
        ({"bfloat16_speedup": 2.0}, "--precision auto"),
        ({"devices": ("cpu", "cuda:0 (A100)")}, "--device cuda:0"),
        ({"data": {"mnist": "present", "svhn": "absent"}}, "sihg data get svhn"),
        ({"data": {"mnist": "damaged"}}, "sihg data check mnist"),
        ({"free_gigabytes": {"here": 1.0}}, "1 GB are free in here"),
    ],
)
def test_each_finding_has_its_remedy(changes: dict[str, Any], remedy: str) -> None:
    (text,) = advise(**changes)
    assert remedy in text


def test_a_gpu_that_torch_cannot_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    (text,) = advise()
    assert "CUDA build" in text
