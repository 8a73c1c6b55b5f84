"""The settings of a run, defined once: flags, TOML, the saved config and the documentation derive from them."""

import difflib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from fractions import Fraction
from importlib.resources import files
from pathlib import Path
from typing import Any

from sihg.errors import InputError, UnknownNameError
from sihg.robust.methods.registry import METHODS, method_fields, settings_class
from sihg.robust.training.optimizer import option_defaults
from sihg.robust.training.schedules import SCHEDULES
from sihg.store.toml import from_toml

SECTIONS = ("method", "optimizer", "schedule")
SHORT = {  # names that reach into a section without naming it
    name: f"optimizer.{name}" for name in ("lr", "momentum", "weight_decay", "nesterov", "theta")
}
THREAT = ("eps", "norm", "bounds")  # of the run, not of its method: evaluations use them too
LEAST = {"epochs": 1, "batch_size": 1, "accumulate": 1, "evaluate_every": 1, "crop": 0, "validation": 0}
OPTIMIZER_KINDS = {name: "bool | None" if name == "nesterov" else "float | None" for name in SHORT}  # None: torch's own


def _setting(default: Any, about: str) -> Any:
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata={"help": about})
    return field(default=default, metadata={"help": about})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that decides what a run computes."""

    data: str = _setting("digits", "data set: digits, mnist, fashion-mnist, svhn, cifar10, folder:PATH or npz:PATH")
    samples: int | None = _setting(None, "train on so many samples, drawn by class (default: all)")
    model: str = _setting(
        "small-cnn",
        "small-cnn, threshold-cnn, threshold-pair, preact-resnet8, preact-resnet18, package.module:callable, "
        "path.py:callable",
    )
    width: float = _setting(1.0, "factor on the number of channels")
    eps: float = _setting(0.25, "radius of the ball, such as 8/255; for data of your own there is no default")
    norm: str = _setting("linf", "norm of the ball: linf or l2")
    bounds: tuple[float, float] | None = _setting((0.0, 1.0), "x + delta stays within them; none: the literal ball")
    epochs: int = _setting(20, "times that every sample is visited")
    batch_size: int = _setting(50, "samples a step")
    seed: int = _setting(0, "of the weights, the order and all noise")
    flip: bool = _setting(False, "augment: flip left and right at random")
    crop: int = _setting(0, "augment: shift at random by up to so many pixels")
    ema: float = _setting(
        0.0, "decay of an exponential average of the weights, which is then what is evaluated (0: none)"
    )
    clip: float | None = _setting(None, "largest norm of a gradient; longer ones are shortened (default: none)")
    accumulate: int = _setting(1, "parts that a batch is computed in, to save memory")
    validation: int = _setting(0, "samples to watch while training, which choose the best checkpoint (0: none)")
    validate_on: str = _setting("train", "where these are held out of: train, or test as in the paper")
    evaluate_every: int = _setting(1, "epochs between evaluations on the held-out samples")
    evaluate_with: str = _setting("pgd-10", "the attack of these evaluations")
    memory: str | None = _setting(
        None, "how the perturbation memory is kept: int8, fp16 or fp32 (default: int8 for linf, fp16 for l2)"
    )
    memory_files: bool = _setting(False, "keep the perturbation memory in files of the run instead of in RAM")
    checkpoint_minutes: float = _setting(5.0, "a checkpoint at least this often, beside the one after each epoch")
    device: str = _setting("cpu", "where to compute: cpu, cuda, mps, ...")
    method: Mapping[str, Any] = _setting({"name": "msi-hg"}, "name and hyperparameters of the method")
    optimizer: Mapping[str, Any] = _setting(
        {"name": "sgd", "lr": 0.05, "momentum": 0.9},
        "name and options of any torch optimiser; theta of the hybrid gradient",
    )
    schedule: Mapping[str, Any] = _setting({"name": "constant"}, "name and options of the learning rate's schedule")

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, got {getattr(self, name)}: give {least} or more")
        if self.samples is not None and self.samples < 1:
            raise InputError(f"samples must be at least 1, got {self.samples}: leave it out for all")
        if not 0 <= self.ema < 1:
            raise InputError(f"ema must be at least 0 and below 1, got {self.ema}: 0.998 is common")
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise InputError(f"clip must be > 0 and finite, got {self.clip}: leave it out for none")
        if self.bounds is not None and not all(map(math.isfinite, self.bounds)):
            raise InputError(f"bounds must be finite, got {self.bounds[0]:g},{self.bounds[1]:g}: give both, or none")
        if self.validate_on not in ("train", "test"):
            raise UnknownNameError("validate_on", self.validate_on, ["train", "test"])
        if self.validate_on == "test" and not self.validation:
            raise InputError("validate_on = test watches no sample, since validation is 0: give both, or neither")
        if not self.checkpoint_minutes >= 0:
            raise InputError(f"checkpoint_minutes must be at least 0, got {self.checkpoint_minutes}: 5 is usual")
        for section in SECTIONS:
            if "name" not in getattr(self, section):
                raise InputError(f"{section} has no name, only {dict(getattr(self, section))}: add one")
        hyperparameters(self.method["name"])  # an unknown name is named

    def with_values(self, values: Mapping[str, Any]) -> "Settings":
        """Change settings, given by their names; texts such as "8/255" become what the setting needs.

        `tau` and `lr` mean method.tau and optimizer.lr. A section's name alone keeps those of its settings that the new
        name has too; a table with a name is the whole section, one without changes what it holds.
        """
        method = _name_in(values, "method") or self.method["name"]
        given = {dotted_name(name, method): value for name, value in values.items()}
        known = {f.name: _kind(f.type) for f in fields(self)}
        own = {key: typed(key, known[key], given[key]) for key in given if "." not in key and key not in SECTIONS}
        before = {section: getattr(self, section) for section in SECTIONS}
        # A theta that was written down only for completeness does not follow to another method.
        if method != self.method["name"] and self.optimizer.get("theta") == _usual_theta(self.method["name"]):
            before["optimizer"] = {key: value for key, value in self.optimizer.items() if key != "theta"}
        parts = {section: _changed(section, before[section], given) for section in SECTIONS}
        return replace(self, **{**own, **parts})

    @property
    def theta(self) -> float:
        """The extrapolation of the hybrid gradient: 1 for MSI-HG and 0 for the others, unless it is given."""
        return float(self.optimizer.get("theta", _usual_theta(self.method["name"])))

    def complete(self) -> "Settings":
        """The same with nothing implicit: every default that is a value, whole paths. Other versions run the same."""
        own = {key: value for key, value in self.method_arguments().items() if key not in THREAT}
        usual = {key: default for key, (default, _) in hyperparameters(self.method["name"]).items()}
        method = {key: value for key, value in {**usual, **own}.items() if key not in THREAT and value is not None}
        optimizer, name = self.optimizer["name"], self.schedule["name"]
        options = fields(SCHEDULES[name]) if name in SCHEDULES else ()  # another name is refused where it is built
        schedule = {f.name: f.default for f in options if f.default is not MISSING}
        whole = replace(
            self,
            data=_whole_path(self.data),
            model=_whole_path(self.model),
            memory=self.memory or ("int8" if self.norm == "linf" else "fp16"),
            method={"name": self.method["name"], **method},
            optimizer={"name": optimizer, **option_defaults(optimizer), **self.optimizer, "theta": self.theta},
            schedule={"name": name, **schedule, **self.schedule},
        )
        return whole.with_values({})  # torch's 0 for weight_decay as the 0.0 that it is read as

    def method_arguments(self) -> dict[str, Any]:
        """What the method is built with, apart from running objects."""
        name = self.method["name"]
        mine = {key: value for key, value in self.method.items() if key != "name"}
        threat = {key: getattr(self, key) for key in THREAT}
        defaults = {"control_epochs": 0.8 * self.epochs} if name == "dat" else {}
        return {**{k: v for k, v in {**defaults, **threat}.items() if k in hyperparameters(name)}, **mine}

    def as_dict(self) -> dict[str, Any]:
        """For the config file, where what is not set is "none"."""
        given = asdict(self)
        given["bounds"] = None if self.bounds is None else list(self.bounds)
        own = {key for key, (default, _) in hyperparameters(self.method["name"]).items() if default is None}
        given["method"] |= dict.fromkeys(sorted(own - self.method.keys() - set(THREAT)), "none")
        return {key: "none" if value is None else value for key, value in given.items()}

    def help_texts(self) -> dict[str, str]:
        """What each setting means, by its dotted name."""
        own = {f"method.{key}": about for key, (_, about) in hyperparameters(self.method["name"]).items()}
        return {f.name: f.metadata["help"] for f in fields(self)} | own


def hyperparameters(method: str) -> dict[str, tuple[Any, str]]:
    """The default and the help text of every hyperparameter of a method."""
    return {name: (item.default, item.metadata["help"]) for name, item in method_fields(method).items()}


def presets() -> dict[str, dict[str, Any]]:
    """The presets by name, as they are written."""
    found = {}
    for path in sorted((files("sihg") / "presets").iterdir(), key=lambda p: p.name):
        if path.name.endswith(".toml"):
            found[path.name.removesuffix(".toml")] = tomllib.loads(path.read_text(encoding="utf-8"))
    return found


def preset(name: str, method: str | None = None) -> Settings:
    """The settings of a preset for a method (default: its own)."""
    known = presets()
    if name not in known:
        raise UnknownNameError("preset", name, list(known))
    return _of_table(known[name], method)


def read_settings(path: Path, method: str | None = None) -> Settings:
    """The settings in a TOML file: the config of a run, or one written like a preset."""
    table = from_toml(path)
    try:
        return _of_table(table, method)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def run_settings(path: Path) -> Settings:
    """The settings that a run keeps; a file cut short is refused, for defaults would stand in for what it has lost."""
    settings, kept = read_settings(path), from_toml(path)
    missing = next((section for section in SECTIONS if section not in kept), None)
    if missing or not path.read_bytes().endswith(b"\n"):
        lacks = f"has no [{missing}]" if missing else "ends within a line"
        raise InputError(f"{path} {lacks}, so it was cut short: put the whole file back, from a copy of the run")
    return settings


def _of_table(table: Mapping[str, Any], method: str | None) -> Settings:
    """The settings of a table for a method (default: its own); it may say what is special for which method."""
    chosen = {key: value for key, value in table.items() if key not in ("about", "methods")}
    special = table.get("methods", {})
    if not isinstance(special, Mapping) or not all(isinstance(part, Mapping) for part in special.values()):
        raise InputError(f"methods must be tables, such as [methods.pgd], got {special!r}: write one a method")
    settings = Settings().with_values(chosen)
    method = method or settings.method["name"]
    if method not in METHODS:
        raise UnknownNameError("method", method, list(METHODS))
    settings = settings.with_values({"method": method})
    return settings.with_values(special.get(method, {}))


def dotted_name(name: str, method: str) -> str:
    """The full name of a setting as people type it: `tau` is method.tau, `lr` is optimizer.lr."""
    name = name.replace("-", "_")
    section, _, key = name.partition(".")
    if name in {f.name for f in fields(Settings)} or (section in SECTIONS and key):
        return section if key == "name" else name
    if name in SHORT:
        return SHORT[name]
    if name in hyperparameters(method):
        return f"method.{name}"
    owners = [other for other in METHODS if name in hyperparameters(other)]
    if owners:
        raise InputError(
            f"method {method!r} has no setting {name!r}, which belongs to {', '.join(owners)}: leave it out"
        )
    raise unknown_setting(name)


def unknown_setting(name: str) -> InputError:
    """The error for a setting that nothing has."""
    every = {f.name for f in fields(Settings)} | set(SHORT) | {k for m in METHODS for k in hyperparameters(m)}
    near = difflib.get_close_matches(name, every, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "`sihg train --help` lists all settings"
    return InputError(f"unknown setting {name!r}: {hint}")


def typed(name: str, kind: str, value: Any) -> Any:
    """A setting's value in the type it is declared with."""
    if kind == "str" and value is not None:  # "none" may be a choice there
        return str(value)
    if value is None or str(value).lower() == "none":
        if "None" in kind:
            return None
        raise InputError(f"{name} cannot be none: give a value")
    if kind.startswith("str"):
        return str(value)
    if kind.startswith("tuple"):
        pair = value.split(",") if isinstance(value, str) else value
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise InputError(f"{name} must be two numbers such as 0,1, or none, got {value!r}")
        return tuple(typed(name, "float", item) for item in pair)
    if kind.startswith("bool"):
        known = {"true": True, "false": False, "yes": True, "no": False}
        if str(value).lower() not in known:
            raise InputError(f"{name} must be true or false, got {value!r}")
        return known[str(value).lower()]
    return _number(name, kind, value)


