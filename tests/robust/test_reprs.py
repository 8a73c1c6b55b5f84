"""What Python shows of an object fits on a line, however large its tensors are."""

import torch
from torch import nn

import sihg
from sihg.robust.data import as_samples


def test_objects_with_tensors_are_shown_on_one_line() -> None:
    samples = as_samples((torch.rand(60, 1, 8, 8), torch.arange(60) % 2))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    evaluation = sihg.evaluate(model, samples, eps=0.1, attacks="natural,fgsm")
    things = [
        *(samples, evaluation, evaluation["fgsm"], next(iter(sihg.batches(samples, size=10, seed=0, epochs=1)))),
        *(sihg.PerturbationMemory(60, (1, 8, 8), 0.1), sihg.fit(model, samples, method="fgsm", eps=0.1, epochs=1)),
    ]
    for thing in things:
        assert "\n" not in repr(thing)
        assert len(repr(thing)) < 200


def test_rooms_are_found_without_an_import_of_their_own() -> None:
    for name in ("errors", "experiments", "minimax", "report", "robust", "store"):
        assert getattr(sihg, name).__name__ == f"sihg.{name}"
