"""What a solve records, saves and plots."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

from sihg.minimax import History, solve, zoo
from tests.minimax.problems import nonlinear
from tests.refused import refused

STEPS: dict[str, Any] = {"sigma": 0.08, "tau": 0.05}


def test_history_has_the_columns_and_the_ends() -> None:
    result = solve(nonlinear(3).problem(), "ssi-hg", **STEPS, iterations=25, record_every=10)
    assert result.history["iteration"] == [0, 10, 20, 25]
    wanted = [
        "iteration",
        "w_gradients",
        "delta_gradients",
        "seconds",
        "saddle_norm_squared",
        "implicit_steps",
        "implicit_error",
    ]
    assert list(result.history.columns) == wanted
    assert result.stopped == "25 iterations done"
    assert result.history["seconds"] == sorted(result.history["seconds"])


def test_history_saves_as_json_and_csv(tmp_path: Path) -> None:
    history = solve(nonlinear(2).problem(), "dsi-hg", **STEPS, iterations=20).history
    history.append({**dict.fromkeys(history.columns, 1.0), "saddle_norm_squared": float("inf")})
    history.save(tmp_path / "h.json")
    history.save(tmp_path / "h.csv")
    content = json.loads((tmp_path / "h.json").read_text())
    assert content["about"]["method"] == "dsi-hg"
    assert content["columns"]["saddle_norm_squared"][-1] is None
    assert History.load(tmp_path / "h.json").columns == history.columns
    with (tmp_path / "h.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["saddle_norm_squared"]) for row in rows] == history["saddle_norm_squared"]
    with refused("history-ending", name="h.txt"):
        history.save(tmp_path / "h.txt")
    with refused("history-column", column="loss"):
        history["loss"]
    (tmp_path / "h.json").write_text("{}")
    with refused("history-unreadable", path=tmp_path / "h.json"):
        History.load(tmp_path / "h.json")


def test_running_mean_by_hand() -> None:
    history = History()
    for k, norm in ((0, 8.0), (1, 4.0), (2, 1.0), (5, 7.0)):
        history.append({"iteration": k, "saddle_norm_squared": norm})
    # Iterations 3 and 4 are not recorded: 3 and 5 on the line from 1 to 7.
    assert history.running_mean() == [4.0, 2.5, (4 + 1 + 3 + 5 + 7) / 5]


def test_plot_draws_the_norm_and_its_mean(tmp_path: Path) -> None:
    history = solve(zoo.get("ridge").problem, "gda", iterations=30, record_every=1).history
    (axes,) = history.plot(tmp_path / "norms.png").axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    norms, means = (np.asarray(line.get_ydata()).tolist() for line in axes.get_lines())
    assert norms == history["saddle_norm_squared"][1:]
    assert means == history.running_mean()
    assert (tmp_path / "norms.png").stat().st_size > 0
    with refused("history-too-short", rows=0):
        History().plot()


def test_results_print_in_one_line() -> None:
    result = solve(zoo.get("matrix-game").problem, "gda", iterations=7, record_every=None)
    assert repr(result) == "Result(gda, 7 iterations done)"
    assert repr(result.history) == "History(0 rows)"
    assert repr(result.state) == "SolveState(gda, iteration 7, seed 0)"
