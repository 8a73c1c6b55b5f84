"""`sihg evaluate`: how a trained model does under attacks."""

import argparse
import hashlib
import json
import math
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sihg.cli.parse_numbers import number, whole
from sihg.cli.running import add_common, showing_warnings, threads
from sihg.errors import InputError

if TYPE_CHECKING:
    from sihg.cli.accuracy_table import Records
    from sihg.robust.attacks.runner import Outcome
    from sihg.robust.evaluation.partial import FileLedger
    from sihg.robust.evaluation.stored import Asked, Question
    from sihg.robust.training.weights import Weights

EPILOG = """examples:
  sihg evaluate runs/first
  sihg evaluate runs/first --attacks natural,pgd-20,standard --checkpoint best
  sihg evaluate runs/pgd runs/msi-hg --attacks natural,pgd-20
  sihg evaluate runs/first --curve 0:0.5:11 --attacks pgd-20
  sihg evaluate runs/first --attacks square-1000,noise,transfer:runs/pgd --samples 1000
  sihg evaluate weights.safetensors --model preact-resnet18 --data cifar10 --eps 8/255

attacks (R: runs, each on what the ones before left):
  natural                no attack
  fgsm                   one step of eps from the image
  pgd-T[-R]              T steps of 2.5 eps / T from a random start
  apgd-ce[-T[-R]]        Auto-PGD on the cross-entropy, T = 100
  apgd-t[-T[-R]]         Auto-PGD on the targeted DLR loss, nine targets, T = 100
  fab-t[-T[-R]]          the targeted fast adaptive boundary attack, nine targets, T = 100
  square[-Q[-R]]         random search by squares, no gradients, Q = 5000 queries
  noise[-N]              N = 10 points anywhere in the ball and as many on its surface
  transfer:RUN           the points where PGD-20 on another run ends
  certified              no attack: what interval bounds prove to hold, a lower bound (linf)
  standard               apgd-ce, apgd-t, fab-t and square, each on what the ones before left (AutoAttack's set)

A sample counts as broken when it is misclassified at any point that an attack looks at; with --last-iterate, for
fgsm and pgd, when it is at the end of a run. The table ends with what holds under all attacks, what is proven to hold
if that was asked for, and what speaks against believing it. An evaluation that is cut short goes on when it is asked
for again. Evaluations of a run are kept in RUN/evaluation: NAME.json the table, NAME.npz what each attack found for
each sample; RUN/gallery.npz has a sample of each class before and after the strongest attack. `sihg report RUN` shows
them.
"""
LONGEST = 150  # letters of a record's name
OF_SETTINGS = ("eps", "norm", "bounds", "data", "model", "width")  # and device, which does not change the question


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
    parser.add_argument("--last-iterate", action="store_true", help="judge a run of fgsm or pgd by its end alone")
    parser.add_argument("--curve", metavar="A:B:N", help="accuracy at N radii from A to B, such as 0:8/255:9")
    parser.add_argument("--points", action="store_true", help="keep the point found for each sample, NAME.points.npy")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to keep records (default: RUN/evaluation)")
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
    from sihg.robust.evaluation.partial import LedgerWarning
    from sihg.robust.evaluation.stored import Question, ask
    from sihg.store.files import make_folder

    attacks = tuple(dict.fromkeys(name.strip() for name in args.attacks.split(",") if name.strip()))
    if not attacks:
        raise InputError("--attacks names none: such as --attacks natural,pgd-20")
    question = Question(attacks, args.split, args.samples, args.seed, args.last_iterate)
    radii = None if args.curve is None else _radii(args.curve)
    several = len(args.paths) > 1
    with showing_warnings(), threads(args.threads), ExitStack() as bars:
        warnings.simplefilter("always", LedgerWarning)

        def progress(name: str, total: int) -> Any:
            from sihg.cli.progress import Bar

            bars.close()  # that of the attack before
            bar = bars.enter_context(Bar(f"{_called(weights)}: {name}" if several else name, total, "samples"))
            return lambda done: bar.update(done, "")

        records: Records = []
        kept, lost = [], []
        try:
            every = _all_weights(args, question)
            if args.out:
                make_folder(args.out)  # before hours of work that would have no place
            for weights in every:
                asked = ask(weights, question, data_dir=args.data_dir)
                keeper = _Keeper(args, weights, asked, radii)
                with keeper.going_on(bars):
                    record, outcomes = keeper.answer(progress)
                records.append((_called(weights), record))
                try:
                    kept += keeper.keep(record, outcomes)
                except (InputError, OSError) as error:
                    lost.append(f"the record of {_called(weights)} is not kept: {error}")
        finally:  # what is known by then is shown, whatever became of the rest
            bars.close()
            _show(records, as_json=args.json, several=several)
            for path in kept:
                print(f"record: {path}", file=sys.stderr)
            for what in lost:
                print(f"sihg: error: {what}", file=sys.stderr)
    doubtful = [check for _, record in records for check in record.get("checks", []) if check["result"] == "error"]
    return 2 if lost or doubtful else 0


