"""What does the hybrid step add over the perturbation memory alone? MSI-HG, its controls and PGD AT on MNIST.

    python -m benchmarks.memory_controls --out runs/memory-controls               # runs (continues), and the tables
    python -m benchmarks.memory_controls --records results/memory-controls.zip    # the tables of finished runs

All rows take the same number of gradient passes and choose from the same learning rates. Seed 0 with each rate is
judged by PGD-10 on 1,000 held-out training images; the best rate gets the other seeds. Test images choose nothing.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.grid_cells import run_cells
from benchmarks.timing import Row, format_table
from sihg.experiments.grid_run import build_grid
from sihg.report.read.runs import TrainingRun, read_runs
from sihg.store.archive import is_archive, unpacked
from sihg.store.statistics import Spread, spread, welch

ATTACKS = ("natural", "pgd-20", "pgd-50-2")
EPOCHS, RAMP_EPOCHS = 8, 3
SHARED: dict[str, Any] = {
    "samples": 6000,  # 1,000 of them are held out
    "validation": 1000,
    "evaluate_every": EPOCHS,
    "epochs": EPOCHS,
    "batch_size": 50,
    "ema": 0.99,
    "steps": 5,
    "nesterov": False,
}
MEMORY = {"tau": 0.2, "fresh": 0.0}
ENTRIES: dict[str, tuple[str, dict[str, Any]]] = {  # method, what differs
    "msi-hg": ("msi-hg", {**MEMORY, "theta": 1.0}),
    "msi-hg-theta-0": ("msi-hg", {**MEMORY, "theta": 0.0}),
    "atta": ("atta", {"reset": 0}),
    "pgd": ("pgd", {}),
}
RAMPS = {"no-ramp": 0, "ramp": RAMP_EPOCHS}
RATES = {"ramp": (0.04, 0.08), "no-ramp": (0.01, 0.02, 0.04)}
STUCK = 0.15  # a natural accuracy below this is a constant prediction


def folder_of(out: Path, regime: str, entry: str, rate: float) -> Path:
    """Return the folder of the runs with one setting."""
    return out / f"{regime}_{entry}_lr-{rate:g}"


def train(out: Path, regime: str, entry: str, rate: float, trials: int) -> None:
    """Train and attack what is not finished of the first seeds with one setting."""
    method, changes = ENTRIES[entry]
    folder = folder_of(out, regime, entry, rate)
    grid = build_grid(
        "mnist",
        preset="mnist-fast",
        methods=method,
        trials=trials,
        attacks=ATTACKS,
        samples=1000,
        out=folder,
        settings={**SHARED, **changes, "ramp": RAMPS[regime], "lr": rate},
    )
    run_cells(grid)


def read(folders: Sequence[Path]) -> dict[tuple[str, str, float], list[TrainingRun]]:
    """Return the runs by regime, entry and learning rate, in the order of the seeds."""
    found: dict[tuple[str, str, float], list[TrainingRun]] = {}
    for run in (run for run in read_runs(folders) if run.evaluations):
        regime, entry, rate = run.folder.path.parent.name.split("_")
        found.setdefault((regime, entry, float(rate.removeprefix("lr-"))), []).append(run)
    return {key: sorted(runs, key=lambda run: run.folder.path.name) for key, runs in found.items()}


def held_out(run: TrainingRun) -> float:
    """Return the accuracy of the last weights on the held-out images under PGD-10."""
    return (run.last.robust if run.last else None) or 0.0


def best_rate(runs: dict[tuple[str, str, float], list[TrainingRun]], regime: str, entry: str) -> float:
    """Return the learning rate with which seed 0 is best on the held-out images."""
    rates = [rate for rate in RATES[regime] if (regime, entry, rate) in runs]
    return max(rates, key=lambda rate: held_out(runs[regime, entry, rate][0]))


def accuracies(run: TrainingRun) -> dict[str, float]:
    """Return the accuracy on test images under each attack, in percent."""
    return {test.attack: 100 * test.accuracy for test in run.evaluations}


def tables(runs: dict[tuple[str, str, float], list[TrainingRun]]) -> str:
    """Return the tables: all rates with seed 0, then the chosen rate over the seeds, with differences to MSI-HG."""
    sections = []
    for regime in RAMPS:
        entries = [entry for entry in ENTRIES if any(key[:2] == (regime, entry) for key in runs)]
        tuned: list[Row] = []
        final: list[Row] = []
        spreads: dict[str, dict[str, Spread]] = {}
        for entry in entries:
            at = {rate: runs[regime, entry, rate][0] for rate in RATES[regime] if (regime, entry, rate) in runs}
            scores = {rate: f"{100 * held_out(run):.1f}" for rate, run in at.items()}
            tuned.append({regime: entry, **{f"lr {rate:g}": scores.get(rate, "-") for rate in RATES[regime]}})
            rate = best_rate(runs, regime, entry)
            trials = [accuracies(run) for run in runs[regime, entry, rate]]
            spreads[entry] = {a: s for a in ATTACKS if (s := spread([trial[a] for trial in trials])) is not None}
            stuck = sum(trial["natural"] < 100 * STUCK for trial in trials)
            cells = {name: " / ".join(f"{trial[name]:.1f}" for trial in trials) for name in ATTACKS}
            passes = runs[regime, entry, rate][0].rows[-1].passes or 0.0
            final.append({regime: entry, "lr": f"{rate:g}", **cells, "stuck": str(stuck), "passes": f"{passes:.0f}"})
        differences: list[Row] = [
            {f"msi-hg minus, {regime}": entry, **{name: _difference(spreads, entry, name) for name in ATTACKS}}
            for entry in entries
            if entry != "msi-hg" and "msi-hg" in entries
        ]
        sections += [f"Held-out PGD-10 of seed 0:\n{format_table(tuned)}", format_table(final)]
        sections += [format_table(differences)] if differences else []
    return "\n\n".join(sections)


def _difference(spreads: dict[str, dict[str, Spread]], entry: str, attack: str) -> str:
    """Return MSI-HG minus an entry, with its 95 % interval by Welch's t; a dash without deviations."""
    one, other = spreads["msi-hg"][attack], spreads[entry][attack]
    if one.deviation is None or other.deviation is None:
        return "-"
    return "{:.2f} ({:.2f} to {:.2f})".format(*welch(one, other))


def main() -> int:
    """Run what is not finished, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory_controls", description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=3, metavar="N", help="seeds, from 0 (default: 3)")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", type=Path, metavar="DIR", help="the folder of the runs")
    where.add_argument("--records", type=Path, metavar="FILE", help="an archive or a folder of finished runs")
    args = parser.parse_args()
    if args.out is not None:
        for setting in _settings():
            train(args.out, *setting, trials=1)
        chosen = read([folder_of(args.out, *setting) for setting in _settings()])
        for seeds in range(2, args.trials + 1):
            for regime in RAMPS:
                for entry in ENTRIES:
                    train(args.out, regime, entry, best_rate(chosen, regime, entry), seeds)
    path = args.records or args.out
    with unpacked([path] if is_archive(path) else sorted(path.iterdir())) as found:
        print(tables(read(found.folders)))
    return 0


def _settings() -> list[tuple[str, str, float]]:
    return [(regime, entry, rate) for regime in RAMPS for rate in RATES[regime] for entry in ENTRIES]


if __name__ == "__main__":
    sys.exit(main())
