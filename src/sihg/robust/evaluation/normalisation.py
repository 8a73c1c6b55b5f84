"""Check whether a model gets its input as it was trained: if it is often wrong, try the common normalisations."""

from torch import Tensor, nn

from sihg.robust.attacks.chunk_size import rows_per_chunk
from sihg.robust.attacks.input_checks import load_rows
from sihg.robust.data.samples import Samples, stratified_rows
from sihg.robust.gradients import compute_logits, cross_entropy_per_row, misclassified
from sihg.robust.models.normalise import behind_normalise, known_normalisations, put_in_front
from sihg.robust.models.outputs import Logits
from sihg.store.schema import Check

NAME = "normalisation"
LOOKED_AT = 16  # samples, first
MAX_TRIED = 256  # samples, if most of these are wrong
MIN_TRIED = 50
NEAR_CHANCE = 0.5  # of the way from always the same class to no error
MIN_GAIN = 0.2  # of accuracy: by how much another normalisation must be better
ALIKE = 0.03  # of accuracy: of normalisations that differ by less, that of the data comes first


def check_normalisation(model: nn.Module, samples: Samples, seed: int) -> Check:
    """Check that no other common normalisation of the input gives a far higher accuracy without attack.

    Only a model that is often wrong is tried with others, on a few hundred samples, by forward passes alone.
    """
    shape, y = samples.shape, samples.y
    constant = float(y.bincount().max()) / len(samples)
    if len(shape) != 3 or len(samples) < MIN_TRIED or constant == 1:
        return Check(NAME, "not run", f"needs {MIN_TRIED} images, of two classes")
    for count in (LOOKED_AT, min(MAX_TRIED, len(samples), rows_per_chunk(shape))):
        x, y = load_rows(model, samples, stratified_rows(samples, count, seed))
        accuracy, _ = _quality(model, x, y)
        if accuracy > constant + NEAR_CHANCE * (1 - constant):
            return Check(NAME, "fine")
    bare = _without_normalise(model)
    tried = {
        name: _quality(put_in_front(normalisation, bare or model, shape), x, y)
        for name, normalisation in known_normalisations(shape[0])
        if bare is not None or not normalisation.changes_nothing  # else it is the model itself
    }
    highest, _ = max(tried.values())
    if highest < accuracy + MIN_GAIN:
        return Check(NAME, "fine")
    alike = [name for name in tried if tried[name][0] > highest - ALIKE]
    own = [name for name in alike if f"{name}-".startswith(f"{samples.name}-")]
    best, *others = sorted(alike, key=lambda name: (name in own, tried[name]), reverse=True)
    also = ", ".join(f"{name} {tried[name][0]:.1%}" for name in others)
    message = (
        f"the accuracy without attack is {accuracy:.1%}, with the normalisation {best} it would be "
        f"{tried[best][0]:.1%}{f' ({also})' if also else ''}, on {count} samples: give --normalise {best}, or put "
        "that Normalise in front of the model"
    )
    return Check(NAME, "warning", message)


def _without_normalise(model: nn.Module) -> nn.Module | None:
    """Return the model without the Normalise that it begins with; None if it begins with something else."""
    if not isinstance(model, Logits):
        return behind_normalise(model)
    bare = behind_normalise(model.model)
    return None if bare is None else Logits(bare, model.place)


def _quality(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Return the accuracy, and for those that are equal the mean of the negative cross-entropy."""
    logits = compute_logits(model, x)
    return 1 - float(misclassified(logits, y).double().mean()), -float(cross_entropy_per_row(logits, y).mean())
