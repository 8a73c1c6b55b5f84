"""The settings of a run, defined once: flags, TOML, the saved config and the documentation derive from them.

Reading and changing settings needs no torch; `Settings.complete`, which asks an optimiser for its defaults, does.
"""

import difflib
import math
import tomllib
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, get_type_hints

from sihg.errors import InputError, UnknownNameError
from sihg.parse import Value, coerce, expand_home, parse_literal, parse_norm
from sihg.robust.data import OWN_DATA
from sihg.robust.methods.registry import METHODS, method_fields, settings_class
from sihg.robust.methods.settings import MethodSettings, check_fields, match_fields, setting, unknown_option
from sihg.robust.training.schedules import SCHEDULES
from sihg.store.files import from_toml
from sihg.store.run_folder import RunFolder
from sihg.store.schema import flatten_settings, nest_settings, read_toml
from sihg.store.trust import is_own
from sihg.user_code import refuse_user_code

PRECISIONS = ("float32", "bfloat16", "auto")
SECTIONS = ("method", "optimizer", "schedule")
REMOVED = ("accumulate",)  # settings of older versions: their runs are evaluated, but cannot be resumed
_NOT_CODE = {  # with a colon
    "data": (*(f"{kind}:" for kind in OWN_DATA), "fit:"),
    "evaluate_with": ("transfer:",),
    "model": ("timm:",),
}
Table = Mapping[str, object]  # settings by name, as a TOML file or a caller gives them


