"""Try faults of all kinds: `python -m tests.faults [--long] [--only NAME]`; exit with 1 unless all are withstood."""

import argparse
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import tests.faults
from tests.faults.tally import Tally


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=tests.faults.__doc__)
    parser.add_argument("--long", action="store_true", help="every point, which takes an hour, instead of a few")
    parser.add_argument("--points", type=int, metavar="N", help="points per kind (default: as `make test`)")
    parser.add_argument("--only", metavar="NAME", help="one module of tests/faults")
    args = parser.parse_args()
    names = [args.only] if args.only else sorted(module.name for module in iter_modules(tests.faults.__path__))
    total = Tally("all")
    print("kind | tried | held")
    for name in names:
        if name in ("__main__", "test_faults"):  # which calls the other modules
            continue
        begin = time.monotonic()
        if name.startswith("test_"):
            tally = run_tests(name)
        elif hasattr(kind := import_module(f"tests.faults.{name}"), "run"):
            tally = kind.run(None if args.long else args.points or kind.FEW)
        else:
            continue
        print(f"{tally.kind} | {tally.tried} | {tally.held}", flush=True)
        print(f"{name}: {time.monotonic() - begin:.0f} s", *tally.failures, sep="\n", file=sys.stderr, flush=True)
        total = Tally("all", total.tried + tally.tried, total.held + tally.held)
    print(f"{total.kind} | {total.tried} | {total.held}")
    return 0 if total.held == total.tried else 1


def run_tests(name: str) -> Tally:
    """Run the tests of a module in a process of their own, and count them."""
    path = Path(__file__).with_name(f"{name}.py")
    tally = Tally(str(import_module(f"tests.faults.{name}").__doc__).partition("\n")[0].rstrip("."))
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "--no-header", "--tb=line", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for line in done.stdout.split("\n"):
        if line.startswith(("PASSED ", "FAILED ", "ERROR ")):
            tally.add(None if line.startswith("PASSED ") else line)
    if done.returncode != 0 or not tally.tried:
        tally.add(f"{name} ended with {done.returncode}: {(done.stdout + done.stderr)[-300:]}")
    return tally


if __name__ == "__main__":
    sys.exit(main())
