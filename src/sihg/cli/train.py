"""`sihg train`: train a model that withstands attacks, in a run folder of its own."""

import argparse
import json
import shlex
import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sihg.cli.numbers import whole
from sihg.errors import InputError, SihgError

if TYPE_CHECKING:
    from sihg.robust.settings import Settings
    from sihg.robust.trainer import Trained
    from sihg.runs.folder import RunFolder

Pairs = list[tuple[str, str | None]]  # settings as typed; None: a switch without a value
EPILOG = """examples:
  sihg train --out runs/first
  sihg train --data mnist --method pgd --eps 0.3 --epochs 10 --out runs/mnist-pgd
  sihg train --preset svhn --tau 6/255 --flip --set schedule.peak=4 --out runs/svhn --data-dir /data
  sihg train --data npz:mine.npz --model mypackage.nets:make --eps 8/255 --optimizer adamw --lr 1e-3 --out runs/mine
"""


class FullHelp(argparse.Action):
    """Help with every setting; only then are they loaded."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "nargs": 0})

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print and stop."""
        parser.epilog = f"{listing()}\n\n{EPILOG}"
        parser.print_help()
        parser.exit()


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "train",
        help="train a model that withstands attacks",
        usage="sihg train --out RUN [--preset NAME] [--data D] [--method M] [--SETTING VALUE ...] [options]",
        description="Train a model by MSI-HG or another method; RUN keeps all that is needed to go on and to evaluate.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument("-h", "--help", action=FullHelp, help="show this, with all settings, and stop")
    parser.add_argument("--out", type=Path, metavar="RUN", help="the folder of the run")
    parser.add_argument("--preset", metavar="NAME", help="settings to begin with (default: the preset of the data)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting, such as schedule.peak=5; repeat"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier run in RUN")
    add_common(parser)
    parser.set_defaults(run=run, takes_settings=True)


def add_common(parser: argparse.ArgumentParser) -> None:
    """What every command that computes with data takes."""
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="the folder of the data files")
    parser.add_argument("--threads", type=whole, metavar="N", help="threads to compute with")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Check everything, make the folder, train."""
    from sihg.robust.fit import prepare
    from sihg.robust.trainer import Trainer
    from sihg.runs.folder import RunFolder

    settings = chosen(args.preset, pairs(args.settings) + [_assigned(text) for text in args.set])
    if args.out is None:
        raise InputError("no run folder named: give --out, such as --out runs/first")
    if args.out.exists() and not args.overwrite:
        RunFolder.create(args.out)  # says at once that it is taken
    with showing_warnings(), threads(args.threads), Telling() as tell:
        # What is wrong with the data or the settings shows here, before there is a folder; mapped files need one.
        ready = prepare(replace(settings, memory_files=False), data_dir=args.data_dir, tell=tell)
        with _new_run(args.out, settings, overwrite=args.overwrite) as folder, last_good(folder):
            trainer = Trainer(ready.model, ready.train, settings, held_out=ready.held_out, folder=folder, tell=tell)
            trained = trainer.run()
    return show(trained, folder, settings, as_json=args.json)


# ---- settings


def pairs(words: Sequence[str]) -> Pairs:
    """The settings in words such as --lr 0.1 --crop=4 --flip."""
    found: Pairs = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--":
            raise InputError(f"{word!r} belongs to no setting: write --setting value, see `sihg train --help`")
        name, equals, value = word.removeprefix("--").partition("=")
        if equals:
            found.append((name, value))
        else:
            found.append((name, None if not rest or rest[0].startswith("--") else rest.pop(0)))
    return found


def _assigned(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InputError(f"--set {text!r} is not of the form KEY=VALUE, such as schedule.peak=5")
    return name, value


def chosen(preset: str | None, given: Pairs) -> "Settings":
    """The preset (that of the data, where none is named) with what is given."""
    from sihg.robust.settings import Settings, dotted_name, presets
    from sihg.robust.settings import preset as preset_settings

    named = {name.replace("-", "_").removesuffix(".name"): value for name, value in given}
    for name in ("method", "data"):
        if name in named and named[name] is None:
            raise InputError(f"--{name} needs a value: `sihg train --help` lists what there is")
    method, base = named.get("method"), preset or named.get("data") or Settings().data
    if preset or base in presets():
        settings = preset_settings(base, method)
        print(f"settings: preset {base}", file=sys.stderr)
    else:
        if ":" in base and "eps" not in named:
            raise InputError(f"no preset is for {base!r}, so eps is yours to say: such as --eps 8/255")
        settings = Settings().with_values({"method": method} if method else {})
    values: dict[str, Any] = {}
    for name, value in given:
        full = dotted_name(name, settings.method["name"])
        if value is None and not _is_switch(settings, full):
            raise InputError(f"--{name} needs a value, such as --{name} 1: only switches stand alone")
        values[full] = "true" if value is None else value
    return settings.with_values(values)


def _is_switch(settings: "Settings", full: str) -> bool:
    """Whether a setting is true or false."""
    from sihg.robust.methods import hyperparameters

    section, _, key = full.partition(".")
    if section == "method":
        return isinstance(hyperparameters(settings.method["name"]).get(key, (None, ""))[0], bool)
    return key in ("nesterov", "amsgrad", "maximize") if key else isinstance(getattr(settings, section), bool)


def listing() -> str:
    """Every setting with its default and its meaning, in groups."""
    from sihg.robust.methods import METHODS, hyperparameters
    from sihg.robust.schedules import SCHEDULES
    from sihg.robust.settings import SECTIONS, SHORT, THREAT, Settings, presets

    lines = ["settings of every run (the defaults are those without a preset):"]
    lines += [_line(f.name, f.default, f.metadata["help"]) for f in fields(Settings) if f.name not in SECTIONS]
    for method, kind in METHODS.items():
        about = " ".join((kind.__doc__ or "").partition("\n\n")[0].split())
        lines += ["", f"--method {method}: {about}"]
        own = {name: both for name, both in hyperparameters(method).items() if name not in THREAT}
        lines += [_line(name, default, about) for name, (default, about) in own.items()]
    lines += [
        "",
        "--optimizer NAME: any of torch.optim in any case, such as sgd or adamw; its options as optimizer.OPTION",
    ]
    lines += [_line(name, Settings().optimizer.get(name), f"short for {full}") for name, full in SHORT.items()]
    lines += ["", "--schedule NAME: the learning rate over the epochs"]
    for name, kind in SCHEDULES.items():
        lines.append(f"  {name:22} {(kind.__doc__ or '').strip().splitlines()[0]}")
        options = [f for f in fields(kind) if f.name not in ("lr", "epochs")]
        lines += [_line(f"schedule.{f.name}", None if f.default is MISSING else f.default, "") for f in options]
    lines += ["", "--preset NAME:"]
    return "\n".join(lines + [f"  {name:22} {table.get('about', '')}" for name, table in presets().items()])


def _line(name: str, default: Any, about: str) -> str:
    shown = "" if default is None or default is MISSING else f" (default: {_plain(default)})"
    return f"  --{name.replace('_', '-'):20} {about}{'' if 'default' in about else shown}".rstrip()


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(f"{v:g}" for v in value) if isinstance(value, tuple) else str(value)


# ---- the folder


@contextmanager
def _new_run(out: Path, settings: "Settings", *, overwrite: bool) -> "Iterator[RunFolder]":
    """The locked folder of a new run; what fails before its first checkpoint leaves nothing behind."""
    import torch

    from sihg.runs.folder import RunFolder
    from sihg.runs.lock import locked

    fresh = not out.exists()
    folder = RunFolder.create(out, overwrite=overwrite)
    with ExitStack() as lock:
        lock.enter_context(locked(folder.path))
        RunFolder.create(out)  # looked at again, now that nobody can come between
        try:
            folder.write_config(settings.as_dict())
            folder.write_environment({"threads": torch.get_num_threads()})
            yield folder
        except SihgError:
            if not _last_checkpoints(folder):
                _clear(folder, whole=fresh)
            raise


def _clear(folder: "RunFolder", *, whole: bool) -> None:
    for path in [folder.path] if whole else [folder.path / name for name in folder.NAMES]:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _last_checkpoints(folder: "RunFolder") -> list[Path]:
    """The checkpoints to go on from, whole or not, the newest first."""
    return sorted(folder.checkpoints.glob("last-*"), reverse=True)


@contextmanager
def last_good(folder: "RunFolder") -> Iterator[None]:
    """Tell, with training that has left the numbers, where it was still well."""
    from sihg.errors import NotFiniteError

    try:
        yield
    except NotFiniteError as error:
        kept = "".join(f"; the last good checkpoint is kept: {path}" for path in _last_checkpoints(folder)[:1])
        raise NotFiniteError(f"{error}{kept}") from error


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Compute with so many threads."""
    import torch

    if count == 0:
        raise InputError("--threads must be at least 1, got 0: leave it out for torch's own choice")
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# ---- what is said