@dataclass(frozen=True)
class Choice:
    """A name, and the options given for it; all others have the defaults of that name."""

    name: str
    options: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    """The options that have a type and a short name. Others of a torch optimiser are checked where it is built."""

    lr: float | None = setting(None, "learning rate, the highest one of a schedule")
    momentum: float | None = setting(None, "momentum")
    weight_decay: float | None = setting(None, "weight decay", stays=True)
    nesterov: bool | None = setting(None, "Nesterov momentum")
    theta: float | None = setting(
        None, "extrapolation of the hybrid gradient (default: 1 for msi-hg, else 0)", stays=True
    )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that decides what a run computes.

    Example:
        >>> settings = Settings().with_values({"method": "pgd", "steps": 7, "eps": "8/255", "lr": 0.1})
        >>> settings.method.name, settings.method_settings.steps, settings.optimizer.options["lr"]
        ('pgd', 7, 0.1)
    """

    data: str = setting(
        "digits",
        "data set: digits, mnist, fashion-mnist, svhn, cifar10, folder:PATH, npz:PATH, npy:PATH, hf:PATH or wds:PATH",
        may_change=True,
    )
    samples: int | None = setting(None, "number of samples to train on, drawn by class (default: all)", least=1)
    model: str = setting(
        "small-cnn",
        "small-cnn, norm-cnn, threshold-cnn, threshold-pair, preact-resnet8, preact-resnet18, timm:NAME, "
        "package.module:callable, path.py:callable",
    )
    width: float = setting(1.0, "factor on the number of channels")
    eps: float = setting(0.25, "radius of the ball, such as 8/255; for your own data there is no default")
    norm: str = setting("linf", "norm of the ball: linf, l2 or l1")
    bounds: tuple[float, float] | None = setting((0.0, 1.0), "range of x + delta; none for no limits")
    epochs: int = setting(20, "how often every sample is visited", least=1)
    batch_size: int = setting(50, "samples per step", least=1)
    seed: int = setting(0, "seed of the weights, the order and all noise")
    flip: bool = setting(False, "augment: flip left and right at random")
    crop: int = setting(0, "augment: shift at random by at most this number of pixels", least=0)
    ema: float = setting(
        0.0, "decay of an exponential average of the weights, which is then evaluated (0: no average)", least=0, below=1
    )
    clip: float | None = setting(None, "largest norm of a gradient; longer ones are shortened (default: none)", above=0)
    lanes: int = setting(
        1, "parts that a batch is computed in, to save memory or on several processes: a power of two up to 64", least=1
    )
    process_minutes: float = setting(
        10.0, "minutes that a process waits for the others before it gives up", above=0, may_change=True
    )
    validation: int = setting(0, "held-out samples, which choose the best checkpoint (0: none)", least=0)
    validate_on: str = setting(
        "train", "where these are taken from: train, or test as in the paper", choices=("train", "test")
    )
    evaluate_every: int = setting(1, "epochs between evaluations on the held-out samples", least=1)
    evaluate_with: str = setting("pgd-10", "the attack of these evaluations")
    memory: str | None = setting(
        None, "how the perturbation memory is kept: int8, fp16 or fp32 (default: int8 for linf, else fp16)"
    )
    memory_files: bool = setting(False, "keep the perturbation memory in files of the run instead of in RAM")
    checkpoint_minutes: float = setting(
        5.0, "minutes between checkpoints at most; each epoch ends with one", least=0, most=math.inf, may_change=True
    )
    precision: str = setting(
        "float32",
        "number format of the passes that search: float32, bfloat16, or auto (measured before the run)",
        choices=PRECISIONS,
    )
    train_precision: str = setting(
        "float32", "number format of the passes that train, likewise; the weights stay float32", choices=PRECISIONS
    )
    workers: int = setting(
        0,
        "processes that read a torch Dataset, or threads that read files, where data is not in RAM",
        least=0,
        may_change=True,
    )
    threads: int = setting(
        1,
        "threads to compute with on the processor; the last digits of results depend on it",
        least=1,
        most=1024,
        may_change=True,
    )
    device: str = setting("cpu", "where to compute: cpu, cuda, mps, ...", may_change=True)
    method: Choice = setting(Choice("msi-hg"), "name and hyperparameters of the method")  # noqa: RUF009
    optimizer: Choice = setting(  # noqa: RUF009
        Choice("sgd", {"lr": 0.05, "momentum": 0.9}),
        "name and options of any torch optimiser; theta of the hybrid gradient",
    )
    schedule: Choice = setting(Choice("constant"), "name and options of the learning rate's schedule")  # noqa: RUF009

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "norm", parse_norm(self.norm))
        if self.bounds is not None and not all(map(math.isfinite, self.bounds)):
            raise InputError("bounds-not-finite", bounds=self.bounds)
        if self.validate_on == "test" and not self.validation:
            raise InputError("validate-on-nothing")
        settings_class(self.method.name)  # raises if there is no such method

    def with_values(self, values: Table) -> "Settings":
        """Return settings with some values changed, given by name. Text such as "8/255" is converted.

        `tau` and `lr` stand for method.tau and optimizer.lr. A section's name alone keeps the options that the new name
        has too. A table with a name replaces its section; one without a name changes the options that it holds.
        """
        method = _name_given(values, "method") or self.method.name
        given = {resolve_name(name, method): value for name, value in values.items()}
        types = _types(Settings)
        changed: dict[str, Any] = {
            name: coerce(types[name], given[name], name) for name in given if name in types.keys() - {*SECTIONS}
        }
        before = {section: getattr(self, section) for section in SECTIONS}
        # A theta that was written down only for completeness does not follow to another method.
        if method != self.method.name and self.optimizer.options.get("theta") == _default_theta(self.method.name):
            kept = {key: value for key, value in self.optimizer.options.items() if key != "theta"}
            before["optimizer"] = Choice(self.optimizer.name, kept)
        changed |= {section: _changed(section, before[section], given) for section in SECTIONS}
        return replace(self, **changed)

    @property
    def theta(self) -> float:
        """The extrapolation of the hybrid gradient: as given, else the default of the method."""
        given = self.optimizer.options.get("theta")
        return float(given) if isinstance(given, int | float) else _default_theta(self.method.name)

    def method_arguments(self) -> dict[str, Any]:
        """Return what the method is built with: the run's values of shared fields, and the options given."""
        known = method_fields(self.method.name)
        shares = {name: item.metadata.get("share_of_epochs") for name, item in known.items()}
        defaults = {name: share * self.epochs for name, share in shares.items() if share is not None}
        return defaults | {name: getattr(self, name) for name in _shared(self.method.name)} | dict(self.method.options)

    @property
    def method_settings(self) -> Any:
        """The settings of the method as its dataclass, such as PGDSettings, with all values checked."""
        kind = settings_class(self.method.name)
        return kind(**match_fields(kind, f"method {self.method.name!r}", self.method_arguments()))

    def complete(self) -> "Settings":
        """Return the same settings with every default and absolute paths written out. Other versions run the same."""
        from sihg.robust.training.optimizer import option_defaults

        method, own = self.method_settings, _own_fields(self.method.name)
        values = {key: getattr(method, key) for key in own}
        options = fields(SCHEDULES[self.schedule.name]) if self.schedule.name in SCHEDULES else ()  # else refused later
        defaults = {item.name: item.default for item in options if item.default is not MISSING}
        optimizer = {**option_defaults(self.optimizer.name), **self.optimizer.options, "theta": self.theta}
        whole = replace(
            self,
            data=_absolute(self.data),
            model=_absolute(self.model),
            memory=self.memory or ("int8" if self.norm == "linf" else "fp16"),
            method=Choice(
                _absolute(self.method.name), {key: value for key, value in values.items() if value is not None}
            ),
            optimizer=Choice(self.optimizer.name, optimizer),
            schedule=Choice(self.schedule.name, {**defaults, **self.schedule.options}),
        )
        return whole.with_values({})  # converts torch's 0 for weight_decay to the 0.0 that is read back

    def as_dict(self) -> dict[str, Value | dict[str, Value]]:
        """Return the settings as the config file has them, where "none" stands for a setting without a value."""
        table: dict[str, Any] = {item.name: getattr(self, item.name) for item in fields(self)}
        table |= {section: {"name": table[section].name, **table[section].options} for section in SECTIONS}
        unset = {name for name, item in _own_fields(self.method.name).items() if item.default is None}
        table["method"] |= dict.fromkeys(sorted(unset - table["method"].keys()))
        return nest_settings(flatten_settings(table))

    def deciding(self) -> dict[str, Value]:
        """Return, by dotted name, the complete settings that a resumed run may not change."""
        may_change = {item.name for item in fields(self) if item.metadata.get("may_change")}
        table = self.complete().as_dict()
        return flatten_settings({name: value for name, value in table.items() if name not in may_change})

    def help_texts(self) -> dict[str, str]:
        """Return the help text of each setting by its dotted name."""
        parts = {"": fields(self), "optimizer.": fields(OptimizerOptions)}
        texts = {f"{prefix}{item.name}": item.metadata["help"] for prefix, part in parts.items() for item in part}
        own = _own_fields(self.method.name).items()
        return texts | {f"method.{name}": item.metadata.get("help", "") for name, item in own}


