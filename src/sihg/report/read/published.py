"""Look up the paper's own numbers, from the files in paper/, for runs in the paper's setting."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import msgspec

from sihg.parse import Value, parse_number
from sihg.report.read.runs import setting_text
from sihg.store.schema import Settings
from sihg.store.statistics import Spread

NOT_ZERO = "some"  # how a file says that the paper gives no value but uses the setting


class _Method(msgspec.Struct):
    """What a file says about a method; accuracies are [mean, deviation] in percent, or [mean] if quoted."""

    name: str
    final: dict[str, list[float]]
    best: dict[str, list[float]] = {}
    recipe: Settings = {}
    remark: str = ""
    alone: bool = False  # the recipe of the data set is not its own


class _Paper(msgspec.Struct):
    """A file in paper/."""

    paper: str
    final_in: str
    best_in: str
    trials: int
    setting: Settings
    recipe: Settings
    methods: dict[str, _Method]


@dataclass(frozen=True)
class Published:
    """The paper's result for a method: accuracy by attack, at the end and at the best robust accuracy."""

    name: str
    final: Mapping[str, Spread]
    best: Mapping[str, Spread]
    trials: int | None  # None: the numbers are quoted from elsewhere
    paper: str
    tables: tuple[str, ...]  # of the paper, for `final` and `best`
    recipe: Settings  # settings of the paper in which a run may differ
    remark: str

    def citation(self, *, best: bool) -> str:
        """Return where the final numbers are printed, and the best ones if they are shown."""
        return f"{self.paper}, {' and '.join(self.tables if best else self.tables[:1])}"


def find_published(settings: Mapping[str, Value]) -> Published | None:
    """Return the paper's result for this data set, model, ball and method, or None."""
    for source in _papers():
        method = source.methods.get(str(settings.get("method.name")))
        if method and all(_is_among(settings.get(key), value) for key, value in source.setting.items()):
            final, best = _spreads(method.final, source.trials), _spreads(method.best, source.trials)
            return Published(
                name=method.name,
                final=final,
                best=best,
                trials=source.trials if any(spread.n for spread in final.values()) else None,
                paper=source.paper,
                tables=(source.final_in, *([source.best_in] if best else [])),
                recipe={**({} if method.alone else source.recipe), **method.recipe},
                remark=method.remark,
            )
    return None


def departures(settings: Mapping[str, Value], recipe: Mapping[str, Value]) -> dict[str, tuple[Value, Value]]:
    """Return the settings that differ from the paper's recipe: the run's value and the paper's.

    A setting that the run does not have is taken as the paper's.
    """
    return {
        key: (settings[key], value)
        for key, value in recipe.items()
        if key in settings and not _is_same(settings[key], value)
    }


def describe_departures(runs: Sequence[tuple[Mapping[str, Value], Published]]) -> list[str]:
    """Say in sentences how the settings of runs differ from those of the paper's results next to them.

    If some of the runs differ in a setting, the values of all of them are listed.
    """
    values: dict[str, dict[str, None]] = {}
    differing: set[str] = set()
    remarks: dict[str, None] = {}
    for settings, paper in runs:
        found = departures(settings, paper.recipe)
        for key, theirs in paper.recipe.items():
            name = f"{key} ({setting_text(theirs)})"
            values.setdefault(name, {})[setting_text(settings.get(key, theirs))] = None
            differing |= {name} if key in found else set()
        remarks |= {f"{paper.remark}.": None} if paper.remark else {}
    listed = "; ".join(f"{name}: {' / '.join(ours)}" for name, ours in values.items() if name in differing)
    sentence = f"Settings that differ from the paper's (its values in brackets; off where it gives none): {listed}."
    return [*([sentence] if differing else []), *remarks]


@cache
def _papers() -> tuple[_Paper, ...]:
    folder = files("sihg.report.read").joinpath("paper")
    texts = [folder.joinpath(f"{name}.toml").read_text(encoding="utf-8") for name in ("mnist", "svhn", "cifar10")]
    return tuple(msgspec.convert(tomllib.loads(text), _Paper) for text in texts)


def _is_among(value: Value | None, theirs: Value) -> bool:
    """Whether a setting is the paper's or, where the file lists several that its words allow, one of these."""
    return any(_is_same(value, one) for one in (theirs if isinstance(theirs, list | tuple) else [theirs]))


def _is_same(value: Value | None, theirs: Value) -> bool:
    if theirs == NOT_ZERO:
        return bool(value)
    if isinstance(theirs, str) and "/" in theirs:
        return isinstance(value, int | float) and abs(value - parse_number(theirs)) < 1e-9
    return value == theirs


def _spreads(percents: Mapping[str, list[float]], trials: int) -> dict[str, Spread]:
    return {
        attack: Spread(_share(mean), _share(rest[0]) if rest else None, trials if rest else None)
        for attack, (mean, *rest) in percents.items()
    }


def _share(percent: float) -> float:
    """Convert 62.34 to 0.6234, without the last bits of a division."""
    return round(percent / 100, 6)
