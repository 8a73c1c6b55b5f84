"""Try faults of all kinds: `python -m tests.faults [--long] [--only NAME]`; exit with 1 unless all are withstood."""

import argparse
import sys
import time
from importlib import import_module
from pkgutil import iter_modules

import tests.faults


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=tests.faults.__doc__)
    parser.add_argument("--long", action="store_true", help="every point, which takes an hour, instead of a few")
    parser.add_argument("--points", type=int, metavar="N", help="points per kind (default: as `make test`)")
    parser.add_argument("--only", metavar="NAME", help="one module of tests/faults")
    args = parser.parse_args()
    names = [args.only] if args.only else sorted(module.name for module in iter_modules(tests.faults.__path__))
    kinds = [import_module(f"tests.faults.{name}") for name in names if name != "__main__"]
    failures = []
    print("kind | tried | held")
    for kind in (kind for kind in kinds if hasattr(kind, "run")):
        begin = time.monotonic()
        tally = kind.run(None if args.long else args.points or kind.FEW)
        print(f"{tally.kind} | {tally.tried} | {tally.held}", flush=True)
        print(f"{kind.__name__}: {time.monotonic() - begin:.0f} s", file=sys.stderr)
        failures += tally.failures
    print(*failures, sep="\n", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