# ---- presets and files


def read_presets() -> dict[str, dict[str, Any]]:
    """Return the tables of all presets by name, as they are written."""
    found = {}
    for path in sorted((files("sihg") / "presets").iterdir(), key=lambda p: p.name):
        if path.name.endswith(".toml"):
            found[path.name.removesuffix(".toml")] = tomllib.loads(path.read_text(encoding="utf-8"))
    return found


def read_preset(name: str, method: str | None = None) -> Settings:
    """Return the settings of a preset for a method (default: its own)."""
    known = read_presets()
    if name not in known:
        raise UnknownNameError("preset", name, list(known))
    return _from_table(known[name], method)


def read_settings(path: Path, method: str | None = None, *, trust: bool = False) -> Settings:
    """Read settings from a TOML file: the config of a run, or one written like a preset, which needs no seal.

    The config of a foreign run may name code only with `trust`.
    """
    table = from_toml(path)
    by_user = "format" not in table  # not the config of a run, which sihg writes
    return _read_table(table, method, path, trust=trust or by_user)


def read_run_settings(folder: RunFolder, *, trust: bool = False, given: Collection[str] = ()) -> Settings:
    """Read the settings of a run. A file that was changed or cut short is an error.

    Args:
        folder: The run folder.
        trust: Whether code that a foreign folder names may run.
        given: Names of settings that the user gives instead of the folder's, such as "model".
    Raises:
        InputError: The file is damaged, or the folder is foreign and names code ("foreign-code").
    """
    path = folder.config
    table = {name: value for name, value in read_toml(path).items() if name not in REMOVED}
    missing = next((section for section in SECTIONS if section not in table), None)
    if missing or not path.read_bytes().endswith(b"\n"):  # before files had seals
        found = f"has no [{missing}]" if missing else "ends within a line"
        raise InputError("config-cut-short", path=path, found=found)
    return _read_table(table, None, path, trust=trust, given=given)


def _read_table(table: Table, method: str | None, path: Path, *, trust: bool, given: Collection[str] = ()) -> Settings:
    """Return the settings in a file. If it lies in a foreign folder and is not trusted, no code that it names runs."""
    is_trusted = trust or is_own(path.parent, path)
    try:
        with nullcontext() if is_trusted else refuse_user_code(path.parent, path):
            settings = _from_table(table, method)
    except InputError as error:
        raise error if error.code == "foreign-code" else error.within(path) from error
    if not is_trusted and (named := [text for name, text in code_in(settings).items() if name not in given]):
        raise InputError("foreign-code", folder=path.parent, code=", ".join(named), settings=path)
    return settings


def code_in(settings: Settings) -> dict[str, str]:
    """Return what names a user's own code: the name of the setting, and both in words.

    >>> code_in(Settings(model="nets.py:make", data="npz:a.npz"))
    {'model': 'model nets.py:make'}
    """
    names = {"method": settings.method.name, "model": settings.model, "data": settings.data}
    names["evaluate_with"] = settings.evaluate_with
    found = {key: name for key, name in names.items() if ":" in name and not name.startswith(_NOT_CODE.get(key, ()))}
    return {key: f"{key} {name}" for key, name in found.items()}


