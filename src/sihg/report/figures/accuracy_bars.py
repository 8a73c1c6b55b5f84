"""Draw the headline of a page: clean and robust accuracy as bars, and robust accuracy against its cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from sihg.report.figures.bands import trial_band
from sihg.report.figures.interactive import mark_entry, show_values
from sihg.report.figures.style import (
    INK,
    LINE,
    QUIET,
    CurveName,
    fit_name,
    name_curves,
    number_log_axis,
    show_plain_text,
    thousands_formatter,
)
from sihg.report.read.evaluations import ALL, PROVEN, Evaluation
from sihg.report.read.palette import Look, looks
from sihg.report.read.results import find_results
from sihg.report.read.runs import Entry
from sihg.store.statistics import spread

CLEAN = "natural"  # the evaluation without an attack
WIDTH, LEFT, RIGHT, TOP, BOTTOM = 5.2, 1.35, 0.5, 0.42, 0.5  # inches
BAR, BETWEEN = 0.2, 0.14  # inches: the height of a bar, and the space between groups
PANEL_HEIGHT, PANEL_LEFT, PANEL_RIGHT = 1.9, 0.7, 1.5  # inches, of the figure of costs
FAR = 4  # costs that differ by more than this factor need a logarithmic axis
PALE = 0.38  # opacity of clean accuracy


@dataclass(frozen=True)
class Estimate:
    """An accuracy, and the ends of its error bar; NaN for no bar."""

    value: float
    low: float
    high: float

    def text(self) -> str:
        """Return the accuracy and its limits in percent."""
        limits = f" ({100 * self.low:.1f} to {100 * self.high:.1f})" if self.low < self.high else ""
        return f"{100 * self.value:.1f} %{limits}"


@dataclass(frozen=True)
class BarGroup:
    """The accuracies of an entry, a record or an attack."""

    name: str
    look: Look
    entry: str  # by which a page hides it
    robust: Estimate | None = None
    clean: Estimate | None = None
    passes: float | None = None  # per training sample


@dataclass(frozen=True)
class Headline:
    """The groups to draw, and what their robust accuracy is measured with."""

    groups: tuple[BarGroup, ...]
    attack: str  # in words; empty if each group names its own


def training_headline(entries: Sequence[Entry]) -> Headline | None:
    """Collect the accuracies of entries under the strongest attack that most of them have, on test samples.

    A single entry shows every attack. None without evaluations.
    """
    columns = find_results([run for entry in entries for run in entry.counted]).columns
    if not columns:
        return None
    if len(entries) == 1:
        return Headline(_attack_groups(entries[0], columns), "")
    attack = _strongest(entries, columns)
    clean = _clean_of(attack, list(columns))
    groups = []
    for entry in entries:
        robust = _estimate(entry, columns.get(attack, {}))
        passes = spread([run.rows[-1].passes if run.rows else None for run in entry.counted])
        groups.append(
            BarGroup(
                entry.name,
                entry.look,
                entry.name,
                robust,
                _estimate(entry, columns.get(clean, {})),
                None if passes is None else passes.mean,
            )
        )
    known = tuple(group for group in groups if group.robust or group.clean)
    return Headline(known, attack.replace(ALL, "all attacks", 1) if attack.startswith(ALL) else attack)


def _attack_groups(entry: Entry, columns: dict[str, dict[str, Evaluation]]) -> tuple[BarGroup, ...]:
    groups = []
    for name, of_runs in columns.items():
        found = _estimate(entry, of_runs)
        if name.startswith(CLEAN):
            groups.append(BarGroup(name.replace(CLEAN, "clean", 1), entry.look, "", clean=found))
        else:
            groups.append(BarGroup(name, entry.look, "", robust=found))
    return tuple(groups)


def record_headline(records: Mapping[str, Sequence[Evaluation]]) -> Headline | None:
    """Collect the accuracies in records of evaluations; None without any. Targeted attacks have no accuracy."""
    styles = looks(list(records))
    groups = []
    for (record, evaluations), style in zip(records.items(), styles, strict=True):
        for found in evaluations:
            if not found.target:
                name = found.attack if len(records) == 1 else f"{record}, {found.attack}"
                estimate = Estimate(found.accuracy, found.low, found.high)
                if found.attack == CLEAN:
                    groups.append(BarGroup(name.replace(CLEAN, "clean"), style, record, clean=estimate))
                else:
                    groups.append(BarGroup(name, style, record, robust=estimate))
    return Headline(tuple(groups), "") if groups else None


def _strongest(entries: Sequence[Entry], columns: dict[str, dict[str, Evaluation]]) -> str:
    """Return the attack that most entries have; of several, the one under which accuracy is lowest."""
    attacks = [name for name in columns if not name.startswith(CLEAN)]
    proofs = [name for name in attacks if any(found.rule == PROVEN for found in columns[name].values())]

    def rank(name: str) -> tuple[int, float, bool]:
        found = [estimate.value for entry in entries if (estimate := _estimate(entry, columns[name]))]
        return -len(found), float(np.mean(found)) if found else 1.0, name.startswith(ALL)

    return min([name for name in attacks if name not in proofs] or attacks, key=rank, default="")


def _clean_of(attack: str, names: Sequence[str]) -> str:
    """Return the column of clean accuracy of the same checkpoint."""
    clean = [name for name in names if name.startswith(CLEAN)]
    checkpoint = attack.partition(" (")[2].rstrip(")").split(", ")[0]
    same = [name for name in clean if name.partition(" (")[2].rstrip(")") == checkpoint]
    return next(iter(same or clean), "")


def _estimate(entry: Entry, of_runs: dict[str, Evaluation]) -> Estimate | None:
    """Average over the trials, with their band; of a single trial with its 95 % interval."""
    found = [of_runs[run.name] for run in entry.counted if run.name in of_runs]
    if len(found) == 1:
        return Estimate(found[0].accuracy, found[0].low, found[0].high)
    if not found:
        return None
    values = np.array([[evaluation.accuracy] for evaluation in found])
    low, high = trial_band(values)
    return Estimate(float(values.mean()), max(float(low[0]), 0.0), min(float(high[0]), 1.0))


def accuracy_bars(headline: Headline) -> Figure:
    """Draw a bar per accuracy, robust above clean, with error bars."""
    groups = headline.groups
    heights = [BAR * sum(part is not None for part in (group.robust, group.clean)) for group in groups]
    inner = sum(heights) + BETWEEN * (len(groups) + 1)
    is_mixed = any(group.robust and group.clean for group in groups)
    top = TOP if is_mixed else 0.15
    height = inner + top + BOTTOM
    figure = Figure(figsize=(WIDTH, height))
    box = (LEFT / WIDTH, BOTTOM / height, 1 - (LEFT + RIGHT) / WIDTH, inner / height)
    axes = figure.add_axes(box, xlim=(0, 1), ylim=(inner, 0))
    axes.grid(visible=True, axis="x")
    axes.spines["left"].set_visible(False)
    at, ticks = BETWEEN, []
    for group, tall in zip(groups, heights, strict=True):
        ticks.append(at + tall / 2)
        for part, kind, opacity in ((group.robust, "robust", 1.0), (group.clean, "clean", PALE)):
            if part is not None:
                _bar(axes, at + BAR / 2, part, group, kind, opacity)
                at += BAR
        at += BETWEEN
    axes.set_yticks(ticks, [fit_name(group.name, 19) for group in groups], parse_math=False)
    for label, group in zip(axes.get_yticklabels(), groups, strict=True):
        mark_entry(group.entry or group.name, label)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_xlabel("accuracy on test samples")
    if is_mixed:
        handles = [
            Patch(color=QUIET, label=f"robust ({headline.attack})"),
            Patch(color=QUIET, alpha=PALE, label="clean"),
        ]
        place = (LEFT - 0.1) / WIDTH, 1.0
        look = {"ncols": 2, "frameon": False, "handlelength": 1.2}
        show_plain_text(figure.legend(handles=handles, loc="upper left", bbox_to_anchor=place, **look))
    return figure


def _bar(axes: Axes, y: float, part: Estimate, group: BarGroup, kind: str, opacity: float) -> None:
    entry = group.entry or group.name
    (bar,) = axes.barh(y, part.value, height=0.86 * BAR, color=group.look.colour, alpha=opacity, linewidth=0)
    mark_entry(entry, bar)
    right = part.value
    if part.low < part.high:
        (line,) = axes.plot([part.low, part.high], [y, y], color=INK, linewidth=1.1, marker="|", markersize=5)
        line.set(clip_on=False, zorder=4)
        mark_entry(entry, line)
        right = max(right, part.high)
    text = axes.text(min(right, 1.0) + 0.012, y, f"{100 * part.value:.1f}", va="center", fontsize=8)
    mark_entry(entry, text)
    what = f"{group.name}, {kind}" if group.entry else group.name
    places = np.linspace(0, part.value, 5)
    show_values(axes, places, np.full(5, y), [f"{what}: {part.text()}"] * 5, entry)


def has_costs(headline: Headline) -> bool:
    """Whether there are several entries whose robust accuracy and cost are known."""
    return len(_costed(headline)) > 1


def robust_against_passes(headline: Headline) -> Figure:
    """Draw robust accuracy against the gradient passes per training sample, a point per entry."""
    groups = _costed(headline)
    panel = max(PANEL_HEIGHT, LINE * len(groups))
    height = panel + 0.75
    figure = Figure(figsize=(WIDTH, height))
    box = (PANEL_LEFT / WIDTH, 0.55 / height, 1 - (PANEL_LEFT + PANEL_RIGHT) / WIDTH, panel / height)
    axes = figure.add_axes(box)
    axes.grid(visible=True)
    axes.set_xlabel("gradient passes per training sample")
    axes.set_ylabel(f"robust accuracy ({fit_name(headline.attack, 24)})", parse_math=False)
    passes = [cost for _, cost, _ in groups]
    if max(passes) > FAR * min(passes):
        axes.set_xscale("log")
        axes.set_xlim(min(passes) / 1.4, max(passes) * 1.4)
        number_log_axis(axes.xaxis, numbered=True)
    else:
        axes.set_xlim(0, 1.12 * max(passes))
        axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(thousands_formatter())
    highest = max(max(robust.value, np.nan_to_num(robust.high)) for _, _, robust in groups)
    axes.set_ylim(0, min(max(1.1 * highest, 0.1), 1.02))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    for group, cost, robust in groups:
        colour, marker = group.look
        if robust.low < robust.high:
            (line,) = axes.plot([cost] * 2, [robust.low, robust.high], color=colour, linewidth=1.3, marker="_")
            mark_entry(group.entry, line)
        (point,) = axes.plot([cost], [robust.value], marker, color=colour, markersize=8, clip_on=False, zorder=4)
        mark_entry(group.entry, point)
        text = f"{group.name}: {robust.text()}, {cost:,.4g} passes per sample"
        show_values(axes, [cost], [robust.value], [text], group.entry)
    top = axes.get_ylim()[1]
    names = [
        CurveName(fit_name(group.name), group.look, robust.value / top, has_curve=True, entry=group.entry)
        for group, _, robust in sorted(groups, key=lambda found: found[2].value)
    ]
    name_curves(axes, names)
    return figure


def _costed(headline: Headline) -> list[tuple[BarGroup, float, Estimate]]:
    return [(group, group.passes, group.robust) for group in headline.groups if group.robust and group.passes]
