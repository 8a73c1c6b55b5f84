"""Runs that differ only in their seed are trials of one entry."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sihg.report.read.palette import Look, looks
from sihg.report.read.runs import TrainingRun


@dataclass(frozen=True, eq=False)
class Entry:
    """Runs with the same settings, each with a seed of its own."""

    name: str
    trials: tuple[TrainingRun, ...]
    look: Look  # in every figure and table

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of its runs; the seed is that of the first."""
        return self.trials[0].settings

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.trials[0].method

    @property
    def counted(self) -> tuple[TrainingRun, ...]:
        """The trials whose numbers count: those that are finished, or all while none is."""
        return tuple(run for run in self.trials if run.is_finished) or self.trials


def entries(runs: Sequence[TrainingRun]) -> list[Entry]:
    """The runs as entries, in the order of their first runs; one that repeats another's seed begins a new one."""
    groups: list[list[TrainingRun]] = []
    for run in runs:
        alike = (group for group in groups if "seed" in run.settings and _alike(group[0]) == _alike(run))
        group = next((group for group in alike if all(_seed(other) != _seed(run) for other in group)), None)
        if group is None:
            groups.append([run])
        else:
            group.append(run)
    names = [_name(group) for group in groups]
    twice = {name for name, times in Counter(names).items() if times > 1}
    styles = looks([group[0].method for group in groups])
    return [
        Entry(group[0].name if name in twice else name, tuple(group), look)
        for name, group, look in zip(names, groups, styles, strict=True)
    ]


def _alike(run: TrainingRun) -> str:
    """The settings apart from the seed, as one text."""
    return json.dumps({key: value for key, value in run.settings.items() if key != "seed"}, sort_keys=True, default=str)


def _seed(run: TrainingRun) -> str:
    return str(run.settings.get("seed"))


def _name(group: Sequence[TrainingRun]) -> str:
    """What the runs' names have in common without their seeds, or the name of the first."""
    stems = {_stem(run) for run in group}
    if len(stems) == 1:
        return stems.pop()
    return f"{group[0].name} and {len(group) - 1} more"


def _stem(run: TrainingRun) -> str:
    seed = re.escape(_seed(run))
    return re.sub(rf"(?:[-_. ](?:s|seed)?[-_]?|seed[-_]?){seed}$", "", run.name) or run.name
