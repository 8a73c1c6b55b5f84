"""A flag for every setting of a run, derived from the fields that define it."""

import argparse
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from types import UnionType
from typing import Any, get_args

from sihg.cli.common import SETTING
from sihg.errors import InputError
from sihg.robust.methods.registry import METHODS, method_fields
from sihg.robust.training.config import SECTIONS, OptimizerOptions, Settings, read_presets
from sihg.robust.training.schedules import SCHEDULES

METAVARS = {int: "N", float: "X", bool: "true|false"}


@dataclass(frozen=True)
class Flag:
    """A setting on the command line: its name, its type, its help text, and a longer name that works too."""

    name: str
    kind: Any
    help: str
    alias: str = ""

    def add_to(self, group: Any, *, hidden: bool) -> None:
        """Add the flag to a parser or a group of one."""
        kinds = get_args(self.kind) if isinstance(self.kind, UnionType) else (self.kind,)
        metavar = next((METAVARS[kind] for kind in kinds if kind in METAVARS), "VALUE")
        options: dict[str, Any] = {"dest": f"{SETTING}{self.name}", "default": argparse.SUPPRESS, "metavar": metavar}
        if bool in kinds:
            options |= {"nargs": "?", "const": "true"}
        about = argparse.SUPPRESS if hidden else self.help.replace("%", "%%")
        group.add_argument(f"--{self.name.replace('_', '-')}", help=about, **options)
        if self.alias:
            group.add_argument(f"--{self.alias.replace('_', '-')}", help=argparse.SUPPRESS, **options)


def add_settings_arguments(
    parser: argparse.ArgumentParser, *, skip: Collection[str] = (), hidden: bool = False
) -> None:
    """Add a flag for every setting but those to `skip`, and `--set` for those without one; `hidden`: without help."""
    for title, description, flags in _groups():
        group = parser if hidden else parser.add_argument_group(title, description)
        for flag in flags:
            if flag.name not in skip:
                flag.add_to(group, hidden=hidden)
    about = "a setting by its dotted name, such as schedule.peak=5 or optimizer.betas=[0.9,0.99]; repeat for several"
    about = argparse.SUPPRESS if hidden else about
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=about)


def read_settings_arguments(args: argparse.Namespace) -> dict[str, str]:
    """Return the settings that were given, as text by name, ready for `Settings.with_values`."""
    given = {key.removeprefix(SETTING): value for key, value in vars(args).items() if key.startswith(SETTING)}
    for text in args.set:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InputError("set-not-key-value", text=text)
        given[name.replace("-", "_").removesuffix(".name")] = value
    return given


def _groups() -> Iterator[tuple[str, str, list[Flag]]]:
    """Yield the title, the description and the flags of each group."""
    run = {item.name: item for item in fields(Settings) if item.name not in SECTIONS}
    presets = {name: table.get("about", "") for name, table in read_presets().items()}
    about = f"The defaults are those without a preset. Presets:\n{_lines(presets)}"
    yield "settings of every run", about, [_flag(item, name) for name, item in run.items()]

    names = dict.fromkeys(name for method in METHODS for name in method_fields(method) if name not in run)
    chosen = Flag("method", str, "a method by name, or path.py:Class, whose fields are flags as well (default: msi-hg)")
    methods = {name: _first_line(entry.settings) for name, entry in METHODS.items()}
    yield "method", _lines(methods), [chosen, *map(_method_flag, names)]

    usual = Settings().optimizer.options
    chosen = Flag("optimizer", str, "an optimiser of torch.optim, such as sgd or adamw (default: sgd)")
    shared = fields(OptimizerOptions)
    flags = [_flag(item, item.name, f"optimizer.{item.name}", usual.get(item.name)) for item in shared]
    yield "optimizer", "Its other options are given as --set optimizer.OPTION=VALUE.", [chosen, *flags]

    chosen = Flag("schedule", str, "the learning rate over the epochs (default: constant)")
    options = {item.name: item for kind in SCHEDULES.values() for item in fields(kind)}
    over = Flag("schedule.over", float, "epochs that these options are written for (default: those of the run)")
    flags = [_flag(item, f"schedule.{key}") for key, item in options.items() if key not in ("lr", "epochs")]
    yield "schedule", _lines({name: _first_line(kind) for name, kind in SCHEDULES.items()}), [chosen, *flags, over]


def _flag(item: "Field[Any]", name: str, alias: str = "", default: Any = MISSING) -> Flag:
    about, default = item.metadata.get("help", ""), item.default if default is MISSING else default
    return Flag(name, item.type, f"{about}{_default(about, default)}".strip(), alias)


def _method_flag(name: str) -> Flag:
    """Return the flag of a hyperparameter that several methods may have, each with its default."""
    items = {method: method_fields(method)[name] for method in METHODS if name in method_fields(method)}
    first, defaults = next(iter(items.values())), {method: _plain(item.default) for method, item in items.items()}
    shown = _default(first.metadata["help"], first.default)
    if len(set(defaults.values())) > 1:
        shown = f" (default: {', '.join(f'{method} {default}' for method, default in defaults.items())})"
    return Flag(name, first.type, f"{first.metadata['help']}{shown} [{', '.join(items)}]", f"method.{name}")


def _default(about: str, default: Any) -> str:
    """Return the words for a default, unless the help text has some."""
    return "" if default in (None, MISSING) or "(default" in about else f" (default: {_plain(default)})"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return ",".join(map(_plain, value)) if isinstance(value, tuple) else str(value)


def _lines(texts: Mapping[str, str]) -> str:
    return "\n".join(f"{name:18} {text}" for name, text in texts.items())


def _first_line(kind: type) -> str:
    return (kind.__doc__ or "").strip().split("\n")[0]