@contextmanager
def showing_warnings() -> Iterator[None]:
    """Print our warnings as one line each."""
    from sihg.robust.data import DataWarning
    from sihg.robust.weights import CheckpointWarning

    with warnings.catch_warnings():
        warnings.simplefilter("always", DataWarning)
        warnings.simplefilter("always", CheckpointWarning)
        warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr, flush=True)
        yield


class Telling:
    """Hears of steps, epochs and warnings, and says them on standard error."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._bar: Any = None

    def __enter__(self) -> "Telling":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __call__(self, event: str, about: dict[str, Any]) -> None:
        """Say it."""
        if event == "step":
            if self._bar is None:
                from sihg.cli.progress import Bar

                self._bar = self._stack.enter_context(Bar("training", about["steps"], "steps"))
            self._bar.update(about["step"], f"loss {about['row']['loss']:.3f}")
        elif event == "epoch":
            print(_epoch_line(about), file=sys.stderr, flush=True)
        elif event == "warning":
            print(f"warning: {about['text']}", file=sys.stderr, flush=True)


def _epoch_line(row: dict[str, Any]) -> str:
    held = "" if row["robust"] is None else f", held out {_percent(row['natural'])} / {_percent(row['robust'])} robust"
    return f"epoch {row['epoch']}: loss {row['loss']:.3f}{held}, {row['seconds']:.1f} s, {row['passes']:.1f} passes"


def show(trained: "Trained", folder: "RunFolder", settings: "Settings", *, as_json: bool) -> int:
    """Print how the run ended and what to do next; give the exit code."""
    from sihg.runs.tables import read_table

    rows = read_table(folder.metrics)
    last = {key: float(value) if value else None for key, value in rows[-1].items()} if rows else None
    run = shlex.quote(str(folder.path))
    if as_json:
        about = {"run": str(folder.path), "data": settings.data, "method": settings.method["name"]}
        ended = {"finished": trained.finished, "stopped": trained.stopped, "warnings": trained.warnings}
        print(json.dumps({**about, **ended, "last": last, "best": trained.best}, indent=1))
    elif last is not None:
        print(_table(last, trained.best, settings, folder))
    print(f"next: sihg evaluate {run}" if trained.finished else f"to go on: sihg resume {run}", file=sys.stderr)
    return 0 if trained.finished else 130


def _table(last: dict[str, Any], best: dict[str, Any] | None, settings: "Settings", folder: "RunFolder") -> str:
    from rich.console import Console
    from rich.table import Table

    console = Console() if Console().is_terminal else Console(width=140)
    table = Table()
    for heading in ("method", "epochs", "last %", "best %", "passes", "seconds"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    table.add_row(
        *(settings.method["name"], f"{last['epoch']:.0f}", _both(last)),
        *("-" if best is None else f"{_both(best)} (epoch {best['epoch']})",),
        *(f"{last['passes']:.1f}", f"{last['seconds']:.1f}"),
    )
    with console.capture() as capture:
        about = f"{settings.data}, eps {settings.eps:g}, held out natural / robust: {folder.path}"
        console.print(about, highlight=False, markup=False)
        console.print(table, markup=False)
    return capture.get().rstrip()


def _both(row: dict[str, Any]) -> str:
    return "-" if row["robust"] is None else f"{100 * row['natural']:.1f} / {100 * row['robust']:.1f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
