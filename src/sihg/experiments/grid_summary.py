"""The table of a grid: mean and deviation over the seeds, from the records in its run folders."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from sihg.experiments.grid import Cell, Grid


@dataclass(frozen=True)
class Figure:
    """A number of each trial."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float | None:
        """Their mean."""
        return mean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """Their standard deviation, as of a sample (n - 1); None of fewer than two."""
        return stdev(self.values) if len(self.values) > 1 else None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"mean": self.mean, "deviation": self.deviation, "values": list(self.values)}


@dataclass(frozen=True)
class Row:
    """What the finished trials of a method came to."""

    method: str
    seeds: tuple[int, ...]
    accuracy: dict[str, Figure]  # by attack
    passes: Figure  # forward-backward passes of each sample in training
    seconds: Figure  # of training

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        accuracy = {attack: figure.as_dict() for attack, figure in self.accuracy.items()}
        about = {"method": self.method, "seeds": list(self.seeds), "accuracy": accuracy}
        return {**about, "passes": self.passes.as_dict(), "seconds": self.seconds.as_dict()}


def rows(grid: Grid) -> list[Row]:
    """A row for each method, of those of its trials that are finished."""
    cells = grid.cells()
    return [_row(method, [cell for cell in cells if cell.method == method], grid.attacks) for method in grid.settings]


def _row(method: str, cells: Sequence[Cell], attacks: Sequence[str]) -> Row:
    done = [(cell, cell.last(), record) for cell in cells if (record := cell.record()) is not None]
    shares = [{row["attack"]: float(row["accuracy"]) for row in record["attacks"]} for _, _, record in done]
    return Row(
        method,
        tuple(cell.settings.seed for cell, _, _ in done),
        {attack: Figure(tuple(one[attack] for one in shares)) for attack in attacks},
        *(Figure(tuple(float(last[key]) for _, last, _ in done)) for key in ("passes", "seconds")),
    )


def doubts(grid: Grid) -> list[list[tuple[str, dict[str, Any]]]]:
    """What speaks against the figures: the cells and checks together whose words differ in numbers alone."""
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for cell in grid.cells():
        for check in (cell.record() or {}).get("checks", []):
            if check["result"] in ("warning", "error"):
                alike = f"{check['result']} {check['name']} {re.sub('[0-9.]+', '', check['message'])}"
                found.setdefault(alike, []).append((cell.name, check))
    return list(found.values())
