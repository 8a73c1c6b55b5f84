"""`sihg solve`: run methods on a minimax problem, side by side."""

import argparse
import io
import json
import shlex
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from sihg.cli.common import add_trust, count, number
from sihg.cli.solve_conditions import run_conditions
from sihg.cli.solve_profile import add_flags, is_profile, run_profile
from sihg.cli.terminal import Bar, say, show
from sihg.errors import InputError, SihgError
from sihg.interrupt import interrupted_at_once
from sihg.parse import Value, parse_literal, parse_names

if TYPE_CHECKING:
    from sihg.minimax.comparison import Comparison
    from sihg.store.schema import SolveSummary

DEFAULT_ITERATIONS = 2000
NARROW = 125  # columns of a terminal; below this, step sizes and the reason to stop stand under the table
EPILOG = """examples:
  sihg solve --list
  sihg solve forsaken --method ssi-hg,extragradient,gda --out runs/forsaken
  sihg solve ridge --set n=16 --set samples=800 --iterations 5000 --json
  sihg solve mypackage.problems:make --sigma 0.1 --tau 0.05
  sihg solve --resume runs/forsaken --iterations 1e5
  sihg solve forsaken --method ssi-hg,ssi-hg@adaptive,eg+ --gradients 20000
  sihg solve forsaken --conditions
  sihg solve all --method all --passes 1000 --out runs/profile
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", summary: str) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "solve",
        help=summary,
        description="Run methods on a problem of the zoo, or on your own, and compare where they get to; or on several "
        "problems, and compare how often and how fast they solve them.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_argument_group("what to solve")
    what.add_argument(
        "problem",
        nargs="?",
        metavar="PROBLEM",
        help="a name of the zoo, or package.module:callable or path.py:callable that returns a sihg.Problem; several "
        "with commas, or all for the whole zoo, make a performance profile",
    )
    what.add_argument("--list", action="store_true", help="list problems and methods, and stop")
    what.add_argument(
        "--conditions",
        action="store_true",
        help="print how large a rho of the weak MVI each theory admits, for PROBLEM's constants or L = 1, and stop",
    )
    what.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="an option of the problem; may be repeated"
    )
    how = parser.add_argument_group("how")
    how.add_argument(
        "--method",
        metavar="A,B,C",
        help="methods, or auto, separated by commas (default: ssi-hg; of several problems: all); METHOD@adaptive takes "
        "adaptive steps",
    )
    how.add_argument(
        "--iterations", type=count, metavar="N", help=f"iterations of each method (default: {DEFAULT_ITERATIONS})"
    )
    how.add_argument(
        "--gradients", type=count, metavar="N", help="block gradients of each method, in w and delta together, at most"
    )
    how.add_argument("--tolerance", type=number, metavar="T", help="stop once the saddle norm is at most T")
    how.add_argument("--seed", type=count, metavar="S", help="seed of the drawn blocks (default: 0)")
    how.add_argument(
        "--steps",
        choices=("theorem", "adaptive"),
        help="where step sizes come from: the methods' theorems (default), or a line search as the solve goes",
    )
    for name, meaning in (("sigma", "step size of w"), ("tau", "step size of delta"), ("theta", "extrapolation")):
        how.add_argument(f"--{name}", type=number, metavar="X", help=f"{meaning} (default: by the theorem)")
    how.add_argument(
        "--record-every",
        type=count,
        metavar="N",
        help="measure every N iterations (default: iterations / 500, from 1 to 100)",
    )
    add_flags(parser)
    out = parser.add_argument_group("output")
    out.add_argument("--json", action="store_true", help="print the summary as JSON instead of a table")
    out.add_argument("--out", type=Path, metavar="DIR", help="write histories, states, figures and a page to DIR")
    out.add_argument("--overwrite", action="store_true", help="replace an earlier solve in DIR")
    out.add_argument("--resume", type=Path, metavar="DIR", help="continue the solve in DIR, to --iterations in all")
    add_trust(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """List, solve or resume; print the table or the JSON."""
    if args.list:
        show(_listing(as_json=args.json))
        return 0
    if args.conditions:
        return run_conditions(args, dict(_option(text) for text in args.set))
    if is_profile(args):
        return run_profile(args)
    # Outside the loop of a method, which ends with its iteration, Ctrl-C ends the command at once.
    with closing(_prepare(args)) as comparison, interrupted_at_once():
        try:
            interrupted = _run_methods(comparison)
        except (SihgError, KeyboardInterrupt):
            if comparison.rows:
                _show(comparison, as_json=args.json)
            raise
        _show(comparison, as_json=args.json)
    if interrupted and comparison.folder:
        say(f"to continue: sihg solve --resume {shlex.quote(str(comparison.folder.path))}")
    elif interrupted:
        say("nothing is saved without --out")
    return 130 if interrupted else 0


def _prepare(args: argparse.Namespace) -> "Comparison":
    from sihg.minimax.comparison import Comparison

    if args.resume:
        names = (
            "problem",
            "set",
            "method",
            "tolerance",
            "seed",
            "sigma",
            "tau",
            "theta",
            "steps",
            "record_every",
            "out",
        )
        if given := [name for name in names if getattr(args, name) not in (None, [])]:
            raise InputError("resume-with-settings", name=given[0])
        return Comparison.resumed(args.resume, args.iterations, gradients=args.gradients, trust=args.trust)
    if not args.problem:
        raise InputError("no-problem")
    return Comparison.new(
        args.problem,
        parse_names(args.method or "ssi-hg"),
        options=dict(_option(text) for text in args.set),
        iterations=args.iterations,
        gradients=args.gradients,
        seed=args.seed or 0,
        tolerance=args.tolerance,
        record_every=args.record_every,
        steps=_steps(args),
        folder=args.out,
        overwrite=args.overwrite,
    )


def _steps(args: argparse.Namespace) -> "str | dict[str, float]":
    numbers = {name: getattr(args, name) for name in ("sigma", "tau", "theta") if getattr(args, name) is not None}
    if args.steps == "adaptive" and numbers:
        raise InputError("steps-and-numbers", name=min(numbers))
    return numbers or args.steps or "theorem"


def _option(text: str) -> tuple[str, Value]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InputError("set-form", text=text)
    found = parse_literal(value)
    is_whole = isinstance(found, float) and found.is_integer() and "." not in value  # 1e3 and 8/4 are integers
    return key, int(found) if is_whole else found  # type: ignore[arg-type]


def _run_methods(comparison: "Comparison") -> bool:
    """Run every method; return whether Ctrl-C or SIGTERM ended it."""
    for name in comparison.config.methods:
        with Bar(name, *comparison.total) as bar:
            row = comparison.run(name, bar.update)
        for message in row.warnings:
            say(f"warning: {name}: {message}")
        if row.stopped.startswith("interrupted"):
            return True
    return False


def _show(comparison: "Comparison", *, as_json: bool) -> None:
    """Print the summary; with a folder, write the summary, figures and page there."""
    from sihg.store.schema import record_text

    summary = comparison.summarise()
    if comparison.folder:
        from sihg.report.solve_report import report_solve

        report_solve(comparison.folder.path)
    show(record_text(summary).rstrip() if as_json else _table(summary))
    if comparison.folder:
        say(f"report: {comparison.folder.path / 'index.html'}")


def _table(summary: "SolveSummary") -> str:
    from rich.console import Console
    from rich.table import Table

    width = None if Console().is_terminal else 140
    console = Console(width=width, color_system=None, emoji=False, markup=False)
    narrow = console.width < NARROW
    table = Table(title=f"{summary.problem} (n = {summary.n}): {summary.about}", title_justify="left")
    headings = ["method", "iterations", "gradients w / delta", "|F|^2", "distance", "seconds"]
    for heading in headings if narrow else [*headings, "sigma", "tau", "stopped"]:
        table.add_column(heading, justify="left" if heading in ("method", "stopped") else "right")
    below = []
    for row in summary.methods:
        measured = (row.saddle_norm_squared, row.distance, row.seconds, row.sigma, row.tau)
        numbers = ["-" if value is None else f"{value:.3g}" for value in measured]
        gradients = f"{row.w_gradients} / {row.delta_gradients}"
        cells = [row.method, str(row.iterations), gradients, *numbers, row.stopped]
        table.add_row(*cells[: len(table.columns)])
        ended = f"{row.stopped}, sigma {numbers[3]}, tau {numbers[4]}, " if narrow else ""
        below.append(f"{row.method}: {ended}steps from {row.source}")
    text = io.StringIO()
    console.file = text  # not a capture, which also writes to standard output
    console.print(table)
    for line in below:
        console.print(line, highlight=False)
    return text.getvalue().rstrip()


def _listing(*, as_json: bool) -> str:
    from sihg.minimax import METHODS, zoo

    problems = [{"name": name, "about": zoo.about(name), "options": zoo.options(name)} for name in zoo.names()]
    methods = [{"name": name, "about": (kind.__doc__ or "").split("\n")[0]} for name, kind in METHODS.items()]
    methods.append({"name": "auto", "about": "Try several for a short while, and go on with the best."})
    if as_json:
        return json.dumps({"problems": problems, "methods": methods}, indent=1)
    lines = ["problems (--set changes their options):"]
    for problem in problems:
        options = ", ".join(f"{k}={v}" for k, v in zoo.options(str(problem["name"])).items() if v is not None)
        lines += [f"  {problem['name']:20} {problem['about']}"] + ([f"  {'':20} {options}"] if options else [])
    lines += ["", "methods:"] + [f"  {method['name']:20} {method['about']}" for method in methods]
    return "\n".join(lines)
