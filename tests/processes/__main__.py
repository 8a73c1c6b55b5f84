"""Kill processes under torchrun: `python -m tests.processes [--long] [--only NAME]`; exit with 1 unless all recover."""

import argparse
import sys
import time

import tests.processes
from tests.faults.tally import Tally
from tests.processes import agents, nodes, workers

KINDS = {"workers": workers, "agents": agents, "nodes": nodes}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.processes", description=tests.processes.__doc__)
    parser.add_argument("--long", action="store_true", help="50 kills of workers, 10 of agents, 4 of nodes")
    parser.add_argument("--points", type=int, metavar="N", help="kills per kind (default: a few)")
    parser.add_argument("--only", choices=KINDS, help="one kind")
    args = parser.parse_args()
    total = Tally("all")
    print("kind | tried | held")
    for name in [args.only] if args.only else KINDS:
        if name == "nodes" and (reason := nodes.missing()):
            print(f"nodes: skipped, {reason}", file=sys.stderr)
            continue
        begin = time.monotonic()
        kind = KINDS[name]
        tally = kind.run(None if args.long else args.points or kind.FEW)
        print(f"{tally.kind} | {tally.tried} | {tally.held}", flush=True)
        print(f"{name}: {time.monotonic() - begin:.0f} s", *tally.failures, sep="\n", file=sys.stderr, flush=True)
        total = Tally("all", total.tried + tally.tried, total.held + tally.held)
    print(f"{total.kind} | {total.tried} | {total.held}")
    return 0 if total.held == total.tried else 1


if __name__ == "__main__":
    sys.exit(main())
