"""Try faults of all kinds: `python -m tests.faults [--long] [--only NAME]`; exit with 1 unless all are withstood."""

import argparse
import sys
import time
from importlib import import_module
from pkgutil import iter_modules

import tests.faults

SHORT = 20  # points per kind


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=tests.faults.__doc__)
    parser.add_argument("--long", action="store_true", help=f"every point, which takes hours, instead of {SHORT}")
    parser.add_argument("--points", type=int, default=SHORT, help="points per kind (default: %(default)s)")
    parser.add_argument("--only", metavar="NAME", help="one module of tests/faults")
    args = parser.parse_args()
    names = [args.only] if args.only else sorted(module.name for module in iter_modules(tests.faults.__path__))
    print("kind | tried | held")
    failures = []
    for name in names:
        if name == "__main__" or not hasattr(module := import_module(f"tests.faults.{name}"), "run"):
            continue
        begin = time.monotonic()
        tally = module.run(None if args.long else args.points)
        print(f"{tally.kind} | {tally.tried} | {tally.held}", flush=True)
        print(f"{name}: {time.monotonic() - begin:.0f} s", file=sys.stderr)
        failures += tally.failures
    print(*failures, sep="\n", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
