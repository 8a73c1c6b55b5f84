"""`sihg train`: train a model that withstands attacks, in a run folder of its own."""

import argparse
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sihg.cli.running import Pairs, Telling, add_common, last_good, pairs, show, showing_warnings, threads
from sihg.errors import InputError

if TYPE_CHECKING:
    from sihg.robust.training.config import Settings

EPILOG = """examples:
  sihg train --out runs/first
  sihg train --data mnist --method pgd --eps 0.3 --epochs 10 --out runs/mnist-pgd
  sihg train --preset svhn --tau 6/255 --flip --set schedule.peak=4 --out runs/svhn --data-dir /data
  sihg train --config runs/svhn/config.toml --seed 1 --out runs/svhn-1
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
        usage="sihg train --out RUN [--preset NAME | --config FILE] [--data D] [--method M] [--SETTING VALUE ...]",
        description="Train a model by MSI-HG or another method; RUN keeps all that is needed to go on and to evaluate.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument("-h", "--help", action=FullHelp, help="show this, with all settings, and stop")
    parser.add_argument("--out", type=Path, metavar="RUN", help="the folder of the run")
    parser.add_argument("--preset", metavar="NAME", help="settings to begin with (default: the preset of the data)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings in TOML, such as those of a run")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting, such as schedule.peak=5; repeat"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier run in RUN")
    add_common(parser)
    parser.set_defaults(run=run, takes_settings=True)


def run(args: argparse.Namespace) -> int:
    """Check everything, make the folder, train."""
    from sihg.robust.training.fit import check_free, prepare, run_in
    from sihg.store.run_folder import RunFolder

    given = pairs(args.settings) + [assigned(text) for text in args.set]
    settings = chosen(args.preset, given, config=args.config).complete()
    if args.out is None:
        raise InputError("no run folder named: give --out, such as --out runs/first")
    check_free(args.out, overwrite=args.overwrite)
    folder = RunFolder(args.out)
    with showing_warnings(), threads(args.threads), Telling() as tell, last_good(folder):
        prepared = prepare(settings, data_dir=args.data_dir)
        held = 0 if prepared.held_out is None else len(prepared.held_out)
        watched = "held out" if settings.validate_on == "train" else "test samples to watch"
        print(f"samples: {len(prepared.train)} to train on, {held} {watched}", file=sys.stderr)
        trained = run_in(args.out, prepared, overwrite=args.overwrite, data_dir=args.data_dir, on_event=tell)
    return show(trained, folder, settings, as_json=args.json)


# ---- settings


def assigned(text: str) -> tuple[str, str | None]:
    """A setting in KEY=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InputError(f"--set {text!r} is not of the form KEY=VALUE, such as schedule.peak=5")
    return name, value


def chosen(preset: str | None, given: Pairs, *, config: Path | None = None) -> "Settings":
    """The config, or the preset (that of the data, where neither is named), with what is given."""
    from sihg.robust.training.config import Settings, read_presets, read_settings
    from sihg.robust.training.config import read_preset as preset_settings
    from sihg.store.toml import from_toml

    if preset and config:
        raise InputError(f"--preset {preset} and --config {config} are both settings to begin with: leave out one")

    named = {name.replace("-", "_").removesuffix(".name"): value for name, value in given}
    for name in ("method", "data"):
        if name in named and named[name] is None:
            raise InputError(f"--{name} needs a value: `sihg train --help` lists what there is")
    method, base = named.get("method"), preset or named.get("data") or Settings().data
    if config:
        settings = read_settings(config, method)
        print(f"settings: {config}", file=sys.stderr)
        if ":" in (named.get("data") or settings.data) and not {"eps"} & (named.keys() | from_toml(config).keys()):
            raise InputError(f"{config} has data of your own and no eps, which is yours to say: such as eps = 0.1")
    elif preset or base in read_presets():
        settings = preset_settings(base, method)
        print(f"settings: preset {base}", file=sys.stderr)
    else:
        if ":" in base and "eps" not in named:
            raise InputError(f"no preset is for {base!r}, so eps is yours to say: such as --eps 8/255")
        settings = Settings().with_values({"method": method} if method else {})
    return with_given(settings, given)


def with_given(settings: "Settings", given: Pairs) -> "Settings":
    """Settings changed by what was typed."""
    from sihg.robust.training.config import resolve_name

    values: dict[str, Any] = {}
    for name, value in given:
        full = resolve_name(name, settings.method.name)
        if value is None and not _is_switch(settings, full):
            raise InputError(f"--{name} needs a value, such as --{name} 1: only switches stand alone")
        values[full] = "true" if value is None else value
    return settings.with_values(values)


def _is_switch(settings: "Settings", full: str) -> bool:
    """Whether a setting is true or false."""
    from sihg.robust.methods.registry import method_fields

    section, _, key = full.partition(".")
    if section == "method":
        return key in (own := method_fields(settings.method.name)) and isinstance(own[key].default, bool)
    return key in ("nesterov", "amsgrad", "maximize") if key else isinstance(getattr(settings, section), bool)


def listing() -> str:
    """Every setting with its default and its meaning, in groups."""
    from sihg.robust.methods.registry import METHODS, method_fields
    from sihg.robust.training.config import SECTIONS, OptimizerOptions, Settings, read_presets
    from sihg.robust.training.schedules import SCHEDULES

    lines = ["settings of every run (the defaults are those without a preset):"]
    lines += [_line(f.name, f.default, f.metadata["help"]) for f in fields(Settings) if f.name not in SECTIONS]
    for method, entry in METHODS.items():
        about = " ".join((entry.settings.__doc__ or "").partition("\n\n")[0].split())
        lines += ["", f"--method {method}: {about}"]
        run = {f.name for f in fields(Settings)}
        own = {name: item for name, item in method_fields(method).items() if name not in run}
        lines += [_line(name, item.default, item.metadata["help"]) for name, item in own.items()]
    lines += [
        "",
        "--optimizer NAME: any of torch.optim in any case, such as sgd or adamw; its options as optimizer.OPTION",
    ]
    lines += [
        _line(f.name, Settings().optimizer.options.get(f.name), f.metadata["help"]) for f in fields(OptimizerOptions)
    ]
    lines += ["", "--schedule NAME: the learning rate over the epochs"]
    for name, kind in SCHEDULES.items():
        lines.append(f"  {name:22} {(kind.__doc__ or '').strip().splitlines()[0]}")
        options = [f for f in fields(kind) if f.name not in ("lr", "epochs")]
        lines += [_line(f"schedule.{f.name}", None if f.default is MISSING else f.default, "") for f in options]
    lines += ["", "--preset NAME:"]
    return "\n".join(lines + [f"  {name:22} {table.get('about', '')}" for name, table in read_presets().items()])


def _line(name: str, default: Any, about: str) -> str:
    shown = "" if default is None or default is MISSING else f" (default: {_plain(default)})"
    return f"  --{name.replace('_', '-'):20} {about}{'' if 'default' in about else shown}".rstrip()


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(f"{v:g}" for v in value) if isinstance(value, tuple) else str(value)
