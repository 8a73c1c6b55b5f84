"""Solve folders as `sihg solve --out` leaves them, written by hand."""

from pathlib import Path
from typing import Any

import numpy as np

from sihg.store.schema import write_json
from sihg.store.tables import table_text

Histories = dict[str, list[float | None]]


ITERATIONS = 40


def entry(method: str, **changes: Any) -> dict[str, Any]:
    """A row of the summary."""
    return {
        "method": method,
        "iterations": ITERATIONS,
        "w_gradients": 1234,
        "delta_gradients": 5678,
        "seconds": 1.25,
        "saddle_norm_squared": 1.5e-9,
        "distance": 3.25e-5,
        "sigma": 0.375,
        "tau": 0.0625,
        "theta": 1.0,
        "source": "Theorem 1 (general, n = 4, rho = 0.01)",
        "bound": None,
        "stopped": "40 iterations done",
        "warnings": [],
    } | changes


def columns(values: list[float | None], every: int = 1) -> dict[str, list[Any]]:
    """The columns of a history."""
    k = [every * i for i in range(len(values))]
    return {
        "iteration": k,
        "w_gradients": [2 * i for i in k],
        "delta_gradients": k,
        "seconds": [0.01 * i for i in k],
        "saddle_norm_squared": values,
    }


def write_solve(
    folder: Path, histories: Histories | None = None, *, plane: bool = False, changes: Any = (), **summary: Any
) -> Path:
    """Write a folder as `sihg solve --out` leaves it."""
    decay: list[float | None] = [2.0 / (k + 1) ** 2 for k in range(41)]
    histories = histories or {"ssi-hg": decay, "eg+": [v and v / 3 for v in decay]}
    for name, values in histories.items():
        (folder / name).mkdir(parents=True)
        write_json(folder / name / "history.json", {"about": {}, "columns": columns(values)})
        if plane:
            write_path(folder / name, spiral(dict(changes).get(name, {}).get("iterations", ITERATIONS)))
    dimension = 1 if plane else 8
    content = {
        "problem": "forsaken",
        "about": "A test.",
        "options": {"weight": 0.1, "start": "none"},
        "n": 4,
        "dimension_w": dimension,
        "dimension_delta": dimension,
        "seed": 7,
        "iterations": ITERATIONS,
        "command": "sihg solve forsaken --out out",
        "environment": {"python": "3.11.2"},
        "methods": [entry(name, **dict(changes).get(name, {})) for name in histories],
    } | summary
    write_json(folder / "summary.json", content)
    if plane:
        grid = np.linspace(-1.5, 1.5, 11)
        w, delta = np.meshgrid(grid, grid)
        field = {"w": grid.tolist(), "delta": grid.tolist(), "dw": (-delta).tolist(), "ddelta": w.tolist()}
        field |= {"solution": [0, 0], "box": [-1.5, 1.5, -1.5, 1.5]}
        write_json(folder / "field.json", field)
    return folder


def spiral(iterations: int) -> list[tuple[str, str]]:
    """The points (w, delta) of the start and of so many iterations."""
    return [(f"{np.cos(k) / (k + 1)}", f"{np.sin(k) / (k + 1)}") for k in range(iterations + 1)]


def write_path(folder: Path, points: list[tuple[str, str]]) -> None:
    """Write the trajectory of a method."""
    rows = [(f"{k}", *point) for k, point in enumerate(points)]
    (folder / "trajectory.csv").write_text(table_text(("iteration", "w", "delta"), rows))


def put(path: Path, content: dict[str, Any], key: str, *value: Any) -> None:
    """Write a JSON object with one key changed, or left out."""
    rest = {k: v for k, v in content.items() if k != key}
    write_json(path, rest | ({key: value[0]} if value else {}))
