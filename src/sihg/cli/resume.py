"""`sihg resume`: continue a run that was interrupted or killed."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sihg.cli.common import add_common, add_logger, print_warnings, use_threads
from sihg.cli.setting_flags import add_settings_arguments, read_settings_arguments
from sihg.errors import InputError

if TYPE_CHECKING:
    from sihg.store.run_folder import RunFolder


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", summary: str) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "resume",
        help=summary,
        description="Continue a run from its newest undamaged checkpoint. It ends as if it had never been interrupted.",
        allow_abbrev=False,
    )
    parser.add_argument("folder", type=Path, metavar="RUN", help="the folder of the run")
    add_common(parser)
    add_logger(parser)
    add_settings_arguments(parser, hidden=True)  # to say why they cannot be changed
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Restore the newest checkpoint and train to the end."""
    from sihg.cli.train import TrainingOutput, name_last_checkpoint, print_result
    from sihg.robust.training.config import read_run_settings
    from sihg.robust.training.preflight import prepare
    from sihg.robust.training.trainer import Trainer
    from sihg.store.run_folder import RunFolder, locked

    for name in read_settings_arguments(args):
        raise InputError("resume-settings", flag=f"--{name.replace('_', '-')}")
    folder = RunFolder.open(args.folder)
    settings = read_run_settings(folder.config)
    count = _threads(folder, args.threads)
    with (
        print_warnings(),
        use_threads(count),
        TrainingOutput(args.logger) as output,
        locked(folder.path),
        name_last_checkpoint(folder),
    ):
        trainer = Trainer(prepare(settings, data_dir=args.data_dir or folder.data_folder()), folder)
        for text in trainer.resume():
            print(f"skipped damaged checkpoint {text}", file=sys.stderr)
        here = trainer.progress
        if here.epoch >= settings.epochs:
            print(f"{folder.path} is already finished", file=sys.stderr)
        else:
            print(f"continuing at epoch {here.epoch + 1}, batch {here.number + 1}", file=sys.stderr)
        trained = trainer.run(output)
    return print_result(trained, folder, settings, as_json=args.json)


def _threads(folder: "RunFolder", asked: int | None) -> int | None:
    """Return the number of threads that the run began with, unless another is asked for or the cores are too few."""
    import torch

    began = folder.read_environment().threads
    if began is None:
        return asked
    if asked is None and isinstance(began, int) and 0 < began <= (os.cpu_count() or 1):
        return began
    now = asked or torch.get_num_threads()
    if now != began:
        print(
            f"warning: the run began with {began} threads and continues with {now}: "
            "results repeat bit by bit only with the same number",
            file=sys.stderr,
        )
    return asked
