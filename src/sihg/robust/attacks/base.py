"""The base class of attacks: the ball, and how an attack is called; and no attack, the samples as they are."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor, nn

from sihg.errors import InputError
from sihg.robust.attacks.random_models import Draws
from sihg.robust.attacks.runner import attack_batch
from sihg.robust.attacks.search import Search
from sihg.robust.attacks.verdict import Verdict
from sihg.robust.threat import Ball, Bounds


@dataclass(frozen=True, kw_only=True, eq=False)
class Attack(ABC):
    """A search for misclassified points of the ball around each sample; an attack of your own is a subclass.

    A subclass has a method `search`, and perhaps more settings. On the command line it is `path.py:Name`.

    Args:
        eps: The radius of the ball, a number or text such as "8/255".
        norm: linf, l2 or l1; also as AutoAttack writes it, "Linf".
        bounds: The lowest and the highest value of x + delta, numbers or tensors, or None for no bounds.
    Raises:
        InputError: If there is no such ball.
    Example:
        >>> @dataclass(frozen=True, kw_only=True, eq=False)
        ... class Darker(Attack):
        ...     def search(self, search: Search, seed: int) -> None:
        ...         rows = search.unbroken()
        ...         point = rows.x + rows.feasible.low
        ...         search.record(rows, point, search.compute_logits(rows, point))
        >>> Darker(eps="8/255")
        Darker(eps=0.03137254901960784, norm='linf', bounds=(0.0, 1.0))
    """

    eps: float
    norm: str = "linf"
    bounds: Bounds = (0.0, 1.0)
    ball: Ball = field(init=False, repr=False)
    search_type: ClassVar[type[Search]] = Search  # what keeps the points found
    proves: ClassVar[bool] = False  # True: rows that it does not break are proven to hold
    searches_fast: ClassVar[bool] = False  # True: its passes may be computed in bfloat16
    input_gradients_only: ClassVar[bool] = True  # False: the model is left as it is, weights keep their gradients
    uses_gradients: ClassVar[bool | None] = None  # of the attacked model; None: not known. Checks of evaluations use it
    takes_targets: ClassVar[bool] = False  # True: it can aim at the classes `rows.target`
    is_black_box: ClassVar[bool] = False  # True: searches without these gradients, and better than noise

    def __post_init__(self) -> None:
        object.__setattr__(self, "ball", Ball(self.eps, self.norm, self.bounds))
        object.__setattr__(self, "eps", self.ball.eps)
        object.__setattr__(self, "norm", self.ball.norm)

    @property
    def uses_margin(self) -> bool:
        """Whether it compares logits, by a margin or towards targets, where a cross-entropy may saturate."""
        return False

    @property
    def steps_per_run(self) -> int | None:
        """How many gradient steps a run has, by the setting `steps`; None without gradients, or if not known."""
        return getattr(self, "steps", None) if self.uses_gradients else None

    @property
    def is_restarted(self) -> bool:
        """Whether it starts more than once per sample or target, by the setting `restarts`."""
        return getattr(self, "restarts", 1) > 1

    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor | None = None,
        seed: int = 0,
        *,
        targets: Tensor | int | None = None,
        eot: int = 1,
        votes: int = 1,
    ) -> Tensor:
        """Return x_adv: per row the first misclassified point found, else the best point; arguments as for `run`."""
        if y is None:  # called as attacks that have their model
            raise InputError("attack-without-model", name=type(self).__name__)
        return self.run(model, x, y, seed, targets=targets, eot=eot, votes=votes).x_adv

    def run(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        seed: int = 0,
        *,
        targets: Tensor | int | None = None,
        numbers: Tensor | None = None,
        eot: int = 1,
        votes: int = 1,
    ) -> Verdict:
        """Attack every row of x, and return what was found and what it cost.

        Args:
            model: The classifier: x -> logits.
            x: The samples, (n, ...), floats.
            y: Their labels.
            seed: Decides all draws.
            targets: The class that each row shall get, one per row or one for all: then only rows that are predicted as
                their target are broken, and margins are those of the target.
            numbers: Where x is a part of a larger set, the numbers of its rows there; parts then draw what the whole
                would.
            eot: For random models: gradients and losses are means over so many draws.
            votes: For random models: how many draws classify a point; it is broken if at least half are wrong.
        """
        attack: Attack = self
        if targets is not None:
            from sihg.robust.attacks.targeted import aim  # which is an attack, too

            if votes > 1:
                raise InputError("targets-votes", votes=votes)
            attack = aim(self, targets, y, numbers)
        return attack_batch(attack, model, x, y, seed, numbers=numbers, draws=Draws(eot, votes))

    def check(self, model: nn.Module, x: Tensor) -> None:  # noqa: B027
        """Raise InputError for a model that cannot be attacked so, before other attacks take their time."""

    def remark(self, classes: int) -> str:  # noqa: ARG002
        """Return what a reader of the result should know, for a model with so many classes."""
        return ""

    def max_passes(self, classes: int) -> float | None:  # noqa: ARG002
        """Return how many passes a row takes at most, on a model with so many classes; None if that is not known.

        A forward pass alone counts a third. Progress displays estimate the time left from it.
        """
        return None

    @abstractmethod
    def search(self, search: Search, seed: int) -> None:
        """Attack the rows of one search."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Natural(Attack):
    """Look at x itself, which gives the clean accuracy.

    Args:
        eps: Ignored, as are norm and bounds.
    Example:
        >>> import torch
        >>> Natural().run(torch.nn.Linear(2, 3), torch.zeros(1, 2), torch.tensor([0])).forwards
        1
    """

    uses_gradients: ClassVar[bool | None] = False
    takes_targets: ClassVar[bool] = True

    eps: float = 0.0
    bounds: Bounds = None

    def max_passes(self, classes: int) -> float:  # noqa: ARG002
        """Return one forward pass."""
        return 1 / 3

    def search(self, search: Search, seed: int) -> None:  # noqa: ARG002
        """Record the samples."""
        search.record_clean()


def check_counts(**counts: int) -> None:
    """Raise InputError unless every number is an integer >= 1."""
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError("count-range", setting=name, value=value)
