"""The state of an attack on a chunk of samples: the rows that are not broken yet, and the best points so far."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from sihg.robust.attacks.attacked_rows import Rows
from sihg.robust.attacks.output_checks import SLACK, check_logits, refuse_gradient
from sihg.robust.attacks.random_models import BREAK, ONCE, VERDICT, Draws, average, pick_draw
from sihg.robust.gradients import Loss
from sihg.robust.precision import exact_float32, to_float32
from sihg.robust.threat import Ball
from sihg.robust.waits import late, look_at, read_collected, refuse_if

EXACT_STEPS = 1  # the last of a run whose gradient is float32, as is the pass after it; 5 break hardly more
OnPass = Callable[[int, int, int], object]  # receives new passes, new forward passes, and rows known to be broken


class Search:
    """An attack on `rows`: evaluates the model, counts passes, and keeps the best point of each row.

    A `search` of an attack of your own calls, for rows that are not broken yet:

    - `unbroken()`: the rows to attack,
    - `compute_logits(rows, point)`, or `compute_gradient(rows, point, loss)`,
    - `record(rows, point, logits)` for every point that should count.

    A fast search computes in bfloat16. Where its logits claim a break, they are replaced by those that a float32 pass
    gives at the point, clipped to the bounds; so a row whose claim is not confirmed stays in the search.

    Args:
        model: The model under attack.
        rows: The samples, with the perturbations that are allowed.
        ball: The ball, for its bounds (default: none).
        fast: Whether to compute in the format that `number_formats` chose for ascents.
        draws: For random models: over how many draws gradients and logits are averaged, and how many classify a point.
            Where the mean logits claim a break, they are replaced by those of a draw that is wrong only if most are.
        on_pass: Receives, after each pass of the model, the rows that it counts as passes and as forward passes, and
            how many rows are known to be broken. On other devices than a CPU that is known when rows leave the search.
    Example:
        >>> x, y, row = torch.tensor([[0.0, 1.0]]), torch.tensor([0]), torch.tensor([0])
        >>> search = Search(nn.Identity(), Rows(x, y, Ball(0.1).around(x), row, row))
        >>> search.record_clean().tolist(), len(search.unbroken())
        ([[0.0, 1.0]], 0)
    """

    def __init__(
        self,
        model: nn.Module,
        rows: Rows,
        ball: Ball | None = None,
        *,
        fast: bool = False,
        draws: Draws = ONCE,
        on_pass: OnPass | None = None,
    ) -> None:
        self.model, self.rows, self.fast, self.draws, self.on_pass = model, rows, fast, draws, on_pass
        self.ball = ball or Ball(0.0, bounds=None)
        self.x_adv = rows.x.clone()
        self.broken = torch.zeros(len(rows), dtype=torch.bool, device=rows.x.device)
        self.prediction = rows.y.clone()
        self.margin = torch.full_like(rows.y, math.inf, dtype=rows.x.dtype)
        self.wrong = torch.zeros_like(rows.y)  # of the votes on each point; `judge` counts them
        self.passes = self.forwards = self.classes = 0
        self._on_cpu = rows.x.device.type == "cpu"
        self._looks = 0  # of `record_broken`, since `unbroken`
        self._known_broken = 0

    def nested(self, model: nn.Module, rows: Rows) -> "Search":
        """Return a search of its own for some rows, or on another model; its passes are heard as those of this one."""
        on_pass, draws = self.on_pass, self.draws if model is self.model else ONCE
        if on_pass is None:
            return Search(model, rows, self.ball, draws=draws)

        def heard(passes: int, forwards: int, _broken: int) -> None:
            on_pass(passes, forwards, self._known_broken)

        return Search(model, rows, self.ball, draws=draws, on_pass=heard)

    def count(self, *, passes: int = 0, forwards: int = 0) -> None:
        """Count rows that the model was applied to, with or without a backward pass."""
        self.passes, self.forwards = self.passes + passes, self.forwards + forwards
        if self.on_pass is not None:
            if self._on_cpu:
                self._known_broken = int(self._ended().sum())
            self.on_pass(passes, forwards, self._known_broken)

    def _ended(self) -> Tensor:
        """Return which rows need no further attack, for displays of the progress."""
        return self.broken

    def unbroken(self) -> Rows:
        """Return the rows without a misclassified point so far."""
        self._looks = 0
        held = self._held(self.broken)
        return self.rows if held is None else self.rows.take(held)

    def _held(self, broken: Tensor) -> Tensor | None:
        """Return the places of rows that are not broken, None if that is all of them."""
        if self._on_cpu:
            return true_places(~broken) if bool(broken.any()) else None
        lost = late(int, broken.sum())
        known = late(int, self._ended().sum()) if self.on_pass is not None else 0
        read_collected()  # one wait: the numbers, and what was to be checked
        self._known_broken = look_at(known)
        count = len(broken) - look_at(lost)
        return None if count == len(broken) else broken.to(torch.uint8).argsort(stable=True)[:count]

    def record_clean(self) -> Tensor:
        """Record the samples themselves, and return their logits."""
        logits = self.compute_logits(self.rows, self.rows.x)
        self.record(self.rows, self.rows.x, logits)
        return logits

    def compute_logits(self, rows: Rows, point: Tensor, *, exact: bool = True) -> Tensor:
        """Return the logits at `point`, in float32 unless the search is fast and they need not be exact."""
        exact = exact or not self.fast
        (logits,) = average(lambda: (self._classify(rows, point, exact=exact),), self.draws.eot)
        return logits if exact and self.draws.votes == 1 else self._confirm(rows, point, logits)

    def compute_logits_of(self, rows: Rows, places: Tensor, point: Tensor) -> Tensor:
        """Return the logits, which need not be exact, of the rows at these places alone; `point` has only theirs.

        This is cheaper than `rows.take(places)`, and for models that are not random.
        """
        y, number, place = (values.index_select(0, places) for values in (rows.y, rows.number, rows.place))
        target = None if rows.target is None else rows.target.index_select(0, places)
        asked = replace(rows, x=point, y=y, number=number, place=place, target=target)  # its box stays unused
        logits = self._classify(asked, point, exact=not self.fast)
        claimed = true_places(asked.breaks(logits)) if self.fast else places[:0]
        if not len(claimed):
            return logits
        chosen = rows.take(places.index_select(0, claimed))
        confirmed = self._confirm(chosen, point.index_select(0, claimed), logits.index_select(0, claimed))
        return logits.index_copy(0, claimed, confirmed)

    def _classify(self, rows: Rows, point: Tensor, *, exact: bool = True) -> Tensor:
        """Return the logits of one pass, which is one draw of a random model."""
        with torch.no_grad(), exact_float32(point.device.type) if exact else nullcontext():
            logits = self._check(self.model(point) if exact else to_float32(self.model(point)), rows)
        self.count(forwards=len(rows))
        return logits

    def compute_gradient(
        self, rows: Rows, point: Tensor, loss: Loss, *, exact: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return, at `point`, the logits, the loss of each row, and its gradient in the input.

        Args:
            rows: The rows, which are not broken yet.
            point: A point for each.
            loss: Computes the loss of each row from logits and labels.
            exact: Whether to compute in float32 also in a fast search.
        """
        exact = exact or not self.fast
        draw = partial(self._differentiate, rows, point.detach().requires_grad_(), loss, exact=exact)
        logits, losses, g = average(draw, self.draws.eot)
        g = g.contiguous() if 0 in g.stride() else g  # an expanded gradient could not be changed in place
        if not self._on_cpu or not math.isfinite(float(g.sum())):  # on a CPU the sum is the cheaper test
            bad = ~torch.isfinite(g).flatten(1).all(1)  # g itself is changed in place
            refuse_if(bad.any(), partial(refuse_gradient, rows, bad))
        if not exact or self.draws.votes > 1:
            logits = self._confirm(rows, point.detach(), logits)
        return logits, losses.to(g), g

    def _differentiate(self, rows: Rows, point: Tensor, loss: Loss, *, exact: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits, the losses and the gradient of one pass, which is one draw of a random model."""
        with torch.enable_grad(), exact_float32(point.device.type) if exact else nullcontext():
            logits = self.model(point) if exact else to_float32(self.model(point))
            self._check(logits, rows)
            losses = loss(logits, rows.y)
            (g,) = torch.autograd.grad(losses.sum(), point)
        self.count(passes=len(rows))
        return logits.detach(), losses.detach(), g

    def _check(self, logits: Tensor, rows: Rows) -> Tensor:
        """Return the logits, checked; the labels of rows on a device, which is waited for, only once."""
        is_known = not self._on_cpu and self.classes > 0
        check_logits(logits, rows, labels=not is_known)
        self.classes = logits.shape[1]
        return logits

    def _confirm(self, rows: Rows, point: Tensor, logits: Tensor) -> Tensor:
        """Replace the logits of rows misclassified within the ball by those of a float32 vote there, in the bounds."""
        wrong = rows.breaks(logits)
        claimed = true_places(wrong if self._on_cpu else wrong & ~self.broken[rows.place])
        if len(claimed):  # outside of the ball, where some attacks search too, no point breaks a row
            far = self.ball.lengths((point - rows.x).index_select(0, claimed))
            claimed = claimed[true_places(far <= self.ball.eps * (1 + SLACK))]
        if not len(claimed):
            return logits
        confirmed, _ = self._vote(rows.take(claimed), self.ball.clip(point.index_select(0, claimed)), BREAK)
        return logits.index_copy(0, claimed, confirmed.to(logits))

    def _vote(self, rows: Rows, point: Tensor, share: float) -> tuple[Tensor, Tensor]:
        """Classify points in float32, once per vote; return logits that are wrong if this share is, and the number."""
        draws = [self._classify(rows, point) for _ in range(self.draws.votes)]
        if len(draws) == 1:
            return draws[0], rows.breaks(draws[0]).long()
        return pick_draw(torch.stack(draws), rows.y, share)

    def judge(self) -> None:
        """Replace what is known of each row's best point by a vote in float32 there, within the bounds."""
        self.x_adv = self.ball.clip(self.x_adv)
        logits, self.wrong = self._vote(self.rows, self.x_adv, VERDICT)
        self.prediction, self.margin = logits.argmax(1), self.rows.leads(logits).to(self.margin)
        self.broken = self.rows.breaks(logits)

    def closest_rows(self, count: int) -> Rows:
        """Return the rows that are not broken, at most `count` of them, those with the smallest margins."""
        held = true_places(~self.broken)
        return self.rows.take(held[self.margin[held].argsort(stable=True)[:count]])

    def take_over(self, other: "Search", rows: Rows) -> None:
        """Add the cost of another search of these rows, and keep its point where that has a smaller margin."""
        self.passes, self.forwards = self.passes + other.passes, self.forwards + other.forwards
        better = other.broken | (other.margin < self.margin[rows.place])
        self._keep(rows.place, better, other.x_adv, other.prediction, other.margin, other.broken)

    def record(self, rows: Rows, point: Tensor, logits: Tensor) -> None:
        """Keep `point` for each row where it is misclassified, or has a smaller margin than the point kept so far."""
        self.classes = logits.shape[1]
        prediction, margin = logits.argmax(1), rows.leads(logits).to(self.margin)
        broken = prediction != rows.y if rows.target is None else prediction == rows.target
        better = broken | (margin < self.margin[rows.place])
        if not self._on_cpu:
            self._keep(rows.place, better & ~self.broken[rows.place], point, prediction, margin, broken)
            return
        place = rows.place[better]
        self.x_adv[place], self.margin[place] = point[better], margin[better]
        self.prediction[place], self.broken[place] = prediction[better], broken[better]

    def _keep(self, place: Tensor, better: Tensor, *new: Tensor) -> None:
        """Replace the results of rows where `better` is true, without asking the device which rows these are."""
        for kept, now in zip((self.x_adv, self.prediction, self.margin, self.broken), new, strict=True):
            before = kept[place]
            kept[place] = torch.where(better.view(-1, *(1,) * (kept.dim() - 1)), now.to(kept.dtype), before)

    def record_broken(self, rows: Rows, point: Tensor, logits: Tensor) -> Tensor | None:
        """Record the misclassified rows; return the places of the others among `rows`, None if that is all of them.

        Other devices than a CPU have to be waited for to know that. So there broken rows stay in the search, where they
        change nothing, until the calls 1, 2, 4, 8, ... since `unbroken`.
        """
        wrong = rows.breaks(logits)
        if not self._on_cpu:
            better = wrong & ~self.broken[rows.place]
            self._keep(rows.place, better, point, logits.argmax(1), rows.leads(logits), wrong)
            return self.places_left(self.broken[rows.place])
        if not bool(wrong.any()):
            return None
        lost = true_places(wrong)
        self.record(rows.take(lost), point[lost], logits[lost])
        return true_places(~wrong)

    def record_within(self, rows: Rows, point: Tensor, logits: Tensor) -> Tensor | None:
        """Record the points that lie within the ball; return the places of rows that none breaks, None if that is all.

        This is for attacks whose points may lie outside the ball, on their way to the nearest misclassified one.
        """
        inside = self.ball.lengths(point - rows.x) <= self.ball.eps
        margin = rows.leads(logits).to(self.margin)
        broken = inside & rows.breaks(logits)
        better = broken | inside & (margin < self.margin[rows.place])
        if not self._on_cpu:
            better &= ~self.broken[rows.place]
            self._keep(rows.place, better, point, logits.argmax(1), margin, broken)
        elif bool(better.any()):
            self.record(rows.take(true_places(better)), point[better], logits[better])
        return self.places_left(broken)

    def places_left(self, done: Tensor) -> Tensor | None:
        """Return the places of rows that are not done, None if that is all of them; on a device as `record_broken`."""
        self._looks += 1
        return None if not self._on_cpu and self._looks & (self._looks - 1) else self._held(done)


def true_places(mask: Tensor) -> Tensor:
    """Return the places where the mask is true: indexing by place is faster than by mask."""
    return mask.nonzero().flatten()
