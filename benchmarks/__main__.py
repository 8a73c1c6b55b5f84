"""Run benchmarks, print their tables and keep them as JSON: `python -m benchmarks [name ...] [--out DIR]`."""

import argparse
import json
import os
import re
import sys
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.timing import WHOLE, Part

BENCHMARKS = {
    "iteration_cost": "cost of one SSI-HG iteration in full gradients, by number of blocks",
    "spdhg_speed": "SSI-HG and SPDHG compared with ODL's SPDHG: equal iterates, and time",
    "large_saddles": "ridge and robust logistic regression, n = 1,000, 1e6 samples, with ODL's SPDHG and SAGA",
    "standard_problems": "the four standard games from 50 random starts: which method converges; minutes",
    "zoo_profile": "performance profile of all methods over the zoo at equal gradient counts; minutes",
    "solve_bit_flips": "flipped bits in all files that a solve and a profile leave: how many sihg check names",
    "attack_speed": "PGD-20 compared with torchattacks, rai-toolbox, foolbox and ART",
    "pgd_50_10": "PGD-50-10 on MNIST compared with the same four: time, passes, accuracy",
    "autoattack_speed": "AutoAttack's standard set on MNIST compared with pyautoattack, per attack",
    "evaluation_speed": "PGD-20, PGD-50-10 and standard on two robust models, compared with the fastest peers",
    "evaluation_memory": "peak memory of an evaluation: 10,000 samples compared with 1,000",
    "training_speed": "an epoch of PGD AT compared with its bare passes and with ART's trainer",
    "perturbation_memory": "share of an MSI-HG training step spent on the perturbation memory",
    "memory_files": "an MSI-HG training step with its memory in files of which nothing is in RAM",
    "lanes": "a training step in 4 lanes and on 2 processes; bytes sent per step",
    "malloc_retention": "a training step when malloc keeps freed memory, and when it does not",
    "threads": "training with one thread compared with two, beside busy processes",
    "precision": "training steps and PGD-20 in float32 compared with bfloat16, and what auto chooses",
    "channels_last": "a pass of our models: channels-last compared with channels-first layout",
}
TAKE_HOURS = ("pgd_50_10", "autoattack_speed", "evaluation_speed")
IN_PARTS = ("evaluation_speed",)  # benchmarks that take a Part
NEED_GIGABYTES = ("large_saddles",)  # of memory
NOT_BY_DEFAULT = (*TAKE_HOURS, *NEED_GIGABYTES)


def main() -> None:
    described = "\n".join(f"  {name:21}{about}" for name, about in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        usage="%(prog)s [name ...] [--out DIR] [--repetitions R] [--threads T]",
        description="Run benchmarks. Each prints a claim, whether it holds in this run, and tables. Exit code 1 if a "
        "claim does not hold.",
        epilog=f"benchmarks:\n{described}\n\nThose that compare with other libraries need `make peers`. "
        f"{', '.join(TAKE_HOURS)} need MNIST (`sihg data get mnist`), the last also SVHN. "
        f"{', '.join(NEED_GIGABYTES)} needs 8 GB of memory.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"benchmarks to run (default: all except {', '.join(NOT_BY_DEFAULT)})"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for NAME.json, figures and trained models")
    parser.add_argument("--repetitions", type=int, default=21, metavar="R", help="timed repetitions (default: 21)")
    parser.add_argument("--threads", type=int, default=1, metavar="T", help="threads of every library (default: 1)")
    group = parser.add_argument_group(f"a part of {', '.join(IN_PARTS)}")
    about = "only rows (a model and an attack) whose name has TEXT, such as preact-resnet8 or PGD-20; repeat to narrow"
    group.add_argument("--only", action="append", default=[], metavar="TEXT", help=about)
    group.add_argument("--samples", type=int, metavar="N", help="attack so many samples")
    group.add_argument("--batch-size", type=int, metavar="B", help="of the peers (default: their best one is found)")
    group.add_argument("--peer", action="append", default=[], metavar="NAME", help="only this peer for PGD; repeatable")
    args = parser.parse_args()
    for name in args.names:
        if name not in BENCHMARKS:
            parser.error(f"unknown benchmark {name!r}: choose from {', '.join(BENCHMARKS)}")
    if min(args.repetitions, args.threads) < 1:
        parser.error(
            f"--repetitions and --threads must be at least 1, got {args.repetitions} and {args.threads}: raise them"
        )
    part = Part(tuple(args.only), args.samples, args.batch_size, tuple(args.peer))
    if part != WHOLE and (len(args.names) != 1 or args.names[0] not in IN_PARTS):
        parser.error(f"{part.describe()} is for one of these benchmarks alone: {', '.join(IN_PARTS)}")
    for library in ("OMP", "MKL", "OPENBLAS"):  # NumPy and PyTorch read these when they are imported, later
        os.environ[f"{library}_NUM_THREADS"] = str(args.threads)
    names = args.names or [name for name in BENCHMARKS if name not in NOT_BY_DEFAULT]
    held = [run(name, args.repetitions, args.threads, args.out, part) for name in names]
    sys.exit(0 if all(held) else 1)


def run(name: str, repetitions: int, threads: int, out: Path | None, part: Part = WHOLE) -> bool:
    """Run one benchmark, print its tables and write them to `out`; return False if its claim does not hold."""
    import msgspec

    from benchmarks.timing import SkipBenchmark, format_table, format_value
    from sihg.store.files import write_text
    from sihg.store.run_folder import describe_environment

    try:
        module = load_benchmark(name)
        report = module.run(repetitions, out, part) if name in IN_PARTS else module.run(repetitions, out)
    except SkipBenchmark as reason:
        print(f"\n{name}\nSKIPPED: {reason}")
        return True
    environment = {**msgspec.to_builtins(describe_environment()), "odl": odl_version(), "threads": str(threads)}
    print(f"\n{name}\nclaim: {report.claim}: {'holds' if report.holds else 'DOES NOT HOLD'}")
    for key, value in {**report.about, **environment}.items():
        print(f"  {key}: {format_value(value)}")
    for title, rows in report.tables.items():
        print(f"\n{title}\n{format_table(rows)}")
    if out:
        content = {"benchmark": name, **asdict(report), "environment": environment}
        file = "-".join([name, *re.findall(r"[\w.]+", part.describe())]) + ".json"
        print(f"\nwritten: {write_text(out / file, json.dumps(content, indent=1))}")
    return bool(report.holds)


def load_benchmark(name: str) -> Any:
    """Import the module of a benchmark; raise SkipBenchmark if a library it compares with is not installed."""
    from benchmarks.timing import SkipBenchmark

    try:
        return import_module(f"benchmarks.{name}")
    except ModuleNotFoundError as error:
        if str(error.name).startswith(("benchmarks", "sihg")):
            raise
        raise SkipBenchmark(f"{error.name} is not installed: run `make peers`") from error


def odl_version() -> str:
    try:
        return version("odl")
    except PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    main()
