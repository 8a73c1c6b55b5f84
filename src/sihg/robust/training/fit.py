"""From settings or a prepared run to a trained model: the one-line forms."""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sihg.core.processes import ALONE, Processes, check_lanes, given_or_alone
from sihg.core.threads import use_threads
from sihg.errors import InputError
from sihg.launch import is_launched
from sihg.parse import Number, parse_number
from sihg.robust.data.locations import data_folder
from sihg.robust.data.samples import open_samples
from sihg.robust.data.sources import SOURCES
from sihg.robust.methods.base import Method
from sihg.robust.methods.registry import method_fields, name_of
from sihg.robust.training.config import Settings, read_run_settings
from sihg.robust.training.events import OnEvent, Trained
from sihg.robust.training.preflight import PreparedTraining, preflight, prepare, split_off
from sihg.robust.training.state import has_checkpoint
from sihg.robust.training.trainer import Trainer
from sihg.robust.training.training_loggers import TrainingLoggers
from sihg.robust.training.weights import CheckpointWarning
from sihg.store.files import status
from sihg.store.run_folder import FolderHandle, RunFolder, locked
from sihg.store.schema import read_run_config


def fit(
    model: nn.Module,
    data: object,
    *,
    method: str | Method = "msi-hg",
    eps: Number | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    log: str | Iterable[str] = (),
    on_event: OnEvent | None = None,
    processes: Processes | None = None,
    **settings: Any,
) -> Trained:
    """Train your model on your data. Ctrl-C ends the training, not your program: see `finished` of the result.

    Args:
        model: The model, which is trained in place.
        data: Samples, a torch Dataset, or a pair (x, y). Items of a Dataset that do not fit in memory, or are random,
            are read in every epoch, by `workers` processes.
        method: A name such as "msi-hg", or a method such as sihg.PGDAT(eps=0.1).
        eps: The radius of the ball, such as "8/255"; a method object has its own.
        out: A run folder to make (default: none).
        overwrite: Replace an earlier run in `out`.
        resume: Continue the run in `out`, given the same model, data and settings.
        log: Loggers, such as "tensorboard,mlflow", or path.py:Name for one of your own. A resumed run continues those
            that it began with.
        on_event: Called with each event: StepDone, EpochDone, WarningRaised, CheckpointSaved.
        processes: From `join_processes`: all of them call this with the same arguments, and share the lanes. Inside
            `join_processes` it must be given.
        **settings: Those of `sihg train`, such as epochs, lr, tau or ramp.
    Returns:
        The model, the metrics of each epoch and how the training ended.
    Raises:
        InputError: A setting, the model or the data cannot be used, or `out` has a run already.
    Example:
        >>> from sihg.robust import models
        >>> x, y = torch.rand(64, 1, 8, 8), torch.arange(64) % 2
        >>> model = models.build("small-cnn", (1, 8, 8), 2)
        >>> fit(model, (x, y), method="pgd", eps="1/10", epochs=2, steps=3).stopped
        '2 epochs done'
    """
    processes = given_or_alone(processes)
    with processes.together():
        loggers = TrainingLoggers(log, is_first=processes.is_first)
    samples = open_samples(data)
    chosen = Settings(data=f"fit:{samples.name}", model=type(model).__name__, batch_size=min(128, len(samples)))
    chosen = chosen.with_values({**_method_values(method, eps, settings), **settings})
    if out is not None and not resume:
        with processes.together():  # the others wait: the first makes the folder soon
            if processes.is_first:
                _check_free_for_fit(out, overwrite=overwrite)
    if out is not None and resume:
        folder = RunFolder.open(out)
        chosen = keep_formats(chosen, folder)
        chosen = chosen if "threads" in settings else chosen.with_values({"threads": folder.threads() or 1})
    with use_threads(chosen.threads):
        train, held_out = split_off(samples, chosen)
        prepared = preflight(model, train, chosen, held_out, None if isinstance(method, str) else method)
        if resume:
            return resume_in(out, prepared, loggers=loggers, on_event=on_event, processes=processes)
        if out is None:
            return run_logged(Trainer(prepared, processes=processes), loggers, on_event)
        return run_in(out, prepared, overwrite=overwrite, loggers=loggers, on_event=on_event, processes=processes)


