"""Compare the results of bfloat16 with those of float32, in training and in evaluations.

    python -m benchmarks.precision_quality train --preset mnist-fast --seeds 5 --out runs/quality
    python -m benchmarks.precision_quality verdicts RUN --samples 2000

`train`: paired seeds, PGD-20 accuracy judged in float32. Each seed is trained twice, with all passes in float32 and
with all passes in bfloat16. Runs are made one after the other, with one thread, in OUT/PRESET-sSEED-FORMAT. The same
command resumes what was interrupted and prints what is finished; `--show` only prints.

`verdicts`: PGD-20 on the test samples of a run, in float32 with two seeds and in bfloat16 with the first one. Breaks
that bfloat16 misses or gains should not be more than those between the two seeds.
"""

import argparse
import os
import sys
from itertools import product
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

FORMATS = ("float32", "bfloat16")
ATTACKS = ("natural", "pgd-20")
MAX_DIFFERENCE = 1.0  # points: the interval should lie within
MAX_ACCURACY_DIFFERENCE = 0.15  # points of robust accuracy between evaluations in both formats


def main() -> int:
    """Compare what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.precision_quality", description=__doc__.split("\n")[0])
    parts = parser.add_subparsers(required=True)
    train = parts.add_parser("train", help="train paired seeds and compare their PGD-20 accuracies")
    train.add_argument("--preset", default="mnist-fast", help="settings of the runs (default: mnist-fast)")
    train.add_argument("--seeds", type=int, default=5, metavar="N", help="paired seeds, from 0 (default: 5)")
    train.add_argument("--epochs", type=int, metavar="N", help="epochs (default: as in the preset)")
    train.add_argument("--samples", type=int, metavar="N", help="training samples (default: all)")
    train.add_argument("--test-samples", type=int, metavar="N", help="test samples that are attacked (default: all)")
    train.add_argument("--data-dir", type=Path, metavar="DIR", help="the folder of the data files")
    train.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder of the runs")
    train.add_argument("--show", action="store_true", help="only print what is finished")
    train.set_defaults(compare=compare_trainings)
    verdicts = parts.add_parser("verdicts", help="compare PGD-20 verdicts: two seeds in float32, one in bfloat16")
    verdicts.add_argument("run", type=Path, metavar="RUN", help="the run folder of a robust model")
    verdicts.add_argument("--samples", type=int, default=2000, metavar="N", help="test samples (default: 2000)")
    verdicts.add_argument("--attack", default="pgd-20", metavar="A", help="the attack (default: pgd-20)")
    verdicts.add_argument("--data-dir", type=Path, metavar="DIR", help="the folder of the data files")
    verdicts.set_defaults(compare=compare_verdicts)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported, later
    args.compare(args)
    return 0


# ---- training


def compare_trainings(args: argparse.Namespace) -> None:
    """Train what is not trained yet, and print the finished pairs after each run."""
    for seed, name in product(range(args.seeds), FORMATS):
        if not args.show and robust_accuracy(folder_of(args, seed, name)) is None:
            train_and_attack(args, seed, name)
            print(summary(args), flush=True)
    if args.show:
        print(summary(args))


def folder_of(args: argparse.Namespace, seed: int, name: str) -> Path:
    """Return the run folder of a seed and a format."""
    return Path(args.out) / f"{args.preset}-s{seed}-{name}"


def train_and_attack(args: argparse.Namespace, seed: int, name: str) -> None:
    """Train a run, or resume it, and attack its last checkpoint in float32."""
    from sihg.cli.main import main as sihg

    folder, data = folder_of(args, seed, name), ["--data-dir", str(args.data_dir)] if args.data_dir else []
    if (folder / "config.toml").is_file():
        command = ["resume", str(folder), "--threads", "1", *data]
    else:
        command = ["train", "--preset", args.preset, "--seed", str(seed), "--threads", "1", "--out", str(folder), *data]
        command += ["--precision", name, "--train-precision", name]
        command += [f"--epochs={args.epochs}"] if args.epochs else []
        command += [f"--samples={args.samples}"] if args.samples else []
    evaluate = ["evaluate", str(folder), "--attacks", ",".join(ATTACKS), "--threads", "1", *data]
    evaluate += ["--samples", str(args.test_samples)] if args.test_samples else []
    if sihg(command) or (sihg(evaluate) and robust_accuracy(folder) is None):  # a failed check leaves a record
        sys.exit(f"stopped at {folder}: the same command continues")


def robust_accuracy(folder: Path) -> float | None:
    """Return the PGD-20 accuracy of a finished run in percent, None before that."""
    from sihg.store.schema import EvaluationRecord, read_evaluation

    for path in sorted((folder / "evaluation").glob("last_test_*.json")):
        record = read_evaluation(path)
        if isinstance(record, EvaluationRecord):
            return next(100 * row.accuracy for row in record.attacks if row.attack == "pgd-20")
    return None


def paired_interval(differences: list[float]) -> tuple[float, float]:
    """Return the mean of paired differences, and half of its 95 % interval by Student's t."""
    from scipy.special import stdtrit

    n = len(differences)
    return fmean(differences), float(stdtrit(n - 1, 0.975)) * stdev(differences) / sqrt(n)


