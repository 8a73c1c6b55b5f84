"""Load anybody's model: of a library, or weights in a file; normalise its input, and find its logits."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from sihg.errors import InputError
from sihg.parse import expand_home
from sihg.robust.gradients import as_input, compute_logits, device_of
from sihg.robust.models.foreign import is_library_model, normalisation_of, open_library_model
from sihg.robust.models.normalise import Normalisation, put_in_front
from sihg.robust.models.outputs import unwrap_outputs
from sihg.robust.models.registry import build
from sihg.robust.models.state_dicts import SUFFIXES, StateDict, fit_names, read_state_dict


class ModelNote(UserWarning):
    """What was done to load a model from elsewhere, such as a prefix that was removed from its names.

    Example:
        >>> issubclass(ModelNote, UserWarning)
        True
    """


@dataclass(frozen=True, eq=False)
class ForeignModel:
    """A model from elsewhere: a module of a library with its weights, or weights that an architecture gets."""

    weights: StateDict
    module: nn.Module | None = None  # None: the weights are for an architecture that the user names
    normalisation: Normalisation | None = None
    size: tuple[int, int] | None = None  # of the images that it was trained on
    labels: tuple[str, ...] = ()

    def assemble(
        self,
        architecture: Callable[[], nn.Module],
        shape: tuple[int, ...],
        classes: Sequence[str],
        *,
        normalise: str | None = None,
    ) -> tuple[nn.Module, tuple[str, ...]]:
        """Return the whole model, which maps samples in [0, 1] to logits, and notes on what was done.

        Args:
            architecture: Makes the module that the weights are for; not called if they have one.
            shape: The shape of a sample.
            classes: The names of the classes.
            normalise: The normalisation that the user gives: a name, or MEAN/STD. None takes the one that is found.
        """
        notes, found = list(self.weights.notes), self.normalisation
        given = None if normalise is None else Normalisation.parse(normalise)
        module = self.module or architecture()
        if self.module is None:
            fitted = fit_names(self.weights, module, len(classes))
            module.load_state_dict(fitted.tensors, strict=False)  # fit_names has found all names
            notes += fitted.notes
            found = fitted.normalisation or normalisation_of(module)
        module, note = unwrap_outputs(module, shape, len(classes))
        notes += [note] if note else []
        if self.module is not None:
            self._check_classes(module, shape, classes)
        if self.size is not None and len(shape) == 3 and self.size != shape[1:]:
            sides = " x ".join(map(str, self.size)), " x ".join(map(str, shape[1:]))
            notes.append(f"the model was trained on images of {sides[0]} pixels; these have {sides[1]}, as they are")
        chosen = given or found
        if chosen is None:
            notes.append("no normalisation was found, so the model gets values in [0, 1]: --normalise gives one")
        elif given is None and not chosen.fits(shape):
            notes.append(f"the normalisation {chosen} was found, which does not fit samples of shape {shape}")
            chosen = None
        elif given is None and not chosen.changes_nothing:
            notes.append(f"samples are normalised by {chosen}, as found: --normalise changes it")
        elif given is not None:
            other = "" if found is None or str(given) == str(found) else f"; {found} was found"
            notes.append(f"samples are normalised by {given}, as given{other}")
        if chosen is not None and not chosen.changes_nothing:
            module = put_in_front(chosen, module, shape)
        return module, tuple(notes)

    def _check_classes(self, module: nn.Module, shape: tuple[int, ...], classes: Sequence[str]) -> None:
        """Raise InputError if the outputs of a library's model cannot be the classes of the data, in this order."""
        names, own = [name.lower() for name in classes], [label.lower() for label in self.labels]
        if sorted(names) == sorted(own) and names != own:
            place = next(i for i, (a, b) in enumerate(zip(names, own, strict=True)) if a != b)
            values = {"place": place, "data": classes[place], "label": self.labels[place]}
            raise InputError("class-order", source=self.weights.source, **values)
        try:
            out: object = compute_logits(module, as_input(module, torch.zeros(1, *shape, device=device_of(module))))
        except Exception:  # the checks of the model say why
            return
        if isinstance(out, Tensor) and out.dim() == 2 and out.shape[1] != len(classes):
            raise InputError(
                "outputs-other-classes", source=self.weights.source, outputs=out.shape[1], classes=len(classes)
            )


def check_source(source: str | Path, *, has_model: bool) -> None:
    """Raise InputError unless the source is a library's model, or a file of weights with an architecture for it."""
    if is_library_model(str(source)):
        if has_model:
            raise InputError("model-and-library", source=source)
        return
    if Path(source).suffix not in SUFFIXES:
        raise InputError("weights-suffix", path=source, suffixes=", ".join(SUFFIXES))
    if not has_model:
        raise InputError("weights-without-model", source=source)


def open_foreign(source: str | Path, *, weights_key: str | None = None, download: bool = False) -> ForeignModel:
    """Read a model from elsewhere, before the data is known: its library, or its file of weights."""
    if not is_library_model(str(source)):
        return ForeignModel(read_state_dict(expand_home(source), weights_key))
    if weights_key:
        raise InputError("weights-key-of-library", key=weights_key, source=source)
    found = open_library_model(str(source), download=download)
    weights = StateDict(found.module.state_dict(), str(source), found.notes)
    return ForeignModel(weights, found.module, found.normalisation, found.size, found.labels)


def load_model(
    source: str | Path,
    *,
    shape: tuple[int, ...],
    classes: int | Sequence[str],
    model: str | nn.Module | None = None,
    normalise: str | None = None,
    weights_key: str | None = None,
    download: bool = False,
) -> nn.Module:
    """Load a model from elsewhere, in evaluation mode: it maps samples in [0, 1] to logits.

    What was done is told by a ModelNote, a warning: a prefix that was removed from names, averaged weights that were
    taken, half precision that became float32, the normalisation that was found, logits that were unwrapped.

    Args:
        source: timm:NAME, hf:FOLDER, robustbench:NAME, or a file of weights (.safetensors, .pt, .pth, .ckpt, .bin).
        shape: The shape of one sample, such as (3, 32, 32).
        classes: The number of classes, or their names.
        model: The architecture, for a file of weights: a module, or a name that `models.build` takes.
        normalise: Such as "imagenet", "none" or "0.5/0.25" (default: the one that is found, if any).
        weights_key: Which weights of a file that has several, such as "state_dict_ema".
        download: Whether weights that are not on this machine may be downloaded.
    Returns:
        The model.
    Raises:
        InputError: The library, the weights or the architecture are missing, or do not fit.
    Example:
        >>> import tempfile, torch, warnings
        >>> with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as notes:
        ...     warnings.simplefilter("always")
        ...     torch.save({"module.weight": torch.eye(2), "module.bias": torch.zeros(2)}, f"{folder}/weights.pt")
        ...     net = load_model(f"{folder}/weights.pt", shape=(2,), classes=2, model=nn.Linear(2, 2), normalise="none")
        >>> net.weight.tolist(), str(notes[0].message)
        ([[1.0, 0.0], [0.0, 1.0]], "removed the prefix 'module.' from 2 names")
    """
    names = [str(number) for number in range(classes)] if isinstance(classes, int) else [*classes]
    check_source(source, has_model=model is not None)
    foreign = open_foreign(source, weights_key=weights_key, download=download)

    def architecture() -> nn.Module:
        return model if isinstance(model, nn.Module) else build(str(model), shape, len(names))

    loaded, notes = foreign.assemble(architecture, shape, names, normalise=normalise)
    for note in notes:
        warnings.warn(note, ModelNote, stacklevel=2)
    return loaded.eval()
