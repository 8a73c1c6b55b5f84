"""The paper's own numbers, from the data files beside this one, for runs in the paper's setting."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib.resources import files
from typing import Any

from sihg.report.table import Spread


@dataclass(frozen=True)
class Reported:
    """What the paper reports of a method: accuracies by attack, at the end and at the best robust accuracy."""

    name: str
    final: Mapping[str, Spread]
    best: Mapping[str, Spread]
    trials: int
    cited: str  # where this stands
    recipe: Mapping[str, Any]  # settings of the paper that a run may differ in


def reported(settings: Mapping[str, Any]) -> Reported | None:
    """What the paper reports for this data set, model, ball and method; None where it has no such experiment."""
    for about in _files():
        method = about["methods"].get(settings.get("method.name"))
        if method is not None and all(_same(settings.get(key), value) for key, value in about["setting"].items()):
            best = method.get("best", {})
            return Reported(
                name=method["name"],
                final=_spreads(method["final"], about["trials"]),
                best=_spreads(best, about["trials"]),
                trials=about["trials"],
                cited=f"{about['paper']}, {' and '.join([about['final_in'], *([about['best_in']] if best else [])])}",
                recipe=about["recipe"],
            )
    return None


def departures(settings: Mapping[str, Any], recipe: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """In what a run differs from the paper's recipe: its value and the paper's."""
    return {
        key: (settings[key], value)
        for key, value in recipe.items()
        if key in settings and not _same(settings[key], value)
    }


@cache
def _files() -> tuple[Mapping[str, Any], ...]:
    folder = files("sihg.report").joinpath("paper")
    names = ("mnist", "svhn", "cifar10")
    return tuple(tomllib.loads(folder.joinpath(f"{name}.toml").read_text(encoding="utf-8")) for name in names)


def _same(value: Any, said: Any) -> bool:
    """Whether a setting is what the paper says; 4/255 is a number."""
    if isinstance(said, str) and "/" in said:
        return isinstance(value, int | float) and abs(value - float(Fraction(said))) < 1e-9
    return bool(value == said)


def _spreads(percents: Mapping[str, list[float]], trials: int) -> dict[str, Spread]:
    """Shares, from percents with their deviations; a number without one is quoted from elsewhere."""
    return {
        attack: Spread(_share(mean), _share(rest[0]) if rest else None, trials if rest else None)
        for attack, (mean, *rest) in percents.items()
    }


def _share(percent: float) -> float:
    """0.6234 for 62.34, without the last bits of a division."""
    return round(percent / 100, 6)