def _number(name: str, kind: str, value: Any) -> float:
    """A whole number or any."""
    number = guessed(value)
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise InputError(f"{name} must be a number such as 5, 0.1 or 8/255, got {value!r}")
    if not kind.startswith("int"):
        return float(number)
    if isinstance(number, float) and not number.is_integer():
        raise InputError(f"{name} must be a whole number, got {value!r}")
    return int(number)


def _kind(annotation: Any) -> str:
    """An annotation as text: int, float | None, ..."""
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def guessed(value: Any) -> Any:
    """A text as the number or truth it looks like, lists item by item; anything else as it is."""
    if isinstance(value, list | tuple):
        return [guessed(item) for item in value]
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value.startswith("["):
        try:
            return guessed(tomllib.loads(f"value = {value}")["value"])
        except tomllib.TOMLDecodeError:
            raise InputError(f"{value!r} is not a list such as [[0, 0], [5, 0.2]]") from None
    for kind in (int, float, lambda text: float(Fraction(text))):
        try:
            return kind(value)
        except (ValueError, ZeroDivisionError):
            continue
    return value


def _name_in(values: Mapping[str, Any], section: str) -> str | None:
    """The name that the values give a section, if they do."""
    value = values.get(section, values.get(f"{section}.name"))
    return value.get("name") if isinstance(value, Mapping) else value


