"""Evaluate what was trained: weights from a run or a file, their data, and the record that is kept with the run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
from torch import nn

from sihg.core.processes import ALONE, Processes
from sihg.core.threads import use_threads
from sihg.errors import InputError, UnknownNameError
from sihg.loggers import continue_run_log
from sihg.loggers.run_log import last_step
from sihg.parse import file_name, parse_norm, parse_number
from sihg.robust.attacks.input_checks import check_device, check_model
from sihg.robust.attacks.nearest import plan_nearest
from sihg.robust.attacks.random_models import Draws
from sihg.robust.attacks.registry import Attacks, attack_names, parse_curve, plan_attacks
from sihg.robust.data.samples import Samples
from sihg.robust.data.sources import open_data
from sihg.robust.evaluation.evaluate import run_task
from sihg.robust.evaluation.findings import Evaluation, RadiusCurve
from sihg.robust.evaluation.gallery import save_gallery
from sihg.robust.evaluation.minimum import DEFAULT_ATTACKS, MinimumNorms, as_minimum
from sihg.robust.evaluation.partial import PartialResults
from sihg.robust.evaluation.progress import Progress
from sihg.robust.evaluation.search_format import PRECISIONS
from sihg.robust.evaluation.stored import find_stored
from sihg.robust.evaluation.task import Task, make_task
from sihg.robust.models.foreign import HF_CONFIG, is_library_model
from sihg.robust.models.normalise import Normalisation
from sihg.robust.models.opening import check_source
from sihg.robust.threat import Ball
from sihg.robust.training.config import Settings
from sihg.robust.training.hub_folder import is_hub_folder
from sihg.robust.training.weights import (
    Weights,
    load,
    load_weights,
    read_foreign_weights,
    read_hub_weights,
    read_run_weights,
)
from sihg.store.files import make_folder, status
from sihg.store.run_folder import FolderHandle

CHANGEABLE = ("eps", "norm", "bounds", "data", "model", "width")  # settings that an evaluation may change
USUAL_ATTACKS = ("natural", "pgd-20")
Result = Evaluation | RadiusCurve | MinimumNorms
SPLITS = ("test", "train")


@dataclass(frozen=True)
class EvaluationRequest:
    """Which attacks on which samples, and what differs from the run's own settings.

    Args:
        attacks: The names of the attacks, a tuple or text such as "natural,pgd-20" (default: natural and pgd-20; with
            `minimum` fab-t and pgd-20).
        split: The samples, "test" or "train".
        samples: How many of them, each class in proportion (default: all).
        seed: The seed of the subset and of the attacks.
        target: A class: attack towards it, on the samples of other classes.
        last_iterate: Whether fgsm, mi-fgsm and pgd count only the end of each run.
        precision: The number format in which attacks search: float32, bfloat16 or auto; verdicts are float32.
        bpda: Other gradients for modules whose own gradient lies: by the name of the module "identity" or a function,
            "path.py:name".
        batch_size: The most samples to attack at once (default: as many as are fast).
        eot: For random models: gradients and losses are means over so many draws; 20 is usual.
        votes: How many draws classify a point (default: 10 if two passes differ, else 1).
        checkpoint: Which weights of a run, "last" or "best".
        curve: The radii of a curve, "A:B:N"; None for a table at the run's eps.
        minimum: The largest eps, such as "0.5": find the smallest eps at which each sample falls.
        points: Whether to keep the adversarial examples, NAME.points.npy.
        device: Where to compute (default: the run's device).
        changes: Settings other than the run's, as text: any of eps, norm, bounds, data, model, width.
        trust: Whether code and the data folder that a run names are used although no command of yours made the run.
        normalise: Of a model from elsewhere, its normalisation, such as "imagenet" (default: the one that is found).
        weights_key: Of a file with several weights, which.
        download: Whether weights of a library that are not on this machine may be downloaded.
    Example:
        >>> EvaluationRequest(attacks=("standard",), changes={"eps": "8/255"}).split
        'test'
    """

    attacks: str | tuple[str, ...] = USUAL_ATTACKS
    split: str = "test"
    samples: int | None = None
    seed: int = 0
    target: int | None = None
    last_iterate: bool = False
    precision: str = "float32"
    bpda: Mapping[str, str] = field(default_factory=dict)
    batch_size: int | None = None
    eot: int = 1
    votes: int | None = None
    checkpoint: str | None = None
    curve: str | None = None
    minimum: str | None = None
    points: bool = False
    device: str | None = None
    changes: Mapping[str, str] = field(default_factory=dict)
    trust: bool = False
    normalise: str | None = None
    weights_key: str | None = None
    download: bool = False

    def __post_init__(self) -> None:
        is_default = self.minimum is not None and self.attacks == USUAL_ATTACKS
        object.__setattr__(self, "attacks", DEFAULT_ATTACKS if is_default else tuple(attack_names(self.attacks)))
        if self.precision not in PRECISIONS:
            raise UnknownNameError("precision", self.precision, list(PRECISIONS))
        if "norm" in self.changes:  # one spelling, in the name of the record too
            object.__setattr__(self, "changes", {**self.changes, "norm": parse_norm(self.changes["norm"])})
        Draws(self.eot, 1 if self.votes is None else self.votes)  # checks both
        if self.curve is not None:
            parse_curve(self.curve)
            if "eps" in self.changes:
                raise InputError("curve-and-eps", curve=self.curve, eps=self.changes["eps"])
        if self.normalise is not None:
            Normalisation.parse(self.normalise)
        if self.minimum is not None:
            self._check_minimum(self.minimum)
        for setting in (name for name in ("curve", "minimum") if self.target is not None and getattr(self, name)):
            raise InputError("targets-and-radii", setting=f"--{setting}")

    def _check_minimum(self, minimum: str) -> None:
        parse_number(minimum, "--minimum")
        if self.curve is not None:
            raise InputError("minimum-and-curve", minimum=minimum, curve=self.curve)
        unused = {"--eps": "eps" in self.changes, "--last-iterate": self.last_iterate}
        unused["--precision"] = self.precision != "float32"
        for setting in (setting for setting, given in unused.items() if given):
            raise InputError("minimum-settings", minimum=minimum, setting=setting)

    def name_of_record(self, weights: Weights, *, with_run: bool) -> str:
        """Return a name that tells this evaluation from all others of the run, or of several runs."""
        run = [weights.folder.path.resolve().name] if with_run and weights.folder else []
        parts = [*run, weights.label, self.split, "+".join(self.attacks)]
        parts += [f"n{self.samples}"] if self.samples else []
        parts += [f"seed{self.seed}"] if self.seed else []
        parts += [f"{name}-{self.changes[name]}" for name in CHANGEABLE if name in self.changes]
        parts += ["last-iterate"] if self.last_iterate else []
        parts += [f"target-{self.target}"] if self.target is not None else []
        parts += [self.precision] if self.precision != "float32" else []
        parts += [f"bpda-{name}-{stand_in}" for name, stand_in in self.bpda.items()]
        parts += [f"eot{self.eot}"] if self.eot > 1 else []
        parts += [f"votes{self.votes}"] if self.votes is not None else []
        parts += [f"curve-{self.curve}"] if self.curve else []
        parts += [f"normalise-{self.normalise}"] if self.normalise else []
        parts += [f"key-{self.weights_key}"] if self.weights_key else []
        parts += [f"minimum-{self.minimum}"] if self.minimum else []
        return file_name(*parts, hashed=any(":" in name for name in (*self.attacks, *self.bpda.values())))

    def gallery_of(self, weights: Weights) -> Path | None:
        """Return the file of a run's gallery if this evaluates the run as it was trained, on its test samples."""
        usual = self.split == "test" and not self.changes and self.curve is None and self.minimum is None
        usual = usual and self.target is None
        return weights.folder.gallery if weights.folder and usual else None


@dataclass(frozen=True, eq=False)
class Target:
    """Weights to evaluate, and where their record goes; without a run and without `out`, nowhere."""

    weights: Weights
    request: EvaluationRequest
    name: str  # of the record
    home: Path | None
    gallery: Path | None

    @property
    def title(self) -> str:
        """What to call the model among others, two checkpoints of one run too."""
        weights = self.weights
        is_last = weights.folder is None or weights.label == "last"
        return weights.source_name if is_last else f"{weights.source_name} ({weights.label})"


@dataclass(frozen=True, eq=False)
class PreparedEvaluation:
    """A target whose data is read and whose model is filled."""

    target: Target
    task: Task
    partial: PartialResults | None
    handle: FolderHandle | None = None  # of the run that gets the record
    processes: Processes = ALONE

    def find_stored(self) -> Result | None:
        """Return the result if the record of the very same evaluation is there already, else None."""
        home, points = self.target.home, self.target.request.points
        found = None if home is None else find_stored(self.task, home, points=points, processes=self.processes)
        assert found is None or isinstance(found, Result)
        return found

    def run(self, progress: Progress | None = None) -> Result:
        """Attack and check; an interruption leaves partial results, with which the next run continues."""
        result = run_task(self.task, self.partial, progress, self.processes)
        assert isinstance(result, Result)
        return result

    @property
    def verdicts(self) -> int:
        """How many verdicts on samples an interruption leaves."""
        return 0 if self.partial is None else self.partial.verdicts

    def save(self, result: Result) -> list[Path]:
        """Write the record, and the run's gallery; return the files that a user may want to open.

        Of several processes only the first writes. Of a stored result only a missing gallery is.
        """
        if self.target.home is None or not self.processes.is_first:
            return []
        if self.handle is not None:
            self.handle.check()
        if self.target.gallery is not None and not (result.stored and status(self.target.gallery)):
            try:
                save_gallery(self.target.gallery, self.task, result.outcomes)
            except InputError:
                if self.partial is not None and result.stored is None:
                    self.partial.write()  # the same command continues with these verdicts
                raise
        if result.stored is not None:
            return [result.stored]
        files = result.write(self.target.home, self.target.name)  # last: the record says that all is there
        self._log(result)
        return files

    def _log(self, result: Result) -> None:
        """Send the result to the loggers of the run, if its record lies in the run's own folder."""
        folder = self.target.weights.folder
        if folder is not None and self.target.home == folder.evaluation:
            with continue_run_log(folder, trust=self.target.request.trust) as log:
                if log is not None:
                    log.evaluation(self.target.name, result.record, last_step(folder))


def evaluate_run(
    path: str | Path,
    request: EvaluationRequest | None = None,
    *,
    data_dir: Path | None = None,
    out: Path | None = None,
    again: bool = False,
    threads: int = 1,
    progress: Progress | None = None,
    processes: Processes = ALONE,
) -> Result:
    """Evaluate a run, one of its checkpoints or a model from elsewhere, and write its record, as `sihg evaluate` does.

    If the record of the same evaluation is there already, it is read instead: `evaluation.stored` is its path then.
    The loggers of the run receive a new result.

    Args:
        path: The folder of a run or of a checkpoint, a file of weights, or timm:NAME, hf:FOLDER, robustbench:NAME.
        request: Which attacks on which samples (default: natural and pgd-20 on all test samples).
        data_dir: The folder of the data files.
        out: Where the record goes (default: RUN/evaluation; of a file, nowhere).
        again: Whether to make the evaluation again if its record is there.
        threads: The threads to compute with; the last digits of results depend on it.
        progress: Receives an EvaluationProgress after each pass of the model, and before and after each part.
        processes: From `join_processes`: all of them call this with the same arguments, and share the attacks.
    Returns:
        The Evaluation, the RadiusCurve if the request has a curve, or the MinimumNorms if it has `minimum`.
    Raises:
        InputError: The weights, the data or the request cannot be used, or the record cannot be written.
    Example:
        >>> evaluate_run("runs/none")
        Traceback (most recent call last):
        sihg.errors.InputError: runs/none does not exist: give the folder of a run, a file of weights, or ...
    """
    (target,) = find_targets([Path(path)], request or EvaluationRequest(), out=out)
    with use_threads(threads):
        prepared = prepare(target, data_dir=data_dir, processes=processes)
        stored = None if again else prepared.find_stored()
        result = prepared.run(progress) if stored is None else stored
        prepared.save(result)
    return result


def find_targets(paths: Sequence[Path], request: EvaluationRequest, *, out: Path | None = None) -> list[Target]:
    """Read the weights at each path and name their records, so that errors appear before the attacks start."""
    targets = []
    for path in paths:
        weights = _read_weights(path, request)
        home = out or (weights.folder.evaluation if weights.folder else None)
        if request.points and home is None:
            raise InputError("no-points-folder", name=weights.source_name)
        name = request.name_of_record(weights, with_run=out is not None)
        targets.append(Target(weights, request, name, home, None if out else request.gallery_of(weights)))
    if out is not None:
        for name in (name for name, count in Counter(target.name for target in targets).items() if count > 1):
            raise InputError("same-record-twice", out=out, name=name)
        make_folder(out)
    return targets


def prepare(target: Target, *, data_dir: Path | None = None, processes: Processes = ALONE) -> PreparedEvaluation:
    """Read the data, fill the model and open partial results; raise InputError if something cannot be evaluated."""
    weights, request = target.weights, target.request
    settings = weights.settings
    radii = parse_curve(request.curve) if request.curve is not None else []
    largest = settings.eps if request.minimum is None else parse_number(request.minimum, "--minimum")
    ball = Ball(radii[-1] if radii else largest, settings.norm, settings.bounds)
    attacks: Attacks = request.attacks if request.minimum is None else plan_nearest(request.attacks, ball)
    plan_attacks(attacks, ball, source=lambda _run: nn.Identity())  # unknown names, before the data is read
    check_device(settings.device)
    whole = _read_samples(settings.data, request.split, data_dir or weights.data_dir)
    model, notes = _fill_model(weights, whole, request.normalise)

    def load_source(run: str) -> nn.Module:
        source = load(run, trust=request.trust).to(settings.device)
        check_model(source, whole)
        return source

    trained_with = settings.method.name if weights.foreign is None else None
    task = make_task(
        *(model, whole, attacks, ball, radii, request.samples, request.seed, trained_with),
        targets=request.target,
        last_iterate=request.last_iterate,
        precision=request.precision,
        bpda=request.bpda,
        eot=request.eot,
        votes=request.votes,
        source=load_source,
        weights=weights.tensors,
        workers=settings.workers,
        batch_size=request.batch_size,
        processes=processes,
    )
    header = msgspec.structs.replace(
        task.header,
        weights=str(weights.source),
        checkpoint=weights.label,
        data=settings.data,
        split=request.split,
        device=settings.device,
        notes=(*notes, *task.header.notes),
    )
    task = replace(task, name=target.name, header=header)
    task = task if request.minimum is None else as_minimum(task, target.name)
    handle = None
    if weights.folder is not None and target.home == weights.folder.evaluation:
        weights.folder.check_links()
        handle = FolderHandle(weights.folder.path)
        # Before the attacks; an evaluation folder that is not there yet is made when there is something to keep.
        make_folder(weights.folder.path if status(target.home) is None else target.home)
    elif target.home is not None:
        handle = FolderHandle(target.home)  # made by `find_targets`
    partial = task.open_partial(target.home, points=request.points, handle=handle, processes=processes)
    return PreparedEvaluation(target, task, partial, handle, processes)


def _read_samples(data: str, split: str, data_dir: Path | None) -> Samples:
    if split not in SPLITS:
        raise UnknownNameError("split", split, list(SPLITS))
    train, test = open_data(data, data_dir)
    return test if split == "test" else train


def _fill_model(weights: Weights, samples: Samples, normalise: str | None) -> tuple[nn.Module, tuple[str, ...]]:
    """Build the model with its weights; return it with notes on what was done if it is from elsewhere."""
    if weights.shape not in (None, samples.shape):
        raise InputError("weights-shape", source=weights.source, shape=weights.shape, found=samples.shape)
    shape, classes, notes = samples.shape, samples.classes, tuple[str, ...]()

    def architecture() -> nn.Module:
        return weights.build(shape, len(classes))

    if weights.foreign is None:
        model = architecture()
        load_weights(model, weights.tensors, weights.source)
    else:
        model, notes = weights.foreign.assemble(architecture, shape, classes, normalise=normalise)
    model = model.to(weights.settings.device)
    check_model(model, samples)
    return model.eval(), notes


def _read_weights(path: Path, request: EvaluationRequest) -> Weights:
    changes = {**request.changes, **({} if request.device is None else {"device": request.device})}
    library = is_library_model(str(path))
    if not library and not path.exists():
        raise InputError("no-weights", path=path)
    if not library and is_hub_folder(path):
        return _read_hub(path, request, changes)
    if not library and (path / HF_CONFIG).is_file():
        raise InputError("hf-without-prefix", path=path)
    if path.is_dir() and not library:
        return _read_run(path, request, changes)
    if request.checkpoint:
        raise InputError("checkpoint-of-file", checkpoint=request.checkpoint, path=path)
    check_source(path, has_model="model" in changes or not library)
    changes = {"model": str(path), **changes} if library else changes
    needed = ("model", "data") if request.minimum or request.curve else ("model", "data", "eps")
    if missing := ", ".join(f"--{name}" for name in needed if name not in changes):
        raise InputError("weights-without-settings", path=path, missing=missing)
    settings = Settings().with_values(changes)
    return read_foreign_weights(path, settings, key=request.weights_key, download=request.download)


def _read_hub(path: Path, request: EvaluationRequest, changes: Mapping[str, str]) -> Weights:
    if request.checkpoint:
        raise InputError("checkpoint-of-file", checkpoint=request.checkpoint, path=path)
    weights = read_hub_weights(path, trust=request.trust, given=changes.keys())
    return replace(weights, settings=weights.settings.with_values(changes))


def _read_run(path: Path, request: EvaluationRequest, changes: Mapping[str, str]) -> Weights:
    flags = {"normalise": request.normalise, "weights-key": request.weights_key, "download": request.download}
    for flag in (flag for flag, value in flags.items() if value):
        raise InputError("flag-of-foreign-model", flag=flag, path=path)
    weights = read_run_weights(path, request.checkpoint or "last", trust=request.trust, given=changes.keys())
    norm, trained = changes.get("norm"), weights.settings.norm
    searched = (changes.get("eps"), request.curve, request.minimum)
    if norm is not None and norm != trained and all(radius is None for radius in searched):
        raise InputError("norm-without-eps", norm=norm, path=path, trained=trained)
    return replace(weights, settings=weights.settings.with_values(changes))
