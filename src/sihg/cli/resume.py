"""`sihg resume`: continue a run that was interrupted or killed."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from sihg.cli.common import add_common, add_log, add_threads, add_trust, print_warnings
from sihg.cli.setting_flags import add_settings_arguments, read_settings_arguments
from sihg.cli.terminal import say
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
    add_threads(parser, "threads to compute with (default: as the run so far)")
    add_log(parser)
    add_trust(parser)
    add_settings_arguments(parser, skip=("threads",), hidden=True)  # to say why they cannot be changed
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Restore the newest checkpoint and train to the end."""
    from sihg.cli.train import TrainingOutput, continue_run, name_last_checkpoint, print_result
    from sihg.core.processes import join_processes
    from sihg.core.threads import use_threads
    from sihg.robust.training.config import read_run_settings
    from sihg.robust.training.preflight import prepare
    from sihg.robust.training.training_loggers import TrainingLoggers
    from sihg.store.run_folder import RunFolder

    for name in read_settings_arguments(args):
        raise InputError("resume-settings", flag=f"--{name.replace('_', '-')}")
    folder = RunFolder.open(args.folder)
    settings = read_run_settings(folder, trust=args.trust)
    threads = _threads(folder, args.threads)
    with (
        join_processes(settings.device, minutes=settings.process_minutes) as processes,
        print_warnings(),
        use_threads(threads or settings.threads),
        TrainingOutput() as output,
        name_last_checkpoint(folder),
    ):
        with processes.together():
            loggers = TrainingLoggers(args.log, is_first=processes.is_first)
            prepared = prepare(settings, data_dir=args.data_dir or folder.data_folder(trust=args.trust))
        output.samples = len(prepared.train)
        trained = continue_run(folder, prepared, output, loggers, processes)
    return print_result(trained, folder, settings, as_json=args.json)


def _threads(folder: "RunFolder", asked: int | None) -> int | None:
    """Return the number of threads that the run has computed with so far, unless another is asked for."""
    began = folder.threads()
    if began is None and asked is None:
        say("warning: the run does not say how many threads it began with: results may not repeat bit by bit")
    return began if asked is None else asked
