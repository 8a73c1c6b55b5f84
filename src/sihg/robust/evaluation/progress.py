"""What an evaluation tells of its progress: which attack, how many samples hold so far, and how much work is left."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sihg.errors import InputError
from sihg.robust.attacks.base import Attack
from sihg.robust.attacks.chunk_size import rows_per_chunk
from sihg.robust.attacks.random_models import ONCE, Draws
from sihg.robust.attacks.registry import Plan
from sihg.robust.attacks.runner import SHARE_SEARCHED_AGAIN, Part
from sihg.robust.attacks.search import OnPass
from sihg.robust.data.samples import Samples

FORWARD = 1 / 3  # of a pass that has a backward pass, too


@dataclass(frozen=True)
class EvaluationProgress:
    """How far an evaluation is, told after each pass of the model.

    Args:
        stage: The attack, in a cascade "name: stage"; or a check before or after the attacks, such as "checks: steps".
        done: Samples whose verdict by this attack is known.
        total: Samples that this attack gets; 0 for a check.
        left: Samples that are neither done nor broken yet.
        resumed: Those of `done` that an interrupted evaluation has left.
        unbroken: Samples that neither this attack nor, in a cascade, one before has broken so far.
        samples: Samples of the evaluation.
        passes: Forward-backward passes of this stage so far, summed over samples.
        forwards: Forward passes alone.
        work: Passes of the whole evaluation since it began, or was resumed; a forward pass alone counts a third.
        stage_left: Passes for the rest of the stage, if samples to come fall as those so far; None if not known.
        work_left: The same for all stages; checks are not counted.
    Example:
        >>> import torch, sihg
        >>> events = []
        >>> data = 0.9 * torch.eye(4), torch.arange(4)
        >>> found = sihg.evaluate(torch.nn.Flatten(), data, eps=0.6, attacks="fgsm", progress=events.append)
        >>> [(event.stage, event.done, event.passes, event.accuracy) for event in events if event.stage == "fgsm"]
        [('fgsm', 0, 0, 1.0), ('fgsm', 0, 4, 1.0), ('fgsm', 0, 4, 1.0), ('fgsm', 4, 4, 0.0)]
    """

    stage: str
    done: int
    total: int
    left: int
    resumed: int
    unbroken: int
    samples: int
    passes: int
    forwards: int
    work: float
    stage_left: float | None
    work_left: float | None

    @property
    def accuracy(self) -> float:
        """The share of samples that are not broken so far; the accuracy under the attack is at most this."""
        return self.unbroken / self.samples

    @property
    def stage_share(self) -> float:
        """The share of the stage that is done."""
        made = self.passes + FORWARD * self.forwards
        if self.stage_left is None or not made + self.stage_left:
            return self.done / self.total if self.total else 1.0
        return made / (made + self.stage_left)


Progress = Callable[[EvaluationProgress], object]


def check_progress(progress: object) -> None:
    """Raise InputError unless `progress` is None or can be called with one argument."""
    if progress is None:
        return
    if not callable(progress):
        raise InputError("progress-form", form=f"a {type(progress).__name__}")
    try:
        signature = inspect.signature(progress)
    except ValueError:  # a builtin may have none
        return
    try:
        signature.bind(None)
    except TypeError:
        raise InputError("progress-form", form=f"a function of {signature}") from None


class ProgressTracker:
    """Adds up what searches and parts of attacks report, and tells it as EvaluationProgress.

    Args:
        progress: Receives the events.
        plans: All attacks to come.
        samples: The samples.
        classes: Outputs of the model.
        precision: The number format of the searches.
        draws: For random models: how many passes each one stands for.
    """

    def __init__(
        self,
        progress: Progress,
        plans: Mapping[str, Plan],
        samples: Samples,
        classes: int,
        precision: str,
        draws: Draws = ONCE,
    ) -> None:
        self._progress, self._samples = progress, len(samples)
        self._chunk = rows_per_chunk(samples.shape)
        self._plans = [
            [_passes_per_row(a, classes, precision, draws) for a in plan.values()] for plan in plans.values()
        ]
        self._stages = [(number, place) for number, plan in enumerate(self._plans) for place in range(len(plan))]
        self._number = -1  # of the stage, or of the one before if a check attacks
        self._stage, self._resumed, self._part, self._is_check = "", 0, _Part(unbroken=self._samples), False
        self._work = 0.0  # of the stages and parts that have ended
        self._before: tuple[int, int] = 0, 0  # passes and forwards of the stage's parts that have ended

    def show(self, part: Part) -> None:
        """Tell that an attack begins, or that a part of it has ended."""
        outcome = part.outcome
        if part.key != self._stage:
            self._stage, self._resumed, self._number = part.key, outcome.done, self._number + 1
            self._is_check = False
        else:
            passes, forwards = outcome.passes - self._before[0], outcome.forwards - self._before[1]
            self._work += passes + FORWARD * forwards
        self._before = outcome.passes, outcome.forwards
        total, unbroken = int(outcome.attacked.sum()), int((~outcome.broken).sum())
        self._part = _Part(outcome.done, total, unbroken, rows=min(self._chunk, total - outcome.done))
        self._tell()

    def on_pass(self, passes: int, forwards: int, broken: int) -> None:
        """Tell that the model was applied to some rows of the part that is attacked now."""
        part = self._part
        part.passes, part.forwards, part.broken = part.passes + passes, part.forwards + forwards, broken
        part.depth += 1 if passes else FORWARD
        self._tell()

    def begin_check(self, name: str) -> OnPass:
        """Tell that a check begins; return what is called after each of its passes."""
        self._stage, self._resumed, self._before, self._is_check = f"checks: {name}", 0, (0, 0), True
        self._part = _Part(unbroken=self._part.unbroken)
        self._tell()

        def on_pass(passes: int, forwards: int, _broken: int) -> None:
            self._work += passes + FORWARD * forwards
            self._part.passes += passes
            self._part.forwards += forwards
            self._tell()

        return on_pass

    def _tell(self) -> None:
        part, is_check = self._part, self._is_check
        passes, forwards = self._before[0] + part.passes, self._before[1] + part.forwards
        stage_left, work_left = (None, None) if is_check else self._estimate(passes + FORWARD * forwards)
        self._progress(
            EvaluationProgress(
                stage=self._stage,
                done=part.done,
                total=part.total,
                left=part.total - part.done - part.broken,
                resumed=self._resumed,
                unbroken=part.unbroken - part.broken,
                samples=self._samples,
                passes=passes,
                forwards=forwards,
                work=self._work + (0 if is_check else part.passes + FORWARD * part.forwards),
                stage_left=stage_left,
                work_left=work_left,
            )
        )

    def _estimate(self, made: float) -> tuple[float | None, float | None]:
        """Return the passes left of the stage, which has made some already, and of all stages."""
        number, place = self._stages[self._number]
        most, part = self._plans[number][place], self._part
        if most is None:
            return None, None
        now = max(0, part.rows - part.broken) * max(0.0, most - part.depth)
        seen = part.done + part.rows
        left = now + (part.total - seen) * min(most, (made + now) / max(1, seen))
        broken = part.total - part.unbroken + part.broken  # in this stage
        survivors = part.total * max(0.0, 1 - broken / max(1, seen))
        later = 0.0
        for passes in [*self._plans[number][place + 1 :], *(p for plan in self._plans[number + 1 :] for p in plan)]:
            if passes is None:
                return left, None
            later += survivors * passes
        return left, left + later


@dataclass
class _Part:
    """The samples that are attacked now, and what is known of the stage before them."""

    done: int = 0
    total: int = 0
    unbroken: int = 0  # before this part
    rows: int = 0
    broken: int = 0  # of the rows
    passes: int = 0
    forwards: int = 0
    depth: float = 0.0  # passes of a row that is not broken


def _passes_per_row(attack: Attack, classes: int, precision: str, draws: Draws) -> float | None:
    """Return how many passes a row may take; in bfloat16 breaks are confirmed, and some rows are searched again."""
    most = attack.max_passes(classes)
    if most is not None and draws != ONCE:
        most = draws.eot * most + FORWARD * draws.votes
    if most is None or precision == "float32" or not attack.searches_fast:
        return most
    return most * (1 + SHARE_SEARCHED_AGAIN) + FORWARD
