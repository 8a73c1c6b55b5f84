"""Bands around mean curves: how far the trials of an entry lie apart."""

from collections.abc import Sequence

import numpy as np

from sihg.report.read.evaluations import Floats
from sihg.report.read.runs import Entry
from sihg.store.statistics import MIN_TRIALS


def trial_band(trials: Floats) -> tuple[Floats, Floats]:
    """Return the edges of the band around the mean over the first axis.

    They are mean minus and plus deviation over three or more trials, the range of two, and NaN for one.
    """
    if len(trials) >= MIN_TRIALS:
        mean, deviation = trials.mean(0), trials.std(0, ddof=1)
        return mean - deviation, mean + deviation
    if len(trials) == 1:
        nothing = np.full(trials.shape[1:], np.nan)
        return nothing, nothing
    return trials.min(0), trials.max(0)


def band_sentences(entries: Sequence[Entry]) -> list[str]:
    """Return the names of the sentences in captions.toml that explain the bands of these entries."""
    trials = {len(entry.counted) for entry in entries}
    several = ["band"] if max(trials) >= MIN_TRIALS else []
    return several + (["band-of-two"] if 2 in trials else [])
