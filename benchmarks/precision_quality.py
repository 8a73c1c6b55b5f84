"""Compare training in bfloat16 with training in float32: paired seeds, PGD-20 accuracy judged in float32.

    python -m benchmarks.precision_quality train --preset mnist-fast --seeds 5 --out runs/quality

Each seed is trained twice, with all passes in float32 and with all passes in bfloat16. Runs are made one after the
other, with one thread, in OUT/PRESET-sSEED-FORMAT. The same command resumes what was interrupted and prints what is
finished; `--show` only prints.
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


if __name__ == "__main__":
    sys.exit(main())