def _changed(section: str, part: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A section with what is given for it: its name or a table first, then single settings, whatever their order."""
    whole = given.get(section, {})
    if not isinstance(whole, Mapping):
        whole = {**_kept(section, part, whole), "name": whole}
    part = dict(whole) if "name" in whole else {**part, **whole}
    prefix = f"{section}."
    part |= {key.removeprefix(prefix): value for key, value in given.items() if key.startswith(prefix)}
    typed_part = {
        key: str(value) if key == "name" else _typed_in(section, part["name"], key, value)
        for key, value in part.items()
    }
    return {key: value for key, value in typed_part.items() if value is not None}  # None is every default's


def _method_kinds(method: str) -> dict[str, str]:
    """The types of a method's own settings."""
    own = hyperparameters(method).keys() - set(THREAT)
    return {f.name: _kind(f.type) for f in fields(settings_class(method)) if f.name in own}


def _typed_in(section: str, name: str, key: str, value: Any) -> Any:
    """A setting of a section: of the method, and what all optimisers share, as declared; the others as they look."""
    if section != "method":
        known = OPTIMIZER_KINDS if section == "optimizer" else {}
        return typed(key, known[key], value) if key in known else guessed(value)
    kinds = _method_kinds(name)
    if key in THREAT:
        raise InputError(f"{key} belongs to the whole run, not to its method, got method.{key} = {value!r}: set {key}")
    if key not in kinds:
        raise InputError(f"method {name!r} has no setting {key!r}: it has {', '.join(kinds) or 'none'}")
    return typed(key, kinds[key], value)


def _usual_theta(method: str) -> float:
    return 1.0 if method == "msi-hg" else 0.0


def _whole_path(source: str) -> str:
    """npz:PATH, folder:PATH and PATH.py:NAME from the root on, so that they mean the same from every folder."""
    kind, _, path = source.partition(":")
    if kind in ("npz", "folder") and path:
        return f"{kind}:{Path(path).expanduser().resolve()}"
    file, _, name = source.rpartition(":")
    return f"{Path(file).expanduser().resolve()}:{name}" if file.endswith(".py") else source


def _kept(section: str, part: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Which settings survive another name: those that the new method has too; not the lr of another optimiser."""
    if name == part["name"]:
        return dict(part)
    if section == "method":
        return {key: value for key, value in part.items() if key in hyperparameters(name)}
    return {key: value for key, value in part.items() if section == "optimizer" and key in ("weight_decay", "theta")}
