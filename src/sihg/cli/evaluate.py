"""`sihg evaluate`: how a trained model does under attacks."""

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sihg.cli.numbers import whole
from sihg.cli.running import add_common, showing_warnings, threads
from sihg.errors import InputError

if TYPE_CHECKING:
    from sihg.robust.records import Question
    from sihg.robust.weights import Weights

EPILOG = """examples:
  sihg evaluate runs/first
  sihg evaluate runs/first --attacks natural,pgd-20,pgd-50-10 --samples 200 --checkpoint best
  sihg evaluate runs/pgd runs/msi-hg --attacks natural,pgd-20
  sihg evaluate runs/first --eps 0.1 --last-iterate --json
  sihg evaluate weights.safetensors --model preact-resnet18 --data cifar10 --eps 8/255

Attacks: natural (none), fgsm, pgd-T and pgd-T-R, with T steps and R runs. A sample counts as broken when it is
misclassified at any iterate, with --last-iterate when it is at the end of a run. Evaluations of a run are kept in
RUN/evaluation.
"""
OF_SETTINGS = ("eps", "norm", "bounds", "data", "model", "width")  # and device, which does not change the question
Records = list[tuple[str, dict[str, Any]]]  # of each model: what to call it, its record


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "evaluate",
        help="attack a trained model and count what holds",
        description="Attack the model of a run, or weights in a file, and tell how many samples it still gets right.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "paths",
        type=Path,
        nargs="+",
        metavar="RUN|FILE",
        help="a run, one of its checkpoints, or a weights file; several",
    )
    parser.add_argument("--attacks", default="natural,pgd-20", metavar="A,B", help="by comma (default: %(default)s)")
    parser.add_argument("--samples", type=whole, metavar="N", help="so many, drawn by class (default: all)")
    parser.add_argument("--split", default="test", metavar="S", help="test or train (default: test)")
    parser.add_argument("--checkpoint", metavar="C", help="of a run: last or best (default: last)")
    parser.add_argument("--seed", type=whole, default=0, metavar="S", help="of the draw and the attacks (default: 0)")
    parser.add_argument("--last-iterate", action="store_true", help="judge a run of an attack by its end alone")
    threat = parser.add_argument_group("the attacker (default: as the run was trained)")
    threat.add_argument("--eps", metavar="E", help="radius of the ball, such as 8/255")
    threat.add_argument("--norm", metavar="N", help="linf or l2")
    threat.add_argument("--bounds", metavar="LOW,HIGH", help="x + delta stays within them; none: no bounds")
    what = parser.add_argument_group("the model (a file needs --model, --data and --eps; default: the run's)")
    what.add_argument("--data", metavar="D", help="the data set, see `sihg data list`")
    what.add_argument("--model", metavar="M", help="the model, as in `sihg train`")
    what.add_argument("--width", metavar="W", help="factor on its number of channels")
    what.add_argument("--device", metavar="D", help="where to compute: cpu, cuda, mps, ...")
    add_common(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Attack, keep each record at once, print the table; what could not be kept, or failed, is told after it."""
    from sihg.robust.records import Question, ask, write_record

    attacks = tuple(dict.fromkeys(name.strip() for name in args.attacks.split(",") if name.strip()))
    if not attacks:
        raise InputError("--attacks names none: such as --attacks natural,pgd-20")
    question = Question(attacks, args.split, args.samples, args.seed, args.last_iterate)
    several = len(args.paths) > 1
    with showing_warnings(), threads(args.threads), ExitStack() as bars:

        def progress(name: str, total: int) -> Any:
            from sihg.cli.progress import Bar

            bars.close()  # that of the attack before
            bar = bars.enter_context(Bar(f"{_called(weights)}: {name}" if several else name, total, "samples"))
            return lambda done: bar.update(done, "")

        records: Records = []
        kept, lost = [], []
        try:
            for weights in [_weights(args, path) for path in args.paths]:
                record, outcomes, samples = ask(weights, question, data_dir=args.data_dir, progress=progress)
                records.append((_called(weights), record))
                try:
                    if weights.folder is not None:
                        name = _name(args, weights, question)
                        kept.append(write_record(weights.folder, name, record, outcomes, samples.y))
                except (InputError, OSError) as error:
                    lost.append(f"the record of {_called(weights)} is not kept: {error}")
        finally:  # what is known by then is shown, whatever became of the rest
            bars.close()
            _show(records, as_json=args.json, several=several)
            for path in kept:
                print(f"record: {path}", file=sys.stderr)
            for what in lost:
                print(f"sihg: error: {what}", file=sys.stderr)
    return 2 if lost else 0


def _show(records: Records, *, as_json: bool, several: bool) -> None:
    """Print the results, if there are any."""
    if not records:
        return
    if as_json:
        every = [record for _, record in records]
        print(json.dumps(every if several else every[0], indent=1, allow_nan=False), flush=True)
    else:
        print(_side_by_side(records) if several else _table(records[0][1]), flush=True)


def _called(weights: "Weights") -> str:
    """What to call a model beside others, two checkpoints of one run too."""
    is_last = weights.folder is None or weights.label == "last"
    return weights.source_name if is_last else f"{weights.source_name} ({weights.label})"


def _weights(args: argparse.Namespace, path: Path) -> "Weights":
    from dataclasses import replace

    from sihg.robust.settings import Settings
    from sihg.robust.weights import SUFFIXES, of_file, of_run

    given = {name: getattr(args, name) for name in (*OF_SETTINGS, "device") if getattr(args, name) is not None}
    if not path.exists():
        raise InputError(f"{path} does not exist: give the folder of a run, or a file of weights")
    if path.is_dir():
        weights = of_run(path, args.checkpoint or "last")
        return replace(weights, settings=weights.settings.with_values(given))
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path} is neither a run folder nor one of {', '.join(SUFFIXES)}: give one of these")
    if args.checkpoint:
        raise InputError(f"--checkpoint {args.checkpoint} is for runs, {path} is a file: leave it out")
    if missing := [f"--{name}" for name in ("model", "data", "eps") if name not in given]:
        raise InputError(f"{path} does not say how it was trained: add {', '.join(missing)}")
    return of_file(path, Settings().with_values(given))


def _name(args: argparse.Namespace, weights: "Weights", question: "Question") -> str:
    """The record's name: what was evaluated, and all that was not as usual, so that no other record is replaced."""
    parts = [weights.label, question.split, "+".join(question.attacks)]
    parts += [f"n{question.samples}"] if question.samples else []
    parts += [f"seed{question.seed}"] if question.seed else []
    parts += [f"{name}-{getattr(args, name)}" for name in OF_SETTINGS if getattr(args, name) is not None]
    parts += ["last-iterate"] if question.last_iterate else []
    return "_".join("".join(c if c.isalnum() or c in ".+-" else "-" for c in part) for part in parts)


def _table(record: dict[str, Any]) -> str:
    """One model: a row an attack."""
    rows = []
    for row in record["attacks"]:
        interval = f"{100 * row['low']:.2f} - {100 * row['high']:.2f}"
        passes, seconds = f"{row['passes_per_sample']:.1f}", f"{row['seconds']:.1f}"
        rows.append([row["attack"], f"{100 * row['accuracy']:.2f}", interval, str(row["samples"]), passes, seconds])
    headings = ["attack", "accuracy %", "95 % interval", "samples", "passes a sample", "seconds"]
    return _drawn(f"{record['checkpoint']} on {_about(record)}", headings, rows)


def _side_by_side(records: Records) -> str:
    """Several models: a row each, a column an attack."""
    some = records[0][1]
    common = {_about(record) for _, record in records}
    headings = ["model", *(f"{row['attack']} %" for row in some["attacks"]), "seconds"]
    rows = [
        [
            name if len(common) == 1 else f"{name} ({_about(record)})",
            *(f"{100 * row['accuracy']:.2f}" for row in record["attacks"]),
            f"{sum(row['seconds'] for row in record['attacks']):.1f}",
        ]
        for name, record in records
    ]
    about = f"{some['samples']} samples of {_about(some)}" if len(common) == 1 else "accuracies"
    return _drawn(about, headings, rows)


def _about(record: dict[str, Any]) -> str:
    return f"{record['data']} ({record['split']}): {_ball(record)}; broken: {record['rule']}"


def _drawn(about: str, headings: list[str], rows: list[list[str]]) -> str:
    from rich.console import Console
    from rich.table import Table

    console = Console() if Console().is_terminal else Console(width=140)
    table = Table()
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i else "left")
    for row in rows:
        table.add_row(*row)
    with console.capture() as capture:
        console.print(about, highlight=False, markup=False)
        console.print(table, markup=False)
    return capture.get().rstrip()


def _ball(record: dict[str, Any]) -> str:
    eps, bounds = record["eps"], record["bounds"]
    steps = eps * 255
    shown = f"{eps:g} = {round(steps)}/255" if eps and abs(steps - round(steps)) < 1e-6 else f"{eps:g}"
    within = "no bounds" if bounds is None else f"x + delta in [{bounds[0]:g}, {bounds[1]:g}]"
    return f"{record['norm']} eps {shown}, {within}"
