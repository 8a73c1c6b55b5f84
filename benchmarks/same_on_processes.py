"""Train the same runs on 1, 2 and 4 processes, and resumed on changing numbers of them, and compare every bit.

    python -m benchmarks.same_on_processes --data-dir DATA --out runs/same [--short]

Each case is trained by `sihg train --lanes 4` with one thread per process: alone, under torchrun with 2 and with 4
processes, and once in four pieces on 2, 1, 4 and 2 processes, each but the last stopped by Ctrl-C. Weights, optimiser,
memory, metrics (seconds aside) must be bitwise the same. Finished runs are not trained again.
"""

import argparse
import csv
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

COMMON = ["--lanes", "4", "--threads", "1", "--validation", "200", "--checkpoint-minutes", "0.02"]
MNIST = ["--preset", "mnist-fast", "--samples", "10000", "--epochs", "2"]
CASES = {
    "mnist-msi-hg": MNIST,
    "svhn-resnet8-msi-hg": ["--preset", "svhn", "--samples", "2000", "--epochs", "2", "--flip", "--crop", "4"],
    **{f"mnist-{method}": [*MNIST, "--method", method] for method in ("pgd", "dat", "yopo", "trades", "free")},
}
PIECES = (2, 1, 4, 2)  # processes of a run in pieces
STOPS = (0.2, 0.5, 0.8)  # shares of the steps after which its pieces stop
SECONDS_COLUMNS = ("seconds", "evaluation_seconds", "sum_with_seconds")


def main() -> int:
    """Train and compare each case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.same_on_processes", description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True, metavar="DIR", help="the folder of the data files")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder of the runs")
    parser.add_argument("--cases", default=",".join(CASES), metavar="A,B", help=f"of {', '.join(CASES)}")
    parser.add_argument("--short", action="store_true", help="a tenth of the samples")
    args = parser.parse_args()
    same = True
    for case in args.cases.split(","):
        sums = {}
        for processes in (1, 2, 4):
            run = args.out / f"{case}-{processes}"
            train(args, case, run, processes)
            sums[f"{processes} processes"] = describe(run)
        run = args.out / f"{case}-pieces"
        train_in_pieces(args, case, run, newest(args.out / f"{case}-1"))
        sums["2, 1, 4, 2 processes"] = describe(run)
        is_same = len(set(sums.values())) == 1
        same &= is_same
        print(f"{case}: {'the same' if is_same else f'DIFFERENT {sums}'}", flush=True)
    return 0 if same else 1


def command(args: argparse.Namespace, case: str, run: Path, processes: int) -> list[str]:
    """Return the command that trains a case, or continues its run."""
    begin = [sys.executable, "-m", *launch(processes), "sihg"]
    if (run / "config.toml").exists():
        return [*begin, "resume", str(run)]
    chosen = [str(int(word) // 10) if args.short and word in ("10000", "2000") else word for word in CASES[case]]
    return [*begin, "train", *chosen, *COMMON, "--data-dir", str(args.data_dir), "--out", str(run)]


def launch(processes: int) -> list[str]:
    """Return the words of torchrun; alone, none."""
    if processes == 1:
        return []
    return ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]


def train(args: argparse.Namespace, case: str, run: Path, processes: int) -> None:
    """Train a case to its end on a number of processes."""
    subprocess.run(
        command(args, case, run, processes), env=environment(), check=True, stdout=subprocess.DEVNULL, stderr=None
    )


def train_in_pieces(args: argparse.Namespace, case: str, run: Path, steps: int) -> None:
    """Train a case on changing numbers of processes; stop each piece but the last by Ctrl-C."""
    for processes, stop in zip(PIECES, STOPS, strict=False):
        if newest(run) >= stop * steps:
            continue
        words = command(args, case, run, processes)
        child = subprocess.Popen(words, env=environment(), stdout=subprocess.DEVNULL)
        while child.poll() is None and newest(run) < stop * steps:
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        child.wait()
    train(args, case, run, PIECES[-1])


def newest(run: Path) -> int:
    """Return the step of the newest checkpoint of a run; 0 before the first one."""
    return max((int(path.name.partition("-")[2]) for path in (run / "checkpoints").glob("last-*")), default=0)


def environment() -> dict[str, str]:
    """Return the environment of a training: one thread."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def describe(run: Path) -> str:
    """Return the SHA-256 of the last weights, optimiser and memory, and of the metrics without seconds."""
    digest = hashlib.sha256()
    for path in sorted((run / "checkpoints" / f"last-{newest(run):08d}").glob("*.safetensors")):
        digest.update(path.name.encode() + path.read_bytes())
    for name in ("metrics.csv", "memory.csv"):
        if (run / name).exists():
            digest.update(repr(without_seconds(run / name)).encode())
    return digest.hexdigest()


def without_seconds(path: Path) -> Sequence[dict[str, str]]:
    """Return the rows of a table without the columns that depend on the clock."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{name: value for name, value in row.items() if name not in SECONDS_COLUMNS} for row in rows]


if __name__ == "__main__":
    sys.exit(main())
