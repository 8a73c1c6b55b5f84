"""The hyperparameters of every training method, with their help texts and limits. Nothing here needs torch."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

from sihg.errors import InputError
from sihg.parse import parse_norm, parse_number

if TYPE_CHECKING:
    from sihg.robust.threat import Bounds
else:
    Bounds = tuple[float, float] | None  # in Python, tensors as well


def setting(default: Any, about: str, **limits: Any) -> Any:
    """Define a dataclass field with a help text and limits, which `check_fields` enforces.

    Args:
        default: Its default; dataclasses.MISSING for none.
        about: Its help text.
        **limits: `least` and `most` (inclusive), `above` and `below` (exclusive), `choices` of names; and other data:
            `length` says that it is in the unit of the samples, so that a preset's value follows eps.
    """
    return field(default=default, metadata={"help": about, **limits})


def check_fields(settings: Any) -> None:
    """Raise InputError unless every field of a dataclass is within the limits of its `setting`; None is a default.

    Fields of type int must be integers. Numbers must be finite, unless `most` allows infinity.
    """
    for item in fields(settings):
        value, limits = getattr(settings, item.name), item.metadata
        if "choices" in limits and value not in limits["choices"]:
            raise _wrong(item, f"one of {', '.join(limits['choices'])}", value)
        if value is not None and limits.keys() & {"least", "above"} and not _is_within(item, value):
            ends = {"least": ">=", "above": ">", "most": "<=", "below": "<"}
            kind = "an integer" if item.type in (int, int | None) else "a finite number"
            raise _wrong(item, f"{kind} {' and '.join(f'{ends[k]} {limits[k]}' for k in ends if k in limits)}", value)


def _is_within(item: "Field[Any]", value: Any) -> bool:
    limits, number = item.metadata, int if item.type in (int, int | None) else int | float
    if not isinstance(value, number) or isinstance(value, bool):
        return False
    high = value <= limits["most"] if "most" in limits else value < limits.get("below", math.inf)
    return bool(high and limits.get("least", -math.inf) <= value and limits.get("above", -math.inf) < value)


def _wrong(item: "Field[Any]", wanted: str, value: object) -> InputError:
    setting, remedy = item.name, "correct it" if item.default is MISSING else "leave it out for the default"
    return InputError("setting-value", setting=setting, wanted=wanted, value=value, remedy=remedy)


def match_fields(kind: type[Any], what: str, options: Mapping[str, object], **run: object) -> dict[str, Any]:
    """Return the arguments of a dataclass: the options given for `what`, and the values of the run that it has, too."""
    known = {item.name: item for item in fields(kind) if item.init}
    for option in sorted(options.keys() - (known.keys() - run.keys())):
        raise unknown_option(what, option, [name for name in known if name not in run])
    for option, item in known.items():
        needed = item.default is MISSING and item.default_factory is MISSING
        if needed and option not in options.keys() | run.keys():
            raise InputError("option-missing", what=what, option=option)
    return {**options, **{name: value for name, value in run.items() if name in known}}


def unknown_option(what: str, option: str, known: Iterable[str]) -> InputError:
    """Return the error for an option that a method, an optimiser or a schedule does not have."""
    has = ", ".join(known) or "none"
    return InputError("option-unknown", what=what, option=option, has=has)


STEP_SIZE = "length of an ascent step (default 2.5 eps / T; yopo: eps / 4; atta: eps / 2; eps as ramped)"
NOISE = "radius of the noise in a start; msi-hg: around the stored perturbation (default tau); atta: after a reset"
STATISTICS = "batch normalisation in the ascent: batch (not kept) or running"
RESET = "epochs after which the memory starts again at zero (0: never)"
INTERVAL = "share of the loss taken at interval bounds of the ball; grows with the ramp"


@dataclass(kw_only=True)
class MethodSettings:
    """What the settings of all methods share."""

    default_theta: ClassVar[float] = 0.0  # extrapolation of the hybrid gradient, where a run does not say it

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(kw_only=True)
class NaturalSettings(MethodSettings):
    """Train on the images as they are."""


@dataclass(kw_only=True)
class AdversarialSettings(MethodSettings):
    """The ball that a method trains against and how it grows, and how the weights are trained there."""

    eps: float = field(metadata={"help": "radius of the ball, such as 8/255"})
    norm: str = setting("linf", "norm of the ball: linf, l2 or l1")
    bounds: Bounds = setting((0.0, 1.0), "range of x + delta; none for no limits, as in the paper")  # noqa: RUF009
    ramp: float = setting(0.0, "epochs over which the radius grows linearly from 0 to eps", least=0)
    label_smoothing: float = setting(
        0.0, "share of each label that is spread over all classes in the training loss", least=0, below=1
    )
    awp_gamma: float = setting(
        0.0,
        "adversarial weight perturbation (AWP): its size relative to the weights; doubles the training pass",
        least=0,
    )
    awp_warmup: float = setting(0.0, "epochs before AWP begins", least=0)

    def __post_init__(self) -> None:
        given: object = self.eps
        if isinstance(given, str):
            self.eps = parse_number(given, "eps")
        self.norm = parse_norm(self.norm)
        super().__post_init__()


@dataclass(kw_only=True)
class FGSMSettings(AdversarialSettings):
    """One step of length eps from zero, then train there. Known to overfit catastrophically."""


@dataclass(kw_only=True)
class FastSettings(AdversarialSettings):
    """One step of 1.25 eps from a random start, then train there."""

    alpha: float = setting(1.25, "length of the step, in units of eps", above=0)


@dataclass(kw_only=True)
class NFGSMSettings(AdversarialSettings):
    """One step of length eps from strong noise, without a projection onto the ball, then train there."""

    k: float = setting(2.0, "radius of the noise, in units of eps", least=0)
    alpha: float = setting(1.0, "length of the step, in units of eps", above=0)


@dataclass(kw_only=True)
class FreeSettings(AdversarialSettings):
    """Replay each batch m times; one backward pass serves both delta and the weights."""

    replays: int = setting(8, "times m that a batch is replayed", least=1)


@dataclass(kw_only=True)
class PGDSettings(AdversarialSettings):
    """T ascent steps of 2.5 eps / T from a random start, then train there."""

    steps: int = setting(10, "ascent steps T", least=1)
    step_size: float | None = setting(None, STEP_SIZE, above=0, length=True)
    statistics: str = setting("batch", STATISTICS, choices=("batch", "running"))


@dataclass(kw_only=True)
class DATSettings(AdversarialSettings):
    """PGD AT in which a sample stops once its attack is strong enough for the current epoch."""

    steps: int = setting(10, "ascent steps T at most", least=1)
    step_size: float | None = setting(None, STEP_SIZE, above=0, length=True)
    fosc_max: float = setting(0.5, "threshold at the start of training; 0 takes every step, as PGD AT does", least=0)
    control_epochs: float = setting(
        40.0, "epochs until the threshold is 0 (default of a run: 0.8 of its epochs)", above=0, share_of_epochs=0.8
    )
    fosc: str = setting(
        "bounded",
        "set over which FOSC is computed: bounded (ball cut by the data's bounds) or published (ball without bounds)",
        choices=("bounded", "published"),
    )
    weighted: bool = setting(False, "weight samples by their loss from the second epoch on, as the authors' code does")


@dataclass(kw_only=True)
class YOPOSettings(AdversarialSettings):
    """M full passes per batch; after each, N ascent steps through the first layer only."""

    outer: int = setting(10, "full passes M per batch", least=1)
    inner: int = setting(5, "ascent steps N through the stem after each", least=0)
    step_size: float | None = setting(None, STEP_SIZE, above=0, length=True)
    stem_gradient: str = setting(
        "hamiltonian", "the stem's weights learn from: hamiltonian or both", choices=("hamiltonian", "both")
    )


@dataclass(kw_only=True)
class TRADESSettings(AdversarialSettings):
    """Train for the loss on the image plus beta KL(clean || attacked); the attack maximises that divergence."""

    beta: float = setting(6.0, "weight of the divergence (the authors: 6 on CIFAR-10, 1 on MNIST)", least=0)
    steps: int = setting(10, "ascent steps", least=1)
    step_size: float | None = setting(None, STEP_SIZE, above=0, length=True)


@dataclass(kw_only=True)
class MARTSettings(AdversarialSettings):
    """PGD AT with a loss that weights the divergence KL(clean || attacked) by how wrong the clean prediction is."""

    beta: float = setting(5.0, "weight of the divergence (the authors: 5)", least=0)
    steps: int = setting(10, "ascent steps T", least=1)
    step_size: float | None = setting(None, STEP_SIZE, above=0, length=True)


@dataclass(kw_only=True)
class IBPSettings(AdversarialSettings):
    """Train on the images; a share of the loss is computed from interval bounds of the ball."""

    interval: float = setting(0.5, INTERVAL, least=0, most=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_interval(self.interval, self.norm)


@dataclass(kw_only=True)
class MemorySettings(AdversarialSettings):
    """What is shared by methods that keep a perturbation for each sample."""

    augment_delta: str = setting(
        "same",
        "the stored perturbation moves: same (as its image, and back), independent, none",
        choices=("same", "independent", "none"),
    )
    reset: int = setting(0, RESET, least=0)
    statistics: str = setting("batch", STATISTICS, choices=("batch", "running"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eps == 0:
            raise InputError("eps-zero")


@dataclass(kw_only=True)
class ATTASettings(MemorySettings):
    """Continue the attack of the last epoch: a few steps from the stored perturbation, then train there."""

    steps: int = setting(1, "ascent steps T", least=1)
    step_size: float | None = setting(None, STEP_SIZE, above=0, length=True)
    noise: float = setting(0.0, NOISE, least=0, length=True)
    reset: int = setting(10, RESET, least=0)


@dataclass(kw_only=True)
class FGSMPGISettings(MemorySettings):
    """One step from a stored perturbation and momentum; a regulariser keeps the outputs before and after it alike."""

    alpha: float = setting(1.0, "length of the step, in units of eps", above=0)
    momentum_decay: float = setting(
        0.3, "weight of earlier gradients in the step that is stored; 0 stores what it trains on", least=0, most=1
    )
    regularization: float = setting(
        10.0, "weight of the squared distance between the outputs before and after the step", least=0
    )
    reset: int = setting(40, "epochs after which the memory starts again at random corners (0: never)", least=0)


@dataclass(kw_only=True)
class MSIHGSettings(MemorySettings):
    """Keep a perturbation for each sample; search near it, train there, step along the hybrid gradient."""

    default_theta: ClassVar[float] = 1.0

    tau: float | None = setting(
        None, "how far from the stored perturbation the search may go (default eps)", above=0, length=True
    )
    steps: int = setting(5, "ascent steps T", least=1)
    step_size: float | None = setting(None, STEP_SIZE, above=0, length=True)
    noise: float | None = setting(None, NOISE, least=0, length=True)
    fresh: float = setting(
        0.0, "share of the samples, drawn anew each time, whose search starts anywhere in the ball", least=0, most=1
    )
    interval: float = setting(0.0, INTERVAL, least=0, most=1)
    implicit: str = setting(
        "sign",
        "the ascent: sign (the paper's surrogate) or proximal (the literal implicit step)",
        choices=("sign", "proximal"),
    )
    search: str = setting(
        "ball",
        "the ascent searches: ball, or threshold (its part on the ramp of a threshold-cnn or -pair)",
        choices=("ball", "threshold"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_interval(self.interval, self.norm)
        if self.search == "threshold" and (self.norm, self.implicit) != ("linf", "sign"):
            raise InputError("threshold-search-norm", norm=self.norm, implicit=self.implicit)


def _check_interval(share: float, norm: str) -> None:
    if share and norm != "linf":
        raise InputError("interval-loss-norm", norm=norm)
