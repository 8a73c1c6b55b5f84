"""`sihg solve` on several problems: a performance profile of the methods."""

import argparse
import shlex
from contextlib import closing
from typing import TYPE_CHECKING

from sihg.cli.common import count, number
from sihg.cli.terminal import Bar, format_table, say, show
from sihg.errors import InputError
from sihg.interrupt import interrupted_at_once
from sihg.parse import parse_names

if TYPE_CHECKING:
    from sihg.minimax.performance_profile import ProfileComputation
    from sihg.store.profile_records import SolverProfile

ALL = "all"
OF_ONE = ("set", "iterations", "gradients", "sigma", "tau", "theta", "steps", "record_every", "overwrite", "resume")
OF_PROFILE = ("passes", "reduction", "starts")
FACTORS = (1, 2, 10)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a profile."""
    group = parser.add_argument_group("several problems: a performance profile")
    group.add_argument(
        "--passes", type=count, metavar="N", help="budget of each method: 2 n N block gradients (default: 1000)"
    )
    group.add_argument(
        "--reduction", type=number, metavar="R", help="solved once the saddle norm is R times its start (default: 1e-3)"
    )
    group.add_argument("--starts", type=count, metavar="N", help="solve from N random starts instead of the problem's")


def is_profile(args: argparse.Namespace) -> bool:
    """Return whether the command asks for a profile: of several problems, or with a setting of profiles."""
    several = args.problem is not None and (args.problem == ALL or "," in args.problem)
    return several or any(getattr(args, name) is not None for name in OF_PROFILE)


def run_profile(args: argparse.Namespace) -> int:
    """Compute the cells that are missing; print the table or the JSON."""
    for name in OF_ONE:
        if getattr(args, name) not in (None, [], False):
            raise InputError("profile-with-setting", name=name.replace("_", "-"))
    from sihg.minimax.performance_profile import ProfileComputation

    given = {name: getattr(args, name) for name in (*OF_PROFILE, "tolerance", "seed")}
    settings = {name: value for name, value in given.items() if value is not None}
    problems = ALL if args.problem == ALL else parse_names(args.problem or "")
    methods = args.method or ALL
    with closing(ProfileComputation(problems, methods, folder=args.out, **settings)) as computation:
        interrupted = _compute(computation)
        if computation.cells:
            _show(computation, as_json=args.json)
    if interrupted:
        say("to continue: the same command" if args.out else "nothing is saved without --out")
    return 130 if interrupted else 0


def _compute(computation: "ProfileComputation") -> bool:
    """Compute all cells; return whether Ctrl-C or SIGTERM ended it."""
    pairs = list(computation.pairs())
    with Bar("profile", len(pairs), "cells") as bar, interrupted_at_once():
        try:
            for done, (problem, method) in enumerate(pairs):
                bar.update(done, f"{problem}, {method}")
                computation.run(problem, method)
        except KeyboardInterrupt:
            return True
    return False


def _show(computation: "ProfileComputation", *, as_json: bool) -> None:
    from sihg.store.schema import record_text

    found = computation.summarise()
    if computation.folder:
        from sihg.report.profile_report import report_profile

        report_profile(computation.folder.path)
    show(record_text(found).rstrip() if as_json else _table(found))
    if computation.folder:
        say(f"report: {shlex.quote(str(computation.folder.path / 'index.html'))}")


def _table(found: "SolverProfile") -> str:
    from math import inf

    headings = ["method", *(f"within {factor} x" if factor > 1 else "best" for factor in FACTORS), "solved"]
    limits = [*FACTORS, inf]
    rows = [(method, [found.share(method, limit) for limit in limits]) for method in found.methods]
    rows.sort(key=lambda row: (-row[1][1], -row[1][-1]))
    s = found.settings
    goal = f"|F| <= {s.reduction:g} of the start" + (f", or {s.tolerance:g}" if s.tolerance else "")
    tasks = len(found.problems) * max(1, s.starts)
    title = f"shares of {tasks} tasks, by cost over that of the best method: {goal}, at most {s.passes} passes"
    cells = [[name, *(f"{100 * share:.0f} %" for share in shares)] for name, shares in rows]
    return "\n".join(part for part in (format_table(title, headings, cells), found.progress) if part)
