"""The lines that AutoAttack prints, from the parts of a cascade."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from torch import Tensor

from sihg.robust.attacks.outcome import Outcome
from sihg.robust.attacks.runner import Part
from sihg.robust.threat import Ball
from sihg.store.schema import Check


class AutoAttackLog:
    """Follow an evaluation and say what AutoAttack says.

    Args:
        say: Gets each line.
        batch_size: After so many samples an attack has a line.
    """

    def __init__(self, say: Callable[[str], None], batch_size: int) -> None:
        self.say, self.batch_size = say, batch_size
        self.batches = 0  # of this attack, that have their line
        self.start = time.perf_counter()

    def begin(
        self, version: str, names: Iterable[str], known: Mapping[str, Outcome], state_path: str | Path | None
    ) -> None:
        """Say what will be run and, of a state that is resumed, what was found before."""
        if state_path is not None:
            self.say(f"{'Restored state from' if known else 'Created state in'} {state_path}")
        done = {outcome.attack: outcome for outcome in known.values() if outcome.done == int(outcome.attacked.sum())}
        attacks = [name for name in names if name != "natural"]
        self.say(f"using {version} version including {', '.join(name for name in attacks if name not in done)}.")
        before = [name for name in attacks if name in done]
        if before:
            self.say(f"{', '.join(before)} was/were already run.")
        if "natural" in done:
            self.say(f"initial clean accuracy: {done['natural'].accuracy:.2%}")
            last = list(known.values())[-1]
            self.say(f"robust accuracy at the time of restoring the state: {last.accuracy:.2%}")

    def follow(self, part: Part) -> None:
        """Say what a part of an attack has found."""
        outcome, name, size = part.outcome, part.outcome.attack, self.batch_size
        rows = outcome.attacked.nonzero().flatten()
        if part.verdict is None:
            self.batches = outcome.done // size  # of a state that is resumed
            return
        is_last = outcome.done == len(rows)
        if name == "natural":
            if is_last:
                self.say(f"initial accuracy: {outcome.accuracy:.2%}")
                self.start = time.perf_counter()
            return
        count = math.ceil(len(rows) / size)
        while self.batches < (count if is_last else outcome.done // size):
            batch = rows[self.batches * size : (self.batches + 1) * size]
            self.batches += 1
            lost = int(outcome.broken[batch].sum())
            self.say(f"{name} - {self.batches}/{count} - {lost} out of {len(batch)} successfully perturbed")
        if is_last:
            seconds = time.perf_counter() - self.start
            self.say(f"robust accuracy after {name.upper()}: {outcome.accuracy:.2%} (total time {seconds:.1f} s)")

    def end(self, delta: Tensor, x_adv: Tensor, ball: Ball, accuracy: float, checks: Iterable[Check]) -> None:
        """Say how far the points are, what holds, and which checks warn."""
        far = ball.lengths(delta).max()
        missing = int(x_adv.isnan().sum())
        values = f"max: {x_adv.max():.5f}, min: {x_adv.min():.5f}"
        self.say(f"max {ball.norm.capitalize()} perturbation: {far:.5f}, nan in tensor: {missing}, {values}")
        self.say(f"robust accuracy: {accuracy:.2%}")
        for check in checks:
            if check.result in ("warning", "error"):
                self.say(f"{check.result.capitalize()}: {check.message}")
