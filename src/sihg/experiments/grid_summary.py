"""Summarise a grid from the records in its run folders: numbers per method, and warnings about them."""

from collections.abc import Sequence
from dataclasses import dataclass

from sihg.experiments.grid import Cell, Grid
from sihg.store.answers import open_checks
from sihg.store.statistics import Spread, spread


@dataclass(frozen=True)
class MethodSummary:
    """The numbers of the finished trials of a method, one per seed.

    Args:
        method: The name of the method.
        seeds: The seeds of the finished trials.
        accuracy: The accuracies under each attack.
        passes: Forward-backward passes per sample in training.
        seconds: The seconds of training.
    Example:
        >>> summary = MethodSummary("pgd", (0, 1), {"pgd-20": (0.5, 0.75)}, (22.0, 22.0), (5.5, 5.25))
        >>> summary.spread("pgd-20").mean
        0.625
    """

    method: str
    seeds: tuple[int, ...]
    accuracy: dict[str, tuple[float, ...]]
    passes: tuple[float, ...]
    seconds: tuple[float, ...]

    def spread(self, attack: str) -> Spread | None:
        """Return the mean accuracy under an attack, its deviation and range; None without finished trials."""
        return spread(self.accuracy[attack])


@dataclass(frozen=True)
class GridWarning:
    """A check that failed in one or several cells, with the message of the first."""

    level: str  # "warning" or "error"
    cells: tuple[str, ...]
    message: str

    def __str__(self) -> str:
        more = f" and {len(self.cells) - 1} more" if len(self.cells) > 1 else ""
        return f"{self.level} ({self.cells[0]}{more}): {self.message}"


def summarise(grid: Grid) -> list[MethodSummary]:
    """Return the numbers of each method, over its finished trials."""
    cells = grid.cells()
    return [_summary(method, [c for c in cells if c.method == method], grid.attacks) for method in grid.settings]


def _summary(method: str, cells: Sequence[Cell], attacks: Sequence[str]) -> MethodSummary:
    done = [(cell.settings.seed, cell.last_row(), record) for cell in cells if (record := cell.record()) is not None]
    rows = [row for _, row, _ in done if row is not None]
    accuracies = [{row.attack: row.accuracy for row in record.attacks} for _, _, record in done]
    return MethodSummary(
        method,
        tuple(seed for seed, _, _ in done),
        {attack: tuple(accuracy[attack] for accuracy in accuracies) for attack in attacks},
        tuple(row.passes or 0.0 for row in rows),
        tuple(row.seconds or 0.0 for row in rows),
    )


def collect_warnings(grid: Grid) -> list[GridWarning]:
    """Return the failed checks of all cells that no later evaluation answers: one warning per check, errors first."""
    checks = {
        cell.name: open_checks(record, cell.records()) for cell in grid.cells() if (record := cell.record()) is not None
    }
    warnings: list[GridWarning] = []
    for level in ("error", "warning"):
        groups: dict[str, dict[str, str]] = {}
        for name, check in ((name, check) for name, found in checks.items() for check in found):
            if check.result == level:
                groups.setdefault(check.name, {})[name] = check.message
        warnings += [GridWarning(level, tuple(group), next(iter(group.values()))) for group in groups.values()]
    return warnings
