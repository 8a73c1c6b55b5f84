"""`sihg train`: train a model that withstands attacks, in a new run folder."""

import argparse
import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sihg.cli.common import add_common, add_log, add_trust, print_warnings
from sihg.cli.setting_flags import add_settings_arguments, read_settings_arguments
from sihg.cli.terminal import format_table, say, show
from sihg.cli.training_display import TrainingDisplay
from sihg.errors import InputError, NotFiniteError
from sihg.robust.training.events import EpochDone, Event, StepDone, WarningRaised

if TYPE_CHECKING:
    from sihg.core.processes import Processes
    from sihg.robust.training.config import Settings
    from sihg.robust.training.events import Trained
    from sihg.robust.training.preflight import PreparedTraining
    from sihg.robust.training.training_loggers import TrainingLoggers
    from sihg.store.run_folder import RunFolder
    from sihg.store.schema import MetricsRow

EPILOG = """examples:
  sihg train --out runs/first
  sihg train --data mnist --method pgd --eps 0.3 --epochs 10 --out runs/mnist-pgd
  sihg train --preset svhn --tau 6/255 --flip --set schedule.peak=4 --out runs/svhn --data-dir /data
  sihg train --config runs/svhn/config.toml --seed 1 --out runs/svhn-1
  sihg train --log tensorboard,mlflow --out runs/logged
  torchrun --nproc-per-node 4 -m sihg train --data cifar10 --lanes 4 --out runs/cifar10
  sihg train --data npy:arrays --workers 2 --eps 8/255 --out runs/large
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
    add_log(parser)
    add_trust(parser)
    add_settings_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check everything, make the folder, train; continue a run whose processes torchrun starts again."""
    from sihg.core.processes import join_processes
    from sihg.core.threads import use_threads
    from sihg.robust.training.fit import check_free, keep_formats, run_in
    from sihg.robust.training.preflight import prepare
    from sihg.robust.training.training_loggers import TrainingLoggers
    from sihg.store.run_folder import RunFolder

    given = read_settings_arguments(args)
    settings = choose_settings(args.preset, given, config=args.config, trust=args.trust).complete()
    if args.out is None:
        raise InputError("out-missing")
    folder = RunFolder(args.out)
    with (
        join_processes(settings.device, minutes=settings.process_minutes) as processes,
        print_warnings(),
        use_threads(settings.threads),
        TrainingOutput() as output,
        name_last_checkpoint(folder),
    ):
        with processes.together():
            loggers = TrainingLoggers(args.log, is_first=processes.is_first)
        again = any(processes.gather(folder.is_of_launch()))
        if again and args.overwrite:
            say(
                f"--overwrite: the same launch made {folder.path}, so its run is continued; "
                "to replace it, give another --rdzv-id"
            )
        with processes.together():
            if again:
                folder.check_failure()
                settings = keep_formats(settings, folder)
            else:
                check_free(args.out, overwrite=args.overwrite)
            prepared = prepare(settings, data_dir=args.data_dir)
        output.samples = len(prepared.train)
        say(f"samples: {prepared.describe_samples()}")
        for remark in prepared.remarks:
            say(remark)
        if again:
            trained = continue_run(folder, prepared, output, loggers, processes)
        else:
            trained = run_in(
                args.out,
                prepared,
                overwrite=args.overwrite,
                data_dir=args.data_dir,
                loggers=loggers,
                on_event=output,
                processes=processes,
            )
    return print_result(trained, folder, settings, as_json=args.json)


def choose_settings(
    preset: str | None, given: Mapping[str, str], *, config: Path | None = None, trust: bool = False
) -> "Settings":
    """Return the settings of the config or the preset (default: the preset of the data), changed by those given."""
    from sihg.robust.training.config import Settings, read_preset, read_presets, read_settings
    from sihg.robust.training.lengths import change_config, change_preset
    from sihg.store.files import from_toml

    if preset and config:
        raise InputError("preset-and-config", preset=preset, config=config)
    method, base = given.get("method"), preset or given.get("data") or Settings().data
    if config:
        settings = read_settings(config, method, trust=trust)
        say(f"settings: {config}")
        if ":" in given.get("data", settings.data) and "eps" not in given.keys() | from_toml(config).keys():
            raise InputError("config-without-eps", config=config)
        settings, lines = change_config(config, settings, given)
    elif preset or base in read_presets():
        say(f"settings: preset {base}")
        settings, lines = change_preset(f"preset {base}", read_preset(base, method), given)
    else:
        if ":" in base and "eps" not in given:
            raise InputError("own-data-eps", base=base)
        settings = Settings().with_values({"method": method} if method else {})
        settings, lines = change_preset("the default", settings, given)
    for line in lines:
        say(f"settings: {line}")
    return settings


