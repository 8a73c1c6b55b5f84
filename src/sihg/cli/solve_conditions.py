"""`sihg solve --conditions`: how large a rho of the weak MVI each theory admits."""

import argparse
import json
from typing import TYPE_CHECKING

from sihg.cli.terminal import format_table, show
from sihg.parse import Value

if TYPE_CHECKING:
    from sihg.minimax.theories import Admitted

BLOCKS = (1, 10, 100)  # of the table without a problem


def run_conditions(args: argparse.Namespace, options: dict[str, Value]) -> int:
    """Print the table for a problem's constants, or for L = 1 and several n."""
    from sihg.minimax.theories import admissible_rho, conditions_of

    if not args.problem:
        found = {n: admissible_rho(1.0, n) for n in BLOCKS}
        about: dict[str, object] = {"L12": 1.0, "L11": 0.0, "L22": 0.0}
        title = "rho that each theory admits, in the paper's convention, at L12 = 1 and L11 = L22 = 0"
        _print(title, about, {f"n = {n}": rows for n, rows in found.items()}, None, as_json=args.json)
        return 0
    conditions = conditions_of(args.problem, options)
    n, known, rho = conditions.n, conditions.constants, conditions.rho
    constants = {"L11": known.L11 or 0.0, "L12": known.L12 or 0.0, "L22": known.L22 or 0.0}
    about = {"problem": args.problem, "n": n, **constants, "source": known.source, "rho": rho}
    values = ", ".join(f"{name} = {value:.4g}" for name, value in constants.items())
    has = "is not known" if rho is None else f"= {rho:.4g}"
    title = f"{args.problem} (n = {n}): rho that each theory admits, at {values} ({known.source}); its rho {has}"
    _print(title, about, {"rho": conditions.admitted}, rho, as_json=args.json)
    return 0


def _print(
    title: str, about: dict[str, object], found: dict[str, "list[Admitted]"], rho: float | None, *, as_json: bool
) -> None:
    """Print a row per theory, with a column for each of the `found`."""
    theories = list(dict.fromkeys((row.method, row.theory, row.rule) for rows in found.values() for row in rows))
    admitted = {(name, row.theory): row.rho for name, rows in found.items() for row in rows}
    if as_json:
        columns = {theory: {name: admitted.get((name, theory)) for name in found} for _, theory, _ in theories}
        rows = [{"method": m, "theory": t, "rule": rule, "rho": columns[t]} for m, t, rule in theories]
        show(json.dumps({**about, "theories": rows}, indent=1))
        return
    headings = ["theory", "method", *found, "rule", *(["rho is below"] if rho is not None else [])]
    cells = []
    for method, theory, rule in theories:
        values = [admitted.get((name, theory)) for name in found]
        verdict = [] if rho is None else ["yes" if values[0] is not None and rho < values[0] else "no"]
        cells.append([theory, method, *("" if v is None else f"{v:.3g}" for v in values), rule, *verdict])
    show(format_table(title, headings, cells))