class _Keeper:
    """Where the record of an evaluation goes, and what was found before it was cut short."""

    def __init__(self, args: argparse.Namespace, weights: "Weights", asked: "Asked", radii: list[float] | None) -> None:
        from sihg import __version__
        from sihg.robust.evaluation.partial import FileLedger
        from sihg.robust.evaluation.stored import contents, digest
        from sihg.robust.training.weights import of_run

        self.asked, self.radii = asked, radii
        usual = args.split == "test" and all(getattr(args, name) is None for name in (*OF_SETTINGS, "curve", "out"))
        self.gallery = weights.folder.gallery if weights.folder and usual else None
        self.name = _name(args, weights, asked.question)
        self.home: Path | None = args.out or (weights.folder.evaluation if weights.folder else None)
        self.ledger: FileLedger | None = None
        if args.points and self.home is None:
            raise InputError(f"--points of {weights.source_name} have no place: add --out DIR")
        if self.home is not None:
            attacks = asked.question.attacks
            sources = [name.removeprefix("transfer:") for name in attacks if name.startswith("transfer:")]
            about = {**asked.about, "attacks": attacks, "radii": radii, "version": __version__}
            about |= {
                "contents": contents(asked.samples),
                "model": weights.settings.model,
                "width": weights.settings.width,
            }
            about["sources"] = [digest(of_run(Path(source))) for source in sources]
            points = self.home / f"{self.name}.points.npy" if args.points else None
            self.ledger = FileLedger(self.home / f"{self.name}.partial.npz", about, points)

    @contextmanager
    def going_on(self, bars: ExitStack) -> Iterator[None]:
        """Say what is known already; when cut short, keep it and say how to go on, below the bars."""
        if self.ledger is None:
            yield
            return
        if self.ledger.verdicts:
            print(f"going on: {self.ledger.verdicts} verdicts are known", file=sys.stderr)
        try:
            yield
        except BaseException:
            bars.close()
            if self.ledger.verdicts:
                self._write(self.ledger)
            raise

    def _write(self, ledger: "FileLedger") -> None:
        try:
            ledger.write()
        except InputError as error:
            print(f"warning: what was found is lost: {error}", file=sys.stderr)
        else:
            print(f"{ledger.verdicts} verdicts are kept: the same command goes on from there", file=sys.stderr)

    def answer(self, progress: Any) -> "tuple[dict[str, Any], list[Outcome]]":
        """Evaluate."""
        if self.radii:
            return self.asked.curve(self.radii, self.ledger, progress)
        record, found = self.asked.answer(self.ledger, progress)
        return record, list(found.outcomes)

    def keep(self, record: dict[str, Any], outcomes: "list[Outcome]") -> list[Path]:
        """Write the record, of a curve its figure too; the files."""
        from sihg.robust.evaluation.stored import write_record

        if self.home is None or self.ledger is None:
            return []
        files = [write_record(self.home, self.name, record, outcomes, self.asked)]
        if self.radii:
            from sihg.report.figures.radius import draw

            files += draw(record, self.home, self.name)
        self.ledger.forget()
        if self.gallery is not None:
            try:
                self.asked.keep_gallery(self.gallery, outcomes)
            except InputError as error:
                print(f"warning: the gallery is not kept: {error}", file=sys.stderr)
        return files + ([self.ledger.points] if self.ledger.points else [])


def _radii(text: str) -> list[float]:
    """The radii of A:B:N."""
    parts = text.split(":")
    try:
        if len(parts) != 3:
            raise argparse.ArgumentTypeError
        low, high, n = number(parts[0]), number(parts[1]), whole(parts[2])
    except argparse.ArgumentTypeError:
        raise InputError(f"--curve {text} is not A:B:N: give the first radius, the last and how many") from None
    if not (0 <= low < high < math.inf and n >= 2):
        raise InputError(f"--curve {text} must grow from A >= 0 to B in N >= 2 radii: such as 0:8/255:9")
    return [low + (high - low) * i / (n - 1) for i in range(n)]