# ---- what a training does and prints, here and in `sihg resume`


def continue_run(
    folder: "RunFolder",
    prepared: "PreparedTraining",
    output: "TrainingOutput",
    loggers: "TrainingLoggers",
    processes: "Processes",
) -> "Trained":
    """Go back to the newest checkpoint and train to the end."""
    from sihg.robust.training.fit import open_run, run_logged
    from sihg.robust.training.trainer import Trainer

    with open_run(folder.path, prepared.settings, processes) as (_, handle):
        with processes.same():
            trainer = Trainer(prepared, folder, handle, processes)
        for text in trainer.resume():
            say(f"skipped damaged checkpoint {text}")
        here = trainer.progress
        if here.epoch >= prepared.settings.epochs:
            say(f"{folder.path} is already finished")
        else:
            say(f"continuing at epoch {here.epoch + 1}, batch {here.number + 1}")
        return run_logged(trainer, loggers, output)


@contextmanager
def name_last_checkpoint(folder: "RunFolder") -> Iterator[None]:
    """Add the newest checkpoint, which is from before the failure, to a NotFiniteError."""
    try:
        yield
    except NotFiniteError as error:
        for path in sorted(folder.checkpoints.glob("last-*"))[-1:]:
            error.args = (f"{error}; the last good checkpoint is kept: {path}",)
        raise


class TrainingOutput:
    """Prints the events of a training on standard error; of several processes only the first does."""

    def __init__(self) -> None:
        self.samples = 0  # to train on; without their number, passes per second are not shown
        self._stack = ExitStack()
        self._display: TrainingDisplay | None = None

    def __enter__(self) -> "TrainingOutput":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __call__(self, event: Event) -> None:
        """Print an event."""
        if isinstance(event, StepDone):
            if self._display is None:
                self._display = self._stack.enter_context(TrainingDisplay(event.steps, self.samples))
            self._display.update(event.step, event.row)
        elif isinstance(event, EpochDone | WarningRaised):
            say(event)


def print_result(trained: "Trained", folder: "RunFolder", settings: "Settings", *, as_json: bool) -> int:
    """Print how the run ended and the next command; return the exit code."""
    run, last = shlex.quote(str(folder.path)), trained.last
    if as_json:
        about = {"run": str(folder.path), "data": settings.data, "method": settings.method.name}
        ended = {"finished": trained.finished, "stopped": trained.stopped, "warnings": trained.warnings}
        cells = last and {key: None if value is None else float(value) for key, value in last.cells().items()}
        found = {"last": cells, "best": trained.best and trained.best.cells()}
        show(json.dumps({**about, **ended, **found}, indent=1))
    elif last is not None:
        show(_table(last, trained.best, settings, folder))
    done = not trained.history and any(folder.evaluation.glob("*.json"))  # evaluated, and not trained on since
    following = f"next: sihg {'report' if done else 'evaluate'} {run}"
    say(following if trained.finished else f"to continue: sihg resume {run}")
    return 0 if trained.finished else 130


def _table(last: "MetricsRow", best: "MetricsRow | None", settings: "Settings", folder: "RunFolder") -> str:
    row = [
        *(settings.method.name, f"{last.epoch}", _accuracies(last)),
        *("-" if best is None else f"{_accuracies(best)} (epoch {best.epoch})",),
        *(f"{last.passes:.1f}", f"{last.seconds:.1f}"),
    ]
    about = f"{settings.data}, eps {settings.eps:g}, held out natural / robust: {folder.path}"
    return format_table(about, ["method", "epochs", "last %", "best %", "passes", "seconds"], [row])


def _accuracies(row: "MetricsRow") -> str:
    """Return natural and robust accuracy on the held-out set in percent."""
    if row.natural is None or row.robust is None:
        return "-"
    return f"{100 * row.natural:.1f} / {100 * row.robust:.1f}"
