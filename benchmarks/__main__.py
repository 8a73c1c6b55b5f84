"""`python -m benchmarks [name ...] [--out DIR]`: run benchmarks, print their tables, keep them as JSON."""

import argparse
import json
import os
import sys
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

BENCHMARKS = {
    "iteration_cost": "one SSI-HG iteration in full gradients, and against the number of blocks",
    "spdhg_peers": "SSI-HG and SPDHG against ODL's SPDHG: the same iterates, and the time",
    "attack_speed": "PGD-20 against torchattacks, rai-toolbox, foolbox and ART",
    "pgd_50_10": "PGD-50-10 on MNIST against the same four: the time, the passes, the accuracy",
    "standard_speed": "AutoAttack's standard set on MNIST against pyautoattack: the time, attack by attack",
    "evaluation_memory": "peak memory of an evaluation of 10,000 samples against one of 1,000",
    "training_speed": "an epoch of PGD AT against its bare passes and against ART's trainer",
    "memory_cost": "the perturbation memory in training steps of MSI-HG",
    "kept_memory": "a training step with freed memory kept, and given back to the system",
    "channels_last": "a pass of our models with channels last in memory against channels first",
}
LONG = ("pgd_50_10", "standard_speed")  # take hours


def main() -> None:
    listed = "\n".join(f"  {name:19}{about}" for name, about in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"Run benchmarks (unless named, all but {' and '.join(LONG)}, which take hours):\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="name", help="which to run")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write NAME.json and figures")
    parser.add_argument("--repetitions", type=int, default=21, metavar="R", help="timed runs of each (default 21)")
    parser.add_argument("--threads", type=int, default=1, metavar="T", help="threads of every library (default 1)")
    chosen = parser.parse_args()
    for name in chosen.names:
        if name not in BENCHMARKS:
            parser.error(f"there is no benchmark {name!r}: choose from {', '.join(BENCHMARKS)}")
    if min(chosen.repetitions, chosen.threads) < 1:
        parser.error("--repetitions and --threads must be at least 1")
    for library in ("OMP", "MKL", "OPENBLAS"):  # read when NumPy and PyTorch are imported, which is why that is later
        os.environ[f"{library}_NUM_THREADS"] = str(chosen.threads)
    names = chosen.names or [name for name in BENCHMARKS if name not in LONG]
    held = [run(name, chosen.repetitions, chosen.threads, chosen.out) for name in names]
    sys.exit(0 if all(held) else 1)


def run(name: str, repetitions: int, threads: int, out: Path | None) -> bool:
    """Run one benchmark; print its tables and write them into `out`; tell whether nothing speaks against its claim."""
    import msgspec

    from benchmarks.timing import NotRun, shown, text
    from sihg.store.environment import describe_environment
    from sihg.store.files import write_text

    try:
        report = _module(name).run(repetitions, out)
    except NotRun as why:
        print(f"\n{name}\nNOT RUN: {why}")
        return True
    made_with = {**msgspec.to_builtins(describe_environment()), "odl": _version("odl"), "threads": str(threads)}
    print(f"\n{name}\nclaim: {report.claim}: {'holds' if report.holds else 'DOES NOT HOLD'}")
    for key, value in {**report.about, **made_with}.items():
        print(f"  {key}: {shown(value)}")
    for title, rows in report.tables.items():
        print(f"\n{title}\n{text(rows)}")
    if out:
        content = {"benchmark": name, **asdict(report), "environment": made_with}
        print(f"\nwritten: {write_text(out / f'{name}.json', json.dumps(content, indent=1))}")
    return bool(report.holds)


def _module(name: str) -> Any:
    """The module of a benchmark, if what it compares with is installed."""

    from benchmarks.timing import NotRun

    try:
        return import_module(f"benchmarks.{name}")
    except ModuleNotFoundError as error:
        if str(error.name).startswith(("benchmarks", "sihg")):
            raise
        raise NotRun(f"{error.name} is not installed: `make peers` does it") from error


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    main()
