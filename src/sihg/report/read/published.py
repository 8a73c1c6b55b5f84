"""The paper's own numbers, from the data files beside this one, for runs in the paper's setting."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib.resources import files
from typing import Any

from sihg.report.read.runs import as_text
from sihg.store.statistics import Spread


@dataclass(frozen=True)
class Reported:
    """What the paper reports of a method: accuracies by attack, at the end and at the best robust accuracy."""

    name: str
    final: Mapping[str, Spread]
    best: Mapping[str, Spread]
    trials: int | None  # None: the numbers are quoted from elsewhere
    paper: str
    tables: tuple[str, ...]  # of the paper, with the final and the best
    recipe: Mapping[str, Any]  # settings of the paper that a run may differ in
    remark: str  # what else has to be said; maybe nothing

    def cited(self, *, best: bool) -> str:
        """Where the numbers stand: the final ones, and the best where they are shown."""
        return f"{self.paper}, {' and '.join(self.tables if best else self.tables[:1])}"


def reported(settings: Mapping[str, Any]) -> Reported | None:
    """What the paper reports for this data set, model, ball and method; None where it has no such experiment."""
    for about in _files():
        method = about["methods"].get(settings.get("method.name"))
        if method is not None and all(_same(settings.get(key), value) for key, value in about["setting"].items()):
            final, best = (_spreads(method.get(key, {}), about["trials"]) for key in ("final", "best"))
            return Reported(
                name=method["name"],
                final=final,
                best=best,
                trials=about["trials"] if any(one.n for one in final.values()) else None,
                paper=about["paper"],
                tables=(about["final_in"], *([about["best_in"]] if best else [])),
                recipe={**({} if method.get("alone") else about["recipe"]), **method.get("recipe", {})},
                remark=method.get("remark", ""),
            )
    return None


def departures(settings: Mapping[str, Any], recipe: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """In what a run differs from the paper's recipe: its value and the paper's.

    A config without a setting is older than the setting, or has no use for it: as in the paper.
    """
    return {
        key: (settings[key], value)
        for key, value in recipe.items()
        if key in settings and not _same(settings[key], value)
    }


def unlike(beside: Iterable[tuple[Mapping[str, Any], Reported]]) -> Iterator[str]:
    """What sets runs with these settings apart from the paper's numbers beside them, in sentences.

    Where some of them differ in a setting, the values of the others are listed too.
    """
    every: dict[str, dict[str, None]] = {}
    apart: set[str] = set()
    remarks: dict[str, None] = {}
    for settings, paper in beside:
        found = departures(settings, paper.recipe)
        for key, theirs in paper.recipe.items():
            name = f"{key} ({as_text(theirs)})"
            every.setdefault(name, {})[as_text(settings.get(key, theirs))] = None
            apart |= {name} if key in found else set()
        remarks |= {paper.remark: None} if paper.remark else {}
    different = {name: values for name, values in every.items() if name in apart}
    if different:
        said = "; ".join(f"{key}: {' / '.join(values)}" for key, values in different.items())
        yield f"Settings here that are not the paper's (its own in brackets, off where it says nothing): {said}."
    yield from (f"{remark}." for remark in remarks)


@cache
def _files() -> tuple[Mapping[str, Any], ...]:
    folder = files("sihg.report.read").joinpath("paper")
    names = ("mnist", "svhn", "cifar10")
    return tuple(tomllib.loads(folder.joinpath(f"{name}.toml").read_text(encoding="utf-8")) for name in names)


def _same(value: Any, said: Any) -> bool:
    """Whether a setting is what the paper says; 4/255 is a number, "some" is any but zero."""
    if said == "some":
        return bool(value)
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
