"""The settings of a run, defined once: flags, TOML, the saved config and the documentation derive from them."""

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from fractions import Fraction
from importlib.resources import files
from typing import Any

from sihg.errors import InputError, UnknownNameError
from sihg.robust.methods import METHODS, hyperparameters

SECTIONS = ("method", "optimizer", "schedule")
SHORT = {  # flags that reach into a section without naming it
    **{name: f"optimizer.{name}" for name in ("lr", "momentum", "weight_decay", "nesterov", "theta")},
}


def _setting(default: Any, about: str) -> Any:
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata={"help": about})
    return field(default=default, metadata={"help": about})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that decides what a run computes."""

    data: str = _setting("digits", "data set: digits, mnist, fashion-mnist, svhn, cifar10, folder:PATH or npz:PATH")
    samples: int | None = _setting(None, "train on so many samples, drawn by class (default: all)")
    model: str = _setting("small-cnn", "small-cnn, preact-resnet8, preact-resnet18 or package.module:callable")
    width: float = _setting(1.0, "factor on the number of channels")
    eps: float = _setting(0.25, "radius of the ball, such as 8/255")
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
    validation: int = _setting(0, "training samples held out to choose the best checkpoint (0: none is chosen)")
    evaluate_every: int = _setting(1, "epochs between evaluations on the held-out samples")
    evaluate_with: str = _setting("pgd-10", "the attack of these evaluations")
    memory: str = _setting("int8", "how the perturbation memory is kept: int8, fp16 or fp32")
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
        for name, least in (("epochs", 1), ("batch_size", 1), ("accumulate", 1), ("evaluate_every", 1), ("crop", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not 0 <= self.ema < 1:
            raise InputError(f"ema must be at least 0 and below 1, got {self.ema}: 0.998 is common")
        if self.clip is not None and not self.clip > 0:
            raise InputError(f"clip must be > 0, got {self.clip}: leave it out for none")
        hyperparameters(self.method["name"])  # an unknown name is named

    def with_values(self, values: Mapping[str, Any]) -> "Settings":
        """Change settings, given by their dotted names; texts such as "8/255" become what the setting needs."""
        own = {name: value for name, value in values.items() if name not in SECTIONS and "." not in name}
        parts = {section: dict(getattr(self, section)) for section in SECTIONS}
        for name, value in values.items():
            section, _, key = name.partition(".")
            if section in SECTIONS and key:
                parts[section][key] = value
            elif name in SECTIONS and isinstance(value, Mapping):
                parts[name] |= value
            elif name in SECTIONS:
                parts[name] = {**_kept(name, parts[name], value), "name": value}
        known = {f.name: f for f in fields(self)}
        for name in own:
            if name not in known:
                raise unknown_setting(name)
        own = {name: typed(name, _kind(known[name].type), value) for name, value in own.items()}
        return replace(self, **own, **{section: _typed_section(section, part) for section, part in parts.items()})

    def method_arguments(self) -> dict[str, Any]:
        """What the method is built with, apart from running objects."""
        name = self.method["name"]
        mine = {key: value for key, value in self.method.items() if key != "name"}
        threat = {"eps": self.eps, "norm": self.norm, "bounds": self.bounds}
        defaults = {"control_epochs": 0.8 * self.epochs} if name == "dat" else {}
        return {**{k: v for k, v in {**defaults, **threat}.items() if k in hyperparameters(name)}, **mine}

    def as_dict(self) -> dict[str, Any]:
        """For the config file: complete, except for what is None, which is the default."""
        given = asdict(self)
        given["bounds"] = "none" if self.bounds is None else list(self.bounds)
        return {key: value for key, value in given.items() if value is not None}


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
    chosen = dict(known[name])
    chosen.pop("about", None)
    special = chosen.pop("methods", {})
    settings = Settings().with_values(chosen)
    method = method or settings.method["name"]
    if method not in METHODS:
        raise UnknownNameError("method", method, list(METHODS))
    settings = settings.with_values({"method": method})
    return settings.with_values(_dotted(special.get(method, {})))


def dotted_name(name: str, method: str) -> str:
    """The full name of a setting as people type it: `tau` is method.tau, `lr` is optimizer.lr."""
    name = name.replace("-", "_")
    if name in {f.name for f in fields(Settings)} or name.split(".")[0] in SECTIONS:
        return name
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
    if value is None or (isinstance(value, str) and value.lower() == "none"):
        if "None" in kind:
            return None
        raise InputError(f"{name} cannot be none: give a value")
    if "tuple" in kind:
        pair = value.split(",") if isinstance(value, str) else list(value)
        if len(pair) != 2:
            raise InputError(f"{name} must be two numbers such as 0,1, or none, got {value!r}")
        return tuple(typed(name, "float", v) for v in pair)
    if kind.startswith("bool"):
        known = {"true": True, "false": False, "yes": True, "no": False}
        if str(value).lower() not in known:
            raise InputError(f"{name} must be true or false, got {value!r}")
        return known[str(value).lower()]
    if kind.startswith("str"):
        return str(value)
    if isinstance(value, bool):
        raise InputError(f"{name} must be a number, got {value!r}")
    number = guessed(value)
    if not isinstance(number, int | float):
        raise InputError(f"{name} must be a number such as 5, 0.1 or 8/255, got {value!r}")
    if kind.startswith("int"):
        if number != int(number):
            raise InputError(f"{name} must be a whole number, got {value!r}")
        return int(number)
    return float(number)


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


def _typed_section(section: str, part: dict[str, Any]) -> dict[str, Any]:
    if section != "method":
        return {key: guessed(value) for key, value in part.items()}
    known = hyperparameters(part["name"])
    kinds = {f.name: _kind(f.type) for f in fields(METHODS[part["name"]])}
    for key in part.keys() - known.keys() - {"name"}:
        raise InputError(f"method {part['name']!r} has no setting {key!r}: it has {', '.join(known) or 'none'}")
    return {key: value if key == "name" else typed(key, kinds[key], value) for key, value in part.items()}


def _kept(section: str, part: dict[str, Any], name: str) -> dict[str, Any]:
    """Which settings survive another name: those that the other method has too; lr of another optimiser."""
    if name == part["name"]:
        return part
    if section == "method":
        return {key: value for key, value in part.items() if name in METHODS and key in hyperparameters(name)}
    return {
        key: value for key, value in part.items() if section == "optimizer" and key in ("lr", "weight_decay", "theta")
    }


def _dotted(table: Mapping[str, Any]) -> dict[str, Any]:
    """A nested table by dotted names."""
    flat = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= (
                {f"{key}.{name}": item for name, item in value.items()} if "name" not in value else {key: value["name"]}
            )
            flat |= {f"{key}.{name}": item for name, item in value.items() if name != "name"}
        else:
            flat[key] = value
    return flat