def _method_values(method: str | Method, eps: Number | None, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that the method stands for."""
    if isinstance(method, str):
        if eps is None:
            raise InputError("eps-missing")
        return {"method": method, "eps": eps}
    name = name_of(method)
    own = method_fields(name)
    for key in own.keys() & settings.keys():
        raise InputError("method-object-setting", name=key, settings=settings[key])
    given = {key: getattr(method, key) for key in own}
    eps = given.get("eps") if eps is None else parse_number(eps, "eps")
    if eps is None or given.get("eps", eps) != eps:
        raise InputError("method-object-eps", eps=eps, value=given.get("eps"))
    return {**given, "method": name, "eps": eps}


def _check_free_for_fit(out: str | Path, *, overwrite: bool) -> None:
    if not overwrite and status(Path(out) / "config.toml") is not None:
        raise InputError("run-exists", out=out)
    check_free(out, overwrite=overwrite)


def keep_formats(settings: Settings, folder: RunFolder) -> Settings:
    """Replace each `auto` among the number formats by what it was in the run: a resumed run does not measure again."""
    asked = [name for name in ("precision", "train_precision") if getattr(settings, name) == "auto"]
    theirs = read_run_config(folder.config).settings if asked else {}
    return settings.with_values({name: theirs.get(name, "float32") for name in asked})


def run_in(
    out: str | Path,
    prepared: PreparedTraining,
    *,
    overwrite: bool = False,
    data_dir: Path | None = None,
    loggers: TrainingLoggers | None = None,
    on_event: OnEvent | None = None,
    processes: Processes = ALONE,
) -> Trained:
    """Train a prepared run in a new folder.

    Args:
        out: The folder.
        prepared: The run.
        overwrite: Replace an earlier run in the folder.
        data_dir: Where the data was found, for the record.
        loggers: To which the events are passed on.
        on_event: Called with each event.
        processes: Who computes the run. The first one makes the folder and holds its lock.
    """
    with ExitStack() as stack:
        handle = None
        with processes.together():
            check_lanes(prepared.settings.lanes, processes.size)
            if processes.is_first:
                run = new_run(out, prepared.settings, overwrite=overwrite, data_dir=data_dir)
                _, handle = stack.enter_context(run)
        folder = RunFolder.open(out)
        stack.enter_context(_keep_failure(folder, handle, processes))
        return run_logged(Trainer(prepared, folder, handle, processes), loggers, on_event)


def run_logged(trainer: Trainer, loggers: TrainingLoggers | None, on_event: OnEvent | None) -> Trained:
    """Train, and pass the events on to loggers; a resumed run continues those that it began with.

    Args:
        trainer: The run, resumed if it was interrupted.
        loggers: Those that the user asks for (default: none).
        on_event: Called with each event.
    """
    processes, settings = trainer.processes, trainer.prepared.settings
    loggers = loggers or TrainingLoggers(is_first=processes.is_first)
    with ExitStack() as stack:
        with processes.together():
            is_finished = partial(_is_finished, trainer)
            on_event = stack.enter_context(loggers.open(settings, trainer.folder, on_event, is_finished))
        return trainer.run(on_event)


def _is_finished(trainer: Trainer) -> bool:
    return trainer.progress.epoch >= trainer.prepared.settings.epochs


def resume_in(
    out: str | Path | None,
    prepared: PreparedTraining,
    *,
    loggers: TrainingLoggers | None = None,
    on_event: OnEvent | None = None,
    processes: Processes = ALONE,
) -> Trained:
    """Continue a prepared run in its folder; a damaged checkpoint gives a CheckpointWarning."""
    if out is None:
        raise InputError("resume-folder")
    with open_run(out, prepared.settings, processes) as (folder, handle):
        trainer = Trainer(prepared, folder, handle, processes)
        for text in trainer.resume():
            warnings.warn(f"skipped damaged checkpoint {text}", CheckpointWarning, stacklevel=3)
        return run_logged(trainer, loggers, on_event)


def resume_run(
    out: str | Path,
    *,
    data_dir: str | Path | None = None,
    trust: bool = False,
    log: str | Iterable[str] = (),
    on_event: OnEvent | None = None,
    processes: Processes | None = None,
) -> Trained:
    """Continue the run in a folder, from its start if it has no checkpoint yet.

    Args:
        out: The run folder.
        data_dir: The folder of the data files (default: as when the run began).
        trust: Whether a folder that no command of yours made may name code to run and the folder of the data.
        log: Loggers besides those that the run began with, as for `sihg.fit`.
        on_event: Called with each event.
        processes: Who computes the run; their number may have changed. As for `sihg.fit`.
    Returns:
        How the training ended.
    Example:
        >>> from sihg.robust.training import prepare
        >>> small = {"method": "natural", "samples": 20, "epochs": 1, "width": 1 / 4, "validation": 0}
        >>> run_in("run", prepare(Settings().with_values(small))).stopped
        '1 epochs done'
        >>> resume_run("run").finished  # nothing was left to do
        True
    """
    processes = given_or_alone(processes)
    with processes.together():
        loggers = TrainingLoggers(log, is_first=processes.is_first)
    folder = RunFolder.open(out)
    settings = read_run_settings(folder, trust=trust)
    with use_threads(folder.threads() or settings.threads):
        prepared = prepare(settings, data_dir=data_dir or folder.data_folder(trust=trust))
        return resume_in(out, prepared, loggers=loggers, on_event=on_event, processes=processes)


@contextmanager
def open_run(
    out: str | Path, settings: Settings, processes: Processes = ALONE
) -> Iterator[tuple[RunFolder, FolderHandle | None]]:
    """Open the folder of a run; the first process locks it, and alone has its handle.

    After a restart the lock may still be held by a process that has not noticed. The first process waits for it half as
    long as the others wait for the first.

    Args:
        out: The folder.
        settings: The settings of the run.
        processes: Who computes the run.
    """
    with ExitStack() as stack:
        handle = None
        with processes.together():
            check_lanes(settings.lanes, processes.size)
            folder = RunFolder.open(out)
            if processes.is_first:
                seconds = 30 * settings.process_minutes if is_launched() else 0.0
                handle = stack.enter_context(locked(folder.path, wait_seconds=seconds))
                folder.check_failure()
                folder.forget_failure()
        stack.enter_context(_keep_failure(folder, handle, processes))
        yield RunFolder(out), handle


@contextmanager
def _keep_failure(folder: RunFolder, handle: FolderHandle | None, processes: Processes) -> Iterator[None]:
    """Record an InputError if torchrun would start the processes again, only to meet it once more.

    An error of the system, such as a full disk, may be gone by then. Before the first checkpoint nothing is recorded:
    the folder is removed, and a restart takes no time.
    """
    try:
        yield
    except InputError as error:
        is_own = error.printed_by in (None, processes.rank)
        with suppress(OSError, InputError):  # moved or not writable: then the error is met again
            if handle is not None:
                handle.check()
            if is_own and not isinstance(error.__cause__, OSError) and has_checkpoint(folder):
                folder.keep_failure(error)
        raise


def check_free(out: str | Path, *, overwrite: bool) -> RunFolder:
    """Raise InputError if the folder has a run, before data is read; return it, and make nothing."""
    return RunFolder.create(out) if status(out) is not None and not overwrite else RunFolder(out)


@contextmanager
def new_run(
    out: str | Path, settings: Settings, *, overwrite: bool = False, data_dir: Path | None = None
) -> Iterator[tuple[RunFolder, FolderHandle]]:
    """Make and lock the folder of a new run; remove it if the run fails before its first checkpoint."""
    fresh = status(out) is None
    folder = RunFolder.create(out, overwrite=overwrite)
    with locked(folder.path) as handle:
        new_folder(out, settings, threads=torch.get_num_threads(), data_dir=data_dir)  # checked again, now locked
        try:
            yield folder, handle
        except Exception:
            with suppress(InputError):  # moved, or not allowed to look: then nothing is certain, and nothing is removed
                handle.check()
                if not has_checkpoint(folder):
                    folder.clear(whole=fresh)
            raise


def new_folder(path: str | Path, settings: Settings, *, threads: int, data_dir: Path | None = None) -> RunFolder:
    """Make the folder of a new run, with its environment and its config."""
    folder = RunFolder.create(path)
    where = data_folder(data_dir).resolve() if settings.data in SOURCES else None
    complete = settings.complete()
    folder.begin(complete.as_dict(), settings.help_texts(), threads=threads, data_folder=where)
    return folder
