"""Select the results of runs, all figures of a row on the same samples: those that its evaluations share."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sihg.report.read.evaluations import ALL, PROVEN, Evaluation, Flags, Labels, Verdicts, read_verdicts
from sihg.report.read.runs import TrainingRun
from sihg.store.answers import STRONGEST
from sihg.store.statistics import wilson

ATTACK_ORDER = ("natural", "pgd-20", "pgd-50-10", STRONGEST)  # then other attacks, ALL, and proofs
MIN_SHARED = 50  # samples: fewer say too little to stand for more
MAX_NAMED = 3  # in a note
NOT_SHARED = (
    "The evaluations of {} are on different samples, and it is not known which, or they share too few: figures with "
    "another n cannot be compared, and have no accuracy under all."
)


class Kind(NamedTuple):
    """What a column is about."""

    attack: str
    checkpoint: str
    rule: str  # only where it must be named: "last iterate" or PROVEN


@dataclass(frozen=True)
class Results:
    """The results of runs, by column and run, and what to keep in mind when reading them."""

    columns: dict[str, dict[str, Evaluation]]
    notes: tuple[str, ...]

    def of_run(self, run: str) -> dict[str, Evaluation]:
        """Return the results of a run by column."""
        return {name: of_runs[run] for name, of_runs in self.columns.items() if run in of_runs}


@dataclass(frozen=True, eq=False)
class _Shared:
    """The samples that figures are on: their places in the split, or None if all evaluations are on the same."""

    index: Labels | None = None
    note: str = ""


def find_results(runs: Sequence[TrainingRun]) -> Results:
    """Select the evaluations of the newest weights on the runs' own test samples within their own ball.

    Of several evaluations of a kind, the one on most samples counts; of these, the one that broke most. All figures of
    runs on one data set are on the samples that their evaluations share, if these are known and not too few. Otherwise
    each figure is on its own samples, and there is no ALL across them. Checkpoints are named if several were tested.
    """
    rows = [_Row(run) for run in runs]
    small = [text for row in rows for text in row.left_out]
    notes = [f"On few samples, so only in the list of evaluations of `sihg report`: {_first(small)}."] if small else []
    groups: dict[object, list[_Row]] = {}
    for row in rows:
        groups.setdefault(row.population, []).append(row)
    kept: dict[Kind, dict[str, Evaluation]] = {}
    for group in groups.values():
        shared = _share(group)
        if shared is None or shared.note:
            notes.append(NOT_SHARED.format(_first([row.run.name for row in group])) if shared is None else shared.note)
        for row in group:
            own = shared or _share([row]) or _Shared()
            for kind, evaluation in row.results(own.index).items():
                kept.setdefault(kind, {})[row.run.name] = evaluation
    under_all = [of_runs.values() for kind, of_runs in kept.items() if kind.attack == ALL]
    if any(len({frozenset(found.among.split(", ")) for found in of_kind}) > 1 for of_kind in under_all):
        notes.append("all is not under the same attacks in every row: compare it only between rows that have the same.")
    return Results(_name_columns(kept), tuple(notes))


class _Row:
    """The evaluations of a run that count, and those of them that are shown."""

    def __init__(self, run: TrainingRun) -> None:
        self.run = run
        self.read: dict[Path, Verdicts | None] = {}
        self.recorded: list[Evaluation] = []  # ALL of single records
        self.every: dict[Kind, list[Evaluation]] = {}
        for evaluation in run.evaluations:
            if evaluation.is_result and evaluation.attack == ALL:
                self.recorded.append(evaluation)
            elif evaluation.is_result:
                self.every.setdefault(_kind(evaluation), []).append(evaluation)
        largest = {kind: max(found, key=_weight) for kind, found in self.every.items()}
        most = max((found.samples for found in largest.values()), default=0)
        large = {kind: found for kind, found in largest.items() if found.samples >= min(MIN_SHARED, most)}
        least: dict[str, int] = {}  # by checkpoint: what is on fewer samples than STRONGEST would only cut it short
        for kind, found in large.items():
            if kind.attack == STRONGEST:
                least[kind.checkpoint] = max(found.samples, least.get(kind.checkpoint, 0))
        self.shown = {
            kind: found
            for kind, found in large.items()
            if kind.attack == STRONGEST or found.samples >= least.get(kind.checkpoint, 0)
        }

    @property
    def left_out(self) -> list[str]:
        """Name the attacks that are not shown."""
        small = [max(found, key=_weight) for kind, found in self.every.items() if kind not in self.shown]
        return [f"{found.attack} of {self.run.name} (n = {found.samples:,})" for found in small]

    @property
    def population(self) -> object:
        """What all samples of the row were drawn from; the row itself if that is not the same for all."""
        found = {evaluation.sample_set.population for evaluation in self.shown.values()}
        return found.pop() if len(found) == 1 else self

    def verdicts(self, evaluation: Evaluation) -> Verdicts | None:
        """Read what was found per sample, once."""
        if evaluation.source not in self.read:
            self.read[evaluation.source] = read_verdicts(evaluation.source)
        return self.read[evaluation.source]

    def results(self, index: Labels | None) -> dict[Kind, Evaluation]:
        """Return the figures on these samples; with None, each on the samples of its record."""
        figures = self.shown
        if index is not None:
            figures = {kind: self._on(evaluation, index) for kind, evaluation in figures.items()}
        return figures | dict(self._under_all(index))

    def _on(self, evaluation: Evaluation, index: Labels) -> Evaluation:
        verdicts = self.verdicts(evaluation)
        assert verdicts is not None  # `_share` has seen it
        return _with_broken(evaluation, verdicts.broken_on(index, evaluation.attack))

    def _under_all(self, index: Labels | None) -> Iterator[tuple[Kind, Evaluation]]:
        """Give the accuracy under all attacks of each checkpoint and rule, where it is known."""
        attacks = [kind for kind in self.shown if kind.rule != PROVEN]
        for checkpoint, rule in dict.fromkeys((k.checkpoint, k.rule) for k in attacks if k.attack != "natural"):
            # Natural errors always count, and what is misclassified at a last iterate is so at some iterate.
            of_checkpoint = [kind for kind in attacks if kind.checkpoint == checkpoint]
            kinds = [kind for kind in of_checkpoint if kind.attack == "natural" or rule in ("", kind.rule)]
            evaluation = self._all_of(kinds, index)
            if evaluation is not None:
                yield Kind(ALL, checkpoint, rule), evaluation

    def _all_of(self, kinds: Sequence[Kind], index: Labels | None) -> Evaluation | None:
        """Return the accuracy under these attacks; None if it is not known, or there is only one."""
        members = [self.shown[kind] for kind in kinds]
        every = [evaluation for kind in kinds for evaluation in self.every[kind]]
        recorded = None
        if index is None:
            if len({member.sample_set for member in members}) > 1:
                return None
            sources = {member.source for member in members}
            recorded = next((found for found in self.recorded if {found.source} == sources), None)
            if len({evaluation.source for evaluation in every}) > 1:
                index = _shared_index([self.verdicts(member) for member in members])
        if index is None or len(kinds) == 1:
            return recorded
        return self._joined(members, every, index)

    def _joined(self, members: Sequence[Evaluation], every: Sequence[Evaluation], index: Labels) -> Evaluation:
        """Count the samples that nothing breaks, neither the attacks shown nor other evaluations of them."""
        broken = np.zeros(len(index), dtype=np.bool_)
        for evaluation in every:
            if verdicts := self.verdicts(evaluation):
                broken |= verdicts.broken_on(index, evaluation.attack)
        costs = {name: sum(getattr(member, name) for member in members) for name in ("passes", "seconds")}
        among = ", ".join(dict.fromkeys(member.attack for member in members))
        return _with_broken(replace(members[-1], attack=ALL, among=among, **costs), broken)


def _share(rows: Sequence[_Row]) -> _Shared | None:
    """Return the samples that all evaluations shown share; None if they are not known, or too few."""
    shown = [(row, evaluation) for row in rows for evaluation in row.shown.values()]
    sets = {evaluation.sample_set for _, evaluation in shown}
    if len(sets) < 2:
        return _Shared()
    fewest = min(found.samples for found in sets)
    is_one_split = len({found.population for found in sets}) == 1
    index = _shared_index([row.verdicts(evaluation) for row, evaluation in shown]) if is_one_split else None
    if index is None or len(index) < min(MIN_SHARED, fewest):
        return None
    small = [*dict.fromkeys(f"{e.source.stem} of {row.run.name}" for row, e in shown if e.samples == fewest)]
    return _Shared(
        index,
        f"The evaluations shown share {len(index):,} test samples, and all figures are on these. The fewest, "
        f"{fewest:,}, are in {_first(small)}. `sihg report` lists each on all of its samples.",
    )


def _shared_index(read: Sequence[Verdicts | None]) -> Labels | None:
    """Return the places of the samples that all have; None if they are not all known."""
    known = [verdicts.index for verdicts in read if verdicts is not None]
    return reduce(np.intersect1d, known) if len(known) == len(read) else None


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"{', '.join(names[:MAX_NAMED])}{more}"


def _kind(evaluation: Evaluation) -> Kind:
    is_named = evaluation.rule in ("last iterate", PROVEN) and evaluation.attack != "natural"
    return Kind(evaluation.attack, evaluation.checkpoint, evaluation.rule if is_named else "")


def _with_broken(evaluation: Evaluation, broken: Flags) -> Evaluation:
    n, held = len(broken), int((~broken).sum())
    low, high = wilson(held, n)
    return replace(evaluation, accuracy=held / n, low=low, high=high, samples=n)


def _weight(evaluation: Evaluation) -> tuple[int, float]:
    return evaluation.samples, -evaluation.accuracy


def _name_columns(kept: Mapping[Kind, dict[str, Evaluation]]) -> dict[str, dict[str, Evaluation]]:
    several = len({kind.checkpoint for kind in kept}) > 1
    named = {}
    for kind, of_runs in sorted(kept.items(), key=lambda pair: _rank(pair[0])):
        details = ", ".join(part for part in (kind.checkpoint if several else "", kind.rule) if part)
        named[f"{kind.attack} ({details})" if details else kind.attack] = of_runs
    return named


def _rank(kind: Kind) -> tuple[bool, str, int]:
    """Sort the last checkpoint first; within one, the attacks as in the paper and proofs at the end."""
    others = len(ATTACK_ORDER) + (kind.attack == ALL) + 2 * (kind.rule == PROVEN)
    place = ATTACK_ORDER.index(kind.attack) if kind.attack in ATTACK_ORDER else others
    return kind.checkpoint != "last", kind.checkpoint, place
