"""`sihg evaluate`: measure the accuracy of a trained model under attacks."""

import argparse
import warnings
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sihg.cli.common import add_common, add_threads, add_trust, count, print_warnings
from sihg.cli.evaluation_progress import EvaluationDisplay
from sihg.cli.evaluation_tables import Records, check_lines, json_text, results_table
from sihg.cli.terminal import say, show
from sihg.errors import InputError
from sihg.robust.attacks.registry import ATTACK_FORMS
from sihg.store.schema import CurveRecord

if TYPE_CHECKING:
    from sihg.robust.evaluation.evaluate_run import PreparedEvaluation, Result

EPILOG = """examples:
  sihg evaluate runs/first
  sihg evaluate runs/first --attacks natural,pgd-20,standard --checkpoint best
  sihg evaluate runs/pgd runs/msi-hg --attacks natural,pgd-20
  sihg evaluate runs/first --curve 0:0.5:11 --attacks pgd-20
  sihg evaluate runs/first --minimum 0.5 --attacks fab-t,pgd-20
  sihg evaluate runs/first --target 3 --attacks natural,pgd-20,apgd-t
  sihg evaluate runs/first --attacks square-1000,noise,transfer:runs/pgd --samples 1000
  sihg evaluate runs/first --attacks standard --bpda defence=identity
  sihg evaluate runs/first --attacks natural,apgd-ce,apgd-t --eot 20
  sihg evaluate weights.safetensors --model preact-resnet18 --data cifar10 --eps 8/255
  sihg evaluate checkpoint.pt --model nets.py:make --normalise cifar10 --data cifar10 --eps 8/255 --out runs/theirs
  sihg evaluate hf:models/vit-cifar10 --data cifar10 --eps 8/255
  sihg evaluate robustbench:Carmon2019Unlabeled --data cifar10 --eps 8/255 --attacks standard

attacks (R: restarts, each on the samples that are not broken yet):
"""
EPILOG += "".join(f"  {form:22} {about}\n" for form, about in ATTACK_FORMS.items())
EPILOG += """
A sample counts as broken when it is misclassified at any point that an attack looks at; with --last-iterate, for
fgsm, mi-fgsm and pgd, when it is misclassified at the end of a restart. The table ends with the accuracy under all
attacks together, then the certified one. A random model is asked 10 times at each point, and a sample is broken if at
least half of the answers are wrong; `mean` is the share of right answers, `worst` that of samples without a wrong
one. Checks warn if the result may mislead: docs/checks.md explains each. If an evaluation is interrupted, the same
command continues it; if it has ended, the same command shows its record, and --again makes it anew. Under torchrun the
processes share the samples. Records are kept in RUN/evaluation: NAME.json the table, NAME.npz what each attack found
per sample. RUN/gallery.npz has a sample of each class before and after the strongest attack. `sihg report RUN` shows
them.
"""
CHANGES = ("eps", "norm", "bounds", "data", "model", "width")  # flags that change settings of the run


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", summary: str) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "evaluate",
        help=summary,
        description="Attack the model of a run, or one from elsewhere, and measure its accuracy.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "paths",
        type=Path,
        nargs="+",
        metavar="RUN|FILE|LIBRARY:NAME",
        help="runs, checkpoints of runs, weights files, timm:NAME, hf:FOLDER or robustbench:NAME",
    )
    parser.add_argument(
        "--attacks", metavar="A,B", help="names, by comma (default: natural,pgd-20; with --minimum fab-t,pgd-20)"
    )
    parser.add_argument("--samples", type=count, metavar="N", help="how many, each class in proportion (default: all)")
    parser.add_argument("--split", default="test", metavar="S", help="test or train (default: test)")
    parser.add_argument("--checkpoint", metavar="C", help="of a run: last or best (default: last)")
    parser.add_argument("--seed", type=count, default=0, metavar="S", help="of the subset and the attacks (default: 0)")
    parser.add_argument(
        "--last-iterate", action="store_true", help="of fgsm, mi-fgsm and pgd, count only the end of a restart"
    )
    parser.add_argument(
        "--precision",
        default="float32",
        metavar="P",
        help="number format in which attacks search: float32, bfloat16 or auto; float32 judges (default: float32)",
    )
    parser.add_argument(
        "--bpda",
        action="append",
        default=[],
        metavar="M=G",
        help="give module M the gradient of G in the backward pass: identity, or path.py:function; may be repeated",
    )
    parser.add_argument(
        "--batch-size",
        type=count,
        metavar="N",
        help="the most samples to attack at once (default: as many as are fast)",
    )
    parser.add_argument(
        "--eot",
        type=count,
        default=1,
        metavar="K",
        help="of a random model, average gradients over K draws; 20 is usual",
    )
    parser.add_argument(
        "--votes",
        type=count,
        metavar="N",
        help="draws that classify a point (default: 10 if the model is random, else 1)",
    )
    parser.add_argument("--curve", metavar="A:B:N", help="accuracy at N radii from A to B, such as 0:8/255:9")
    parser.add_argument(
        "--minimum", metavar="E", help="find the smallest eps at which each sample falls, up to E (fab-t, pgd, ...)"
    )
    parser.add_argument(
        "--target", type=count, metavar="C", help="attack towards class C, whose own samples are left out"
    )
    parser.add_argument("--points", action="store_true", help="keep the adversarial examples, NAME.points.npy")
    parser.add_argument("--again", action="store_true", help="evaluate again although the same evaluation has a record")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the folder of the records (default: RUN/evaluation)")
    threat = parser.add_argument_group("the attacker (default: as the run was trained)")
    threat.add_argument("--eps", metavar="E", help="radius of the ball, such as 8/255")
    threat.add_argument("--norm", metavar="N", help="linf, l2 or l1; also as AutoAttack writes it, Linf")
    threat.add_argument("--bounds", metavar="LOW,HIGH", help="the range of x + delta; none for no bounds")
    needs = "default: the run's; a file needs --model, --data and a radius, a library's model the last two"
    what = parser.add_argument_group(f"the model ({needs})")
    what.add_argument("--data", metavar="D", help="the data set, see `sihg data list`")
    what.add_argument("--model", metavar="M", help="the model, as in `sihg train`")
    what.add_argument("--width", metavar="W", help="factor on its number of channels")
    what.add_argument("--device", metavar="D", help="where to compute: cpu, cuda, mps, ...")
    theirs = parser.add_argument_group("a model from elsewhere")
    theirs.add_argument(
        "--normalise",
        metavar="N",
        help="what it does to values in [0, 1] first: imagenet, cifar10, cifar10-per-image, cifar100, svhn, mnist, "
        "fashion-mnist, clip, half (to [-1, 1]), 255 (to [0, 255]), none, or MEAN/STD such as "
        "0.5,0.5,0.5/0.2,0.2,0.2 (default: as found)",
    )
    theirs.add_argument("--weights-key", metavar="K", help="which weights of a file with several (default: averaged)")
    theirs.add_argument("--download", action="store_true", help="download weights that are not on this machine")
    add_trust(parser)
    add_common(parser)
    add_threads(parser, "threads to compute with; the last digits of results depend on it (default: 1)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Evaluate each model and keep its record at once; print the tables, also if a later model fails."""
    from sihg.core.processes import join_processes
    from sihg.core.threads import use_threads
    from sihg.robust.evaluation.evaluate_run import EvaluationRequest, find_targets, prepare
    from sihg.robust.evaluation.partial import EvaluationWarning

    names = (
        "split",
        "samples",
        "seed",
        "target",
        "last_iterate",
        "precision",
        "batch_size",
        "eot",
        "votes",
        "checkpoint",
        "curve",
        "minimum",
        "points",
        "device",
        "trust",
        "normalise",
        "weights_key",
        "download",
    )
    request = EvaluationRequest(
        **({} if args.attacks is None else {"attacks": args.attacks}),
        changes={name: getattr(args, name) for name in CHANGES if getattr(args, name) is not None},
        bpda=parse_bpda(args.bpda),
        **{name: getattr(args, name) for name in names},
    )
    several = len(args.paths) > 1
    records: Records = []
    files: list[Path] = []
    lost: list[str] = []
    with print_warnings():
        warnings.simplefilter("always", EvaluationWarning)
        targets = find_targets(args.paths, request, out=args.out)
    chosen = targets[0].weights.settings
    with (
        join_processes(chosen.device, minutes=chosen.process_minutes) as processes,
        print_warnings(),
        use_threads(1 if args.threads is None else args.threads),
        EvaluationDisplay() as display,
    ):
        warnings.simplefilter("always", EvaluationWarning)
        try:
            for target in targets:
                display.prefix = f"{target.title}: " if several else ""
                prepared = prepare(target, data_dir=args.data_dir, processes=processes)
                if prepared.task.remark:
                    say(f"precision: {prepared.task.header.precision} ({prepared.task.remark})")
                stored = None if args.again else prepared.find_stored()
                if stored is not None:
                    say(f"{_describe_stored(stored)}; --again makes it anew")
                result = _run(prepared, display) if stored is None else stored
                records.append((target.title, result.record))
                try:
                    files += _save(prepared, result)
                except (InputError, OSError) as error:
                    lost.append(f"the record of {target.title} is not kept: {error}")
        finally:
            display.close()
            _print_results(records, as_json=args.json, several=several)
            for path in files:
                say(f"record: {path}")
            for message in lost:
                say(f"sihg: error: {message}")
    wrong = [check for _, record in records for check in record.checks if check.result == "error"]
    return 2 if lost or wrong else 0


def parse_bpda(texts: Iterable[str]) -> dict[str, str]:
    """Convert texts such as "defence=identity" to a dict."""
    found: dict[str, str] = {}
    for text in texts:
        module, _, replacement = text.partition("=")
        if not replacement:
            raise InputError("bpda-form", text=text)
        if module in found:
            raise InputError("bpda-twice", module=module)
        found[module] = replacement
    return found


def _run(prepared: "PreparedEvaluation", display: EvaluationDisplay) -> "Result":
    """Attack and check; say with how many verdicts it continues, and how many are kept if it is interrupted."""
    if prepared.verdicts:
        say(f"continuing: {prepared.verdicts} verdicts are known")
    try:
        return prepared.run(display)
    except BaseException as error:
        display.close()
        if prepared.verdicts:
            say(f"{prepared.verdicts} verdicts are kept: the same command continues from there")
        elif isinstance(error, KeyboardInterrupt):
            say("no verdict is kept: the same command starts over")
        raise


def _describe_stored(result: "Result") -> str:
    assert result.stored is not None
    made = datetime.fromtimestamp(result.stored.stat().st_mtime).astimezone()
    return f"not evaluated again: the record {result.stored} is of {made:%Y-%m-%d %H:%M}"


def _save(prepared: "PreparedEvaluation", result: "Result") -> list[Path]:
    files, home, record = prepared.save(result), prepared.target.home, result.record
    if home is not None and files and isinstance(record, CurveRecord):
        from sihg.report.figures.radius import save_record_curves

        files[1:1] = save_record_curves(record, home, prepared.target.name)
    return files


def _print_results(records: Records, *, as_json: bool, several: bool) -> None:
    """Print the results, if there are any, then notes and checks."""
    if not records:
        return
    show(json_text(records, several=several) if as_json else results_table(records, several=several))
    for line in check_lines(records, several=several):
        say(line)