def _from_table(table: Table, method: str | None) -> Settings:
    """Return the settings of a table for a method (default: its own); [methods.NAME] holds what is special for it."""
    chosen = {key: value for key, value in table.items() if key not in ("about", "format", "methods")}
    special = table.get("methods", {})
    if not isinstance(special, Mapping) or not all(isinstance(part, Mapping) for part in special.values()):
        raise InputError("methods-not-tables", special=special)
    settings = Settings().with_values(chosen)
    settings = settings.with_values({"method": method or settings.method.name})
    return settings.with_values(special.get(settings.method.name, {}))


# ---- names


def resolve_name(name: str, method: str) -> str:
    """Return the dotted name of a setting as people type it: `tau` is method.tau, `lr` is optimizer.lr."""
    name = name.replace("-", "_")
    section, _, key = name.partition(".")
    if name in _types(Settings) or (section in SECTIONS and key):
        return section if key == "name" else name
    if name in _types(OptimizerOptions):
        return f"optimizer.{name}"
    if name in method_fields(method):
        return f"method.{name}"
    if owners := ", ".join(other for other in METHODS if name in method_fields(other)):
        raise InputError("setting-of-another-method", method=method, name=name, owners=owners)
    every = {
        *_types(Settings),
        *_types(OptimizerOptions),
        *(key for other in (*METHODS, method) for key in method_fields(other)),
    }
    near = difflib.get_close_matches(name, every, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "`sihg train --help` lists all settings"
    raise InputError("unknown-setting", name=name, hint=hint)


def _name_given(values: Table, section: str) -> str | None:
    """Return the name that the values give a section, or None."""
    value = values.get(section, values.get(f"{section}.name"))
    name = value.get("name") if isinstance(value, Mapping) else value
    return None if name is None else str(name)


def _absolute(source: str) -> str:
    """Make the path in npz:PATH and the like or PATH.py:NAME absolute, so that it is valid in every folder."""
    kind, _, path = source.partition(":")
    if kind in OWN_DATA and path:
        return f"{kind}:{expand_home(path).resolve()}"
    file, _, name = source.rpartition(":")
    return f"{expand_home(file).resolve()}:{name}" if file.endswith(".py") else source


# ---- sections


def _changed(section: str, before: Choice, given: Table) -> Choice:
    """Return a section with what is given for it: its name or a table first, then single options, in any order."""
    whole = given.get(section, {})
    if isinstance(whole, Mapping):
        name = str(whole.get("name", before.name))
        options: dict[str, object] = {} if "name" in whole else dict(before.options)
        options |= {key: value for key, value in whole.items() if key != "name"}
    else:
        name = str(whole)
        options = _kept(section, before, name)
    prefix = f"{section}."
    options |= {key.removeprefix(prefix): value for key, value in given.items() if key.startswith(prefix)}
    values = {key: _coerce_option(section, name, key, value) for key, value in options.items()}
    return Choice(name, {key: value for key, value in values.items() if value is not None})  # None: the default


def _kept(section: str, before: Choice, name: str) -> dict[str, object]:
    """Return the options that stay under another name: those that the new method has too; not an optimiser's lr."""
    if name == before.name:
        return dict(before.options)
    stay = {item.name for item in fields(OptimizerOptions) if item.metadata.get("stays")}
    stay = stay if section == "optimizer" else set(method_fields(name)) if section == "method" else set()
    return {key: value for key, value in before.options.items() if key in stay}


def _coerce_option(section: str, name: str, key: str, value: object) -> Value | None:
    """Convert an option to its declared type; one without, of an optimiser or a schedule, to what it looks like."""
    if section != "method":
        types = _types(OptimizerOptions) if section == "optimizer" else {}
        return coerce(types[key], value, key) if key in types else parse_literal(value)  # type: ignore[arg-type]
    if key in _shared(name):
        raise InputError("run-setting", key=key, value=value)
    if key not in method_fields(name):
        raise unknown_option(f"method {name!r}", key, method_fields(name))
    return coerce(_types(settings_class(name))[key], value, key)  # type: ignore[arg-type, no-any-return]


def _shared(method: str) -> list[str]:
    """Return the fields of a method whose values are the run's: eps, norm and bounds, which evaluations use too."""
    return [name for name in method_fields(method) if name in _types(Settings)]


def _own_fields(method: str) -> dict[str, Any]:
    """Return the fields of a method that are not shared with the run."""
    return {name: item for name, item in method_fields(method).items() if name not in _types(Settings)}


def _default_theta(method: str) -> float:
    return float(getattr(settings_class(method), "default_theta", MethodSettings.default_theta))


@cache
def _types(kind: type[Any]) -> dict[str, Any]:
    """Return the types of a dataclass's fields by name."""
    try:
        hints = get_type_hints(kind)
    except NameError as error:
        raise InputError("field-type", kind=kind, error=error) from error
    return {item.name: hints[item.name] for item in fields(kind)}
