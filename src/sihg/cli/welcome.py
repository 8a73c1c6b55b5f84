"""`sihg` without a command: what is here, and what to try next. Imports neither torch nor matplotlib."""

import shlex
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from sihg import __version__
from sihg.errors import SihgError

RUNS = Path("runs")
MAX_SHOWN = 4  # of the runs
GRIDS = "reproduce-*"  # folders of grids, whose runs are one level deeper


class FoundRun(NamedTuple):
    """A run in ./runs: its folder, what it is, and which command it needs next."""

    path: Path
    about: str
    following: str


def welcome() -> str:
    """Return the greeting: runs, data and presets that are here, and commands to try."""
    found = find_runs(RUNS)
    lines = [f"sihg {__version__}: adversarially robust training, evaluation and minimax optimisation", ""]
    more = f", the newest {MAX_SHOWN}" if len(found) > MAX_SHOWN else ""
    lines.append(f"runs in ./{RUNS}: {len(found)}{more}" if found else f"runs in ./{RUNS}: none yet")
    lines += [f"  {run.path}: {run.about}" for run in found[:MAX_SHOWN]]
    lines += [_data(), f"presets: {', '.join(_presets())}", "", "try:"]
    commands = _commands(found)
    width = max(map(len, commands))
    lines += [f"  {command:{width}}  {about}" for command, about in commands.items()]
    return "\n".join(
        [*lines, "", "`sihg --help` lists all commands; `sihg doctor` says what would make it faster here."]
    )


def find_runs(folder: Path) -> list[FoundRun]:
    """List the runs in a folder and one level deeper, the newest first."""
    configs = [*folder.glob("*/config.toml"), *folder.glob("*/*/config.toml")]
    newest = sorted(configs, key=lambda path: (-_time(path.parent), str(path)))
    return [run for config in newest if (run := _describe(config.parent)) is not None]


def _time(run: Path) -> float:
    """Return when a run last made progress."""
    times = [path.stat().st_mtime for path in (run / "metrics.csv", run / "config.toml") if path.is_file()]
    return max(times, default=0.0)


def _describe(folder: Path) -> FoundRun | None:
    from sihg.store.run_folder import RunFolder
    from sihg.store.schema import read_run_config

    run = RunFolder(folder)
    try:
        config = read_run_config(run.config)
        epochs = _epochs(run.metrics)
    except (SihgError, OSError, ValueError):
        return None  # a command on it says what is wrong
    planned, name = int(config.number("epochs") or 0), shlex.quote(str(folder))
    about = f"{config.method} on {config.text('data')}, {epochs} of {planned} epochs"
    if epochs < planned:
        return FoundRun(folder, about, f"sihg resume {name}")
    if any(run.evaluation.glob("*.json")):
        return FoundRun(folder, f"{about}, evaluated", f"sihg report {name}")
    return FoundRun(folder, about, f"sihg evaluate {name} --attacks natural,pgd-20")


def _epochs(metrics: Path) -> int:
    """Return the epoch in the last line of metrics.csv."""
    last = metrics.read_text(encoding="utf-8").splitlines()[-1:] if metrics.is_file() else []
    first_cell = last[0].partition(",")[0] if last else ""
    return int(first_cell) if first_cell.isdecimal() else 0


def _data() -> str:
    from sihg.robust.data.locations import data_folder

    folder = data_folder(None)
    names = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    there = f"; in {folder}: {', '.join(names)}" if names else "; `sihg data get mnist` downloads more"
    return f"data: digits comes with sihg{there}"


def _presets() -> list[str]:
    return sorted(
        path.name.removesuffix(".toml") for path in (files("sihg") / "presets").iterdir() if ".toml" in path.name
    )


def _commands(found: list[FoundRun]) -> dict[str, str]:
    """Choose three or four commands by what is here."""
    what = {"resume": "continue this run", "evaluate": "attack this run", "report": "make its page"}
    commands = {run.following: what[run.following.split()[1]] for run in found[:1]}
    if not any(RUNS.glob(GRIDS)):
        commands["sihg reproduce digits --methods pgd,msi-hg --trials 2"] = "train, attack, compare; no download"
    if not found:
        commands["sihg train --out runs/first"] = "one run"
    if len(found) > 1:
        commands[f"sihg compare {RUNS}"] = "all runs side by side"
    commands["sihg solve forsaken --method ssi-hg,eg+ --out runs/forsaken"] = "two solvers on a saddle problem"
    return commands