def _show(records: "Records", *, as_json: bool, several: bool) -> None:
    """Print the results, if there are any, and what speaks against them."""
    from sihg.cli.accuracy_table import curves, side_by_side, table
    from sihg.robust.evaluation.diagnostics import counted

    if not records:
        return
    if as_json:
        every = [record for _, record in records]
        print(json.dumps(every if several else every[0], indent=1, allow_nan=False), flush=True)
    elif "curves" in records[0][1]:
        print(curves(records), flush=True)
    else:
        print(side_by_side(records) if several else table(records[0][1]), flush=True)
    for name, record in records:
        of = f" ({name})" if several else ""
        for row in record.get("attacks") or record.get("curves", []):
            if row.get("remark"):
                print(f"note{of}: {row['attack']}: {row['remark']}", file=sys.stderr)
        checks = record.get("checks", [])
        for check in checks:
            if check["result"] in ("error", "warning"):
                print(f"{check['result']}{of}: {check['message']}", file=sys.stderr)
        if checks:
            print(f"checks{of}: {counted(check['result'] for check in checks)}", file=sys.stderr)


def _called(weights: "Weights") -> str:
    """What to call a model beside others, two checkpoints of one run too."""
    is_last = weights.folder is None or weights.label == "last"
    return weights.source_name if is_last else f"{weights.source_name} ({weights.label})"


def _all_weights(args: argparse.Namespace, question: "Question") -> "list[Weights]":
    """Those of each path; two records of one name would take each other's place."""
    every = [_weights(args, path) for path in args.paths]
    names = [_name(args, weights, question) for weights in every]
    if args.out and (twice := [name for name, count in Counter(names).items() if count > 1]):
        raise InputError(f"--out {args.out} would hold two records {twice[0]}.json: give each an --out of its own")
    return every


def _weights(args: argparse.Namespace, path: Path) -> "Weights":
    from dataclasses import replace

    from sihg.robust.threat import NORMS
    from sihg.robust.training.config import Settings
    from sihg.robust.training.weights import SUFFIXES, of_file, of_run

    given = {name: getattr(args, name) for name in (*OF_SETTINGS, "device") if getattr(args, name) is not None}
    if not path.exists():
        raise InputError(f"{path} does not exist: give the folder of a run, or a file of weights")
    if path.is_dir():
        if args.curve is not None and args.eps is not None:
            raise InputError(f"--curve {args.curve} has radii of its own: leave out --eps {args.eps}")
        weights = of_run(path, args.checkpoint or "last")
        own = weights.settings
        if args.norm in {*NORMS} - {own.norm} and args.eps is None and args.curve is None:
            raise InputError(
                f"--norm {args.norm} needs --eps: {own.eps:g}, with which {path} was trained, is the radius of an "
                f"{own.norm} ball"
            )
        return replace(weights, settings=own.with_values(given))
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path} is neither a run folder nor one of {', '.join(SUFFIXES)}: give one of these")
    if args.checkpoint:
        raise InputError(f"--checkpoint {args.checkpoint} is for runs, {path} is a file: leave it out")
    if missing := [f"--{name}" for name in ("model", "data", "eps") if name not in given]:
        raise InputError(f"{path} does not say how it was trained: add {', '.join(missing)}")
    return of_file(path, Settings().with_values(given))


def _name(args: argparse.Namespace, weights: "Weights", question: "Question") -> str:
    """The record's name: what was evaluated, and all that was not as usual, so that no other of the run is replaced."""
    run = [weights.folder.path.resolve().name] if args.out and weights.folder else []  # --out may be everybody's
    parts = [*run, weights.label, question.split, "+".join(question.attacks)]
    parts += [f"n{question.samples}"] if question.samples else []
    parts += [f"seed{question.seed}"] if question.seed else []
    parts += [f"{name}-{getattr(args, name)}" for name in OF_SETTINGS if getattr(args, name) is not None]
    parts += ["last-iterate"] if question.last_iterate else []
    parts += [f"curve-{args.curve}"] if args.curve else []
    name = "_".join("".join(c if c.isalnum() or c in ".+-" else "-" for c in part) for part in parts)
    if any(":" in attack for attack in question.attacks) or len(name) > LONGEST:  # may be cut, or like another
        name = f"{name[:LONGEST]}_{hashlib.sha256(repr(parts).encode()).hexdigest()[:8]}"
    return name
