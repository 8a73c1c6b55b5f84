"""What `progress` hears, without the passes in between."""

from collections.abc import Callable

from sihg.robust.evaluation.progress import EvaluationProgress, Progress


def by_part(callback: Callable[[str, int, int], object]) -> Progress:
    """Call back with (attack, samples done, samples in all) when an attack begins and when a part of it has ended."""
    last = "", 0, 0

    def progress(event: EvaluationProgress) -> None:
        nonlocal last
        here = event.stage, event.done, event.total
        if here != last and not event.stage.startswith("checks"):
            last = here
            callback(*here)

    return progress
