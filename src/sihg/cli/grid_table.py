"""Format the cost and the results of a grid, for the terminal and as JSON."""

import json
from collections.abc import Mapping, Sequence

from sihg.cli.terminal import format_duration, format_table
from sihg.experiments.grid import Grid
from sihg.experiments.grid_run import GridResult
from sihg.experiments.grid_summary import MethodSummary
from sihg.experiments.time_left import schedule_length
from sihg.parse import Value
from sihg.report.read.published import Published, departures, describe_departures, find_published
from sihg.report.tables.training_tables import attack_heading
from sihg.store.schema import Json, flatten_settings
from sihg.store.statistics import Spread, describe_spreads, spread, spread_text

Costs = Mapping[str, Mapping[str, float]]  # seconds per phase, by method


def listing(grid: Grid, costs: Costs, jobs: int, *, as_json: bool) -> str:
    """List the cells, the progress of each, and how long the rest takes."""
    cells = grid.cells()
    seconds = [cell.remaining(costs.get(cell.method, {})) for cell in cells]
    total = schedule_length([remaining for remaining in seconds if remaining], jobs)
    pairs = list(zip(cells, seconds, strict=True))
    if as_json:
        rows = [{"cell": c.name, "state": c.state(), "seconds": s, "of": costs.get(c.method)} for c, s in pairs]
        header = {"folder": str(grid.folder), "jobs": jobs, "threads": grid.threads, "seconds": total}
        return json.dumps({**header, "cells": rows}, indent=1)
    cell_table = format_table(
        f"the cells of {grid.folder}",
        ["cell", "state", "still takes"],
        [[cell.name, cell.state(), format_duration(remaining)] for cell, remaining in pairs],
    )
    return (
        f"{cell_table}\nabout {format_duration(total)} in all with {jobs} at a time, from a few measured steps; this "
        "is an upper limit: broken samples are not attacked again"
    )


def results_table(grid: Grid, methods: Sequence[MethodSummary]) -> str:
    """Draw what the seeds reached, a row per method, with the paper's row below where it has one."""
    first = next(iter(grid.settings.values()))
    tested = "all test samples" if grid.samples is None else f"{grid.samples} test samples"
    lines, compared = [], list[tuple[Mapping[str, Value], Published]]()
    for summary in methods:
        lines.append(_our_cells(summary, grid))
        settings = _settings(grid, summary.method)
        if paper := find_published(settings):
            lines.append(_paper_cells(paper, grid.attacks))
            compared.append((settings, paper))
    shown = describe_spreads([*(len(summary.seeds) for summary in methods), *(paper.trials for _, paper in compared)])
    title = f"{first.data}, {first.norm} eps {first.eps:g}, {tested}, last weights: {shown} over n seeds"
    headings = ["method", "n", *(f"{attack_heading(attack)} %" for attack in grid.attacks), "passes", "seconds"]
    drawing = format_table(f"{title}; passes per sample and seconds are of training", headings, lines)
    sources = dict.fromkeys(paper.citation(best=False) for _, paper in compared)
    notes = [f"the paper: {source}; all test samples there, {tested} here" for source in sources]
    return "\n".join([drawing, *notes, *describe_departures(compared)])


def results_json(result: GridResult) -> str:
    """Return the result as JSON, with the paper's numbers."""
    grid = result.grid
    header: dict[str, Json] = {
        "data": next(iter(grid.settings.values())).data,
        "folder": str(grid.folder),
        "attacks": list(grid.attacks),
        "trials": grid.trials,
    }
    rows: list[Json] = [
        {
            "method": summary.method,
            "seeds": list(summary.seeds),
            "accuracy": {attack: _numbers(values) for attack, values in summary.accuracy.items()},
            "passes": _numbers(summary.passes),
            "seconds": _numbers(summary.seconds),
            "paper": _paper_json(_settings(grid, summary.method)),
        }
        for summary in result.methods
    ]
    footer: dict[str, Json] = {
        "failed": dict(result.failed),
        "finished": result.finished,
        "report": None if result.page is None else str(result.page),
    }
    return json.dumps({**header, "methods": rows, **footer}, indent=1, allow_nan=False)


def _paper_json(settings: Mapping[str, Value]) -> Json:
    paper = find_published(settings)
    if paper is None:
        return None
    return {
        "accuracy": {a: {"mean": s.mean, "deviation": s.deviation} for a, s in paper.final.items()},
        "trials": paper.trials,
        "source": paper.citation(best=False),
        "departures": departures(settings, paper.recipe),  # ours and theirs
        "remark": paper.remark,
    }


def _settings(grid: Grid, method: str) -> Mapping[str, Value]:
    return flatten_settings(grid.settings[method].complete().as_dict())


def _numbers(values: Sequence[float]) -> Json:
    found = spread(values)
    parts = {name: getattr(found, name, None) for name in ("mean", "deviation", "low", "high")}
    return {**parts, "values": list(values)}


def _our_cells(summary: MethodSummary, grid: Grid) -> list[str]:
    n = len(summary.seeds)
    return [
        summary.method,
        str(n) if n == grid.trials else f"{n} of {grid.trials}",
        *(_percent(summary.spread(attack)) for attack in grid.attacks),
        *(_mean(spread(values)) for values in (summary.passes, summary.seconds)),
    ]


def _paper_cells(paper: Published, attacks: tuple[str, ...]) -> list[str]:
    trials = "-" if paper.trials is None else str(paper.trials)
    return ["  the paper", trials, *(_percent(paper.final.get(attack)) for attack in attacks), "-", "-"]


def _percent(found: Spread | None) -> str:
    if found is None:
        return "-"
    alone = found._replace(of=None)  # n has its own column
    return spread_text(alone, lambda share: f"{100 * share:.2f}").replace("\N{NO-BREAK SPACE}", " ")


def _mean(found: Spread | None) -> str:
    return "-" if found is None else f"{found.mean:.1f}"
