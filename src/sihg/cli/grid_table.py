"""What a grid will cost, and what it came to, as the terminal shows it and as JSON has it."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from sihg.cli.grid_progress import duration
from sihg.cli.terminal_table import drawn
from sihg.experiments.grid import Grid, dotted
from sihg.experiments.grid_summary import Figure, Row, doubts
from sihg.experiments.time_left import shared
from sihg.report.read.published import Reported, departures, reported, unlike

Costs = Mapping[str, Mapping[str, float]]  # of each method: seconds by phase


def listing(grid: Grid, costs: Costs, jobs: int, *, as_json: bool) -> str:
    """What would run, what is done, and how long the rest takes."""
    cells = grid.cells()
    seconds = [cell.remaining(costs.get(cell.method, {})) for cell in cells]
    in_all = shared([one for one in seconds if one], jobs)
    each = list(zip(cells, seconds, strict=True))
    if as_json:
        rows = [{"cell": c.name, "state": c.state(), "seconds": s, "of": costs.get(c.method)} for c, s in each]
        about = {"folder": str(grid.folder), "jobs": jobs, "threads": grid.threads, "seconds": in_all}
        return json.dumps({**about, "cells": rows}, indent=1)
    made = drawn(
        f"the cells of {grid.folder}",
        ["cell", "state", "still takes"],
        [[cell.name, cell.state(), duration(one)] for cell, one in each],
    )
    return (
        f"{made}\nabout {duration(in_all)} in all with {jobs} at a time, from a few measured steps; attacks as if "
        "every sample held, so at most"
    )


def table(grid: Grid, rows: list[Row]) -> str:
    """Mean and deviation over the seeds, a row a method, the paper's below where it has one."""
    some = next(iter(grid.settings.values()))
    tested = "all test samples" if grid.samples is None else f"{grid.samples} test samples"
    about = f"{some.data}, {some.norm} eps {some.eps:g}, {tested}, last weights: mean ± deviation over n seeds"
    lines, beside = [], list[tuple[Mapping[str, Any], Reported]]()
    for row in rows:
        lines.append(_ours(row, grid))
        if paper := _paper(grid, row.method):
            lines.append(_theirs(paper, grid.attacks))
            beside.append((_settings(grid, row.method), paper))
    headings = ["method", "n", *(f"{attack} %" for attack in grid.attacks), "passes", "seconds"]
    made = drawn(f"{about}; passes a sample and seconds are of training", headings, lines)
    cited = dict.fromkeys(paper.cited(best=False) for _, paper in beside)
    said = [f"the paper: {source}; all test samples there, {tested} here" for source in cited]
    return "\n".join([made, *said, *unlike(beside)])


def as_dicts(grid: Grid, rows: list[Row]) -> list[dict[str, Any]]:
    """The rows for JSON, with the paper's numbers."""
    found = []
    for row in rows:
        paper = _paper(grid, row.method)
        numbers = None
        if paper is not None:
            spreads = {a: {"mean": s.mean, "deviation": s.deviation} for a, s in paper.final.items()}
            numbers = {
                "accuracy": spreads,
                "trials": paper.trials,
                "source": paper.cited(best=False),
                "departures": departures(_settings(grid, row.method), paper.recipe),  # ours and theirs
                "remark": paper.remark,
            }
        found.append({**row.as_dict(), "paper": numbers})
    return found


def doubt_lines(grid: Grid) -> Iterator[tuple[str, bool]]:
    """What speaks against the figures, each kind once, of the first cell that has it; and whether it is an error."""
    for found in doubts(grid):
        name, check = found[0]
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        yield f"{check['result']} ({name}{more}): {check['message']}", check["result"] == "error"


def _paper(grid: Grid, method: str) -> Reported | None:
    return reported(_settings(grid, method))


def _settings(grid: Grid, method: str) -> dict[str, Any]:
    return dotted(grid.settings[method].complete().as_dict())


def _ours(row: Row, grid: Grid) -> list[str]:
    n = len(row.seeds)
    return [
        row.method,
        str(n) if n == grid.trials else f"{n} of {grid.trials}",
        *(_spread(row.accuracy[attack].mean, row.accuracy[attack].deviation) for attack in grid.attacks),
        *(_mean(figure) for figure in (row.passes, row.seconds)),
    ]


def _theirs(paper: Reported, attacks: tuple[str, ...]) -> list[str]:
    spreads = [paper.final.get(attack) for attack in attacks]
    return [
        "  the paper",
        "-" if paper.trials is None else str(paper.trials),
        *("-" if one is None else _spread(one.mean, one.deviation) for one in spreads),
        *("-", "-"),
    ]


def _spread(mean: float | None, deviation: float | None) -> str:
    if mean is None:
        return "-"
    return f"{100 * mean:.2f}" + ("" if deviation is None else f" ± {100 * deviation:.2f}")


def _mean(figure: Figure) -> str:
    return "-" if figure.mean is None else f"{figure.mean:.1f}"
