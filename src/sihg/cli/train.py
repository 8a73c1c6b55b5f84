"""`sihg train`: train a model that withstands attacks, in a new run folder."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sihg.cli.running import (
    TrainingOutput,
    add_common,
    add_logger,
    name_last_checkpoint,
    print_result,
    print_warnings,
    use_threads,
)
from sihg.cli.setting_flags import add_settings_arguments, read_settings_arguments
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


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", summary: str) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "train",
        help=summary,
        usage="sihg train --out RUN [--preset NAME | --config FILE] [--data D] [--method M] [--SETTING VALUE ...]",
        description="Train a model by MSI-HG or another method. RUN keeps what is needed to resume and to evaluate.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--out", type=Path, metavar="RUN", help="the folder of the run")
    parser.add_argument("--preset", metavar="NAME", help="settings to begin with (default: the preset of the data)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings in TOML, such as config.toml of a run")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier run in RUN")
    add_common(parser)
    add_logger(parser)
    add_settings_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check everything, make the folder, train."""
    from sihg.robust.training.fit import check_free, prepare, run_in
    from sihg.store.run_folder import RunFolder

    settings = choose_settings(args.preset, read_settings_arguments(args), config=args.config).complete()
    if args.out is None:
        raise InputError("out-missing")
    check_free(args.out, overwrite=args.overwrite)
    folder = RunFolder(args.out)
    with (
        print_warnings(),
        use_threads(args.threads),
        TrainingOutput(args.logger) as output,
        name_last_checkpoint(folder),
    ):
        prepared = prepare(settings, data_dir=args.data_dir)
        held = 0 if prepared.held_out is None else len(prepared.held_out)
        source = "held out" if settings.validate_on == "train" else "of the test set held out"
        print(f"samples: {len(prepared.train)} to train on, {held} {source}", file=sys.stderr)
        trained = run_in(args.out, prepared, overwrite=args.overwrite, data_dir=args.data_dir, on_event=output)
    return print_result(trained, folder, settings, as_json=args.json)


def choose_settings(preset: str | None, given: Mapping[str, str], *, config: Path | None = None) -> "Settings":
    """Return the settings of the config or the preset (default: the preset of the data), changed by those given."""
    from sihg.robust.training.config import Settings, read_preset, read_presets, read_settings
    from sihg.store.toml import from_toml

    if preset and config:
        raise InputError("preset-and-config", preset=preset, config=config)
    method, base = given.get("method"), preset or given.get("data") or Settings().data
    if config:
        settings = read_settings(config, method)
        print(f"settings: {config}", file=sys.stderr)
        if ":" in given.get("data", settings.data) and "eps" not in given.keys() | from_toml(config).keys():
            raise InputError("config-without-eps", config=config)
    elif preset or base in read_presets():
        settings = read_preset(base, method)
        print(f"settings: preset {base}", file=sys.stderr)
    else:
        if ":" in base and "eps" not in given:
            raise InputError("own-data-eps", base=base)
        settings = Settings().with_values({"method": method} if method else {})
    return settings.with_values(given)