def summary(args: argparse.Namespace) -> str:
    """Return a table of the finished pairs, and the mean difference with its 95 % t-interval."""
    from benchmarks.timing import Row, format_table

    pairs = {seed: [robust_accuracy(folder_of(args, seed, name)) for name in FORMATS] for seed in range(args.seeds)}
    done = {seed: (a, b) for seed, (a, b) in pairs.items() if a is not None and b is not None}
    rows: list[Row] = [
        {"seed": f"{s}", "float32 %": a, "bfloat16 %": b, "difference": b - a} for s, (a, b) in done.items()
    ]
    lines = [f"\n{args.preset}: PGD-20, {len(done)} of {args.seeds} pairs finished"]
    lines += [format_table(rows)] if rows else []
    if len(done) > 1:
        mean, half = paired_interval([b - a for a, b in done.values()])
        within = abs(mean) + half <= MAX_DIFFERENCE
        verdict = "within" if within else "NOT within"
        lines.append(f"bfloat16 - float32: {mean:+.2f} +- {half:.2f} points (95 %), {verdict} {MAX_DIFFERENCE:g}")
    return "\n".join(lines)


# ---- evaluation


def compare_verdicts(args: argparse.Namespace) -> None:
    """Print what bfloat16 breaks in comparison with float32, beside what another seed breaks."""
    from benchmarks.timing import Row, format_table
    from sihg.robust.attacks.registry import build_plan
    from sihg.robust.attacks.runner import run_attacks
    from sihg.robust.data.samples import stratified_subset
    from sihg.robust.data.sources import load as load_data
    from sihg.robust.threat import Ball
    from sihg.robust.training.weights import load, read_run_weights

    settings = read_run_weights(args.run).settings
    samples = stratified_subset(load_data(settings.data, args.data_dir)[1], args.samples)
    plans = {args.attack: build_plan(args.attack, Ball(settings.eps, settings.norm, settings.bounds))}
    model, broken = load(args.run), {}
    for name, seed, precision in (
        ("float32, A", 0, "float32"),
        ("float32, B", 1, "float32"),
        ("bfloat16, A", 0, "bfloat16"),
    ):
        (outcome,) = run_attacks(model, samples, plans, seed=seed, precision=precision)
        broken[name] = outcome.broken
    first = broken["float32, A"]
    counts = {name: (int((first & ~one).sum()), int((one & ~first).sum())) for name, one in broken.items()}
    accuracies = {name: 100 * float((~one).float().mean()) for name, one in broken.items()}
    rows: list[Row] = [
        {
            "format, seed": name,
            "robust accuracy %": accuracies[name],
            "missed of float32, A": counts[name][0],
            "gained": counts[name][1],
        }
        for name in broken
    ]
    difference = accuracies["bfloat16, A"] - accuracies["float32, A"]
    fewer = sum(counts["bfloat16, A"]) <= sum(counts["float32, B"])
    verdict = "holds" if fewer and abs(difference) <= MAX_ACCURACY_DIFFERENCE else "DOES NOT HOLD"
    print(f"{args.run}: {args.attack}, {len(samples)} samples, eps {settings.eps:g}\n{format_table(rows)}")
    print(
        f"bfloat16 changes no more verdicts than another seed, and robust accuracy by at most "
        f"{MAX_ACCURACY_DIFFERENCE} points (here {difference:+.2f}): {verdict}"
    )


if __name__ == "__main__":
    sys.exit(main())
