"""`sihg doctor`: print what this machine has and what would make it faster, for training and for bug reports."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sihg.cli.terminal import show


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", summary: str) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "doctor",
        help=summary,
        description="Print versions, the processor and its instructions, devices, data sets and free disk space, and "
        "advice: threads, bfloat16 (by a short measurement), data.",
    )
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="the folder of the data files")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Examine the machine and print the findings."""
    import msgspec

    from sihg.experiments.machine import examine_machine

    found = msgspec.to_builtins(examine_machine(args.data_dir))
    show(json.dumps(found, indent=1) if args.json else _text(found))
    return 0


def _text(found: Mapping[str, Any]) -> str:
    lines: list[str] = []
    for name, value in found.items():
        if name == "advice":
            lines += ["", "advice:", *(f"- {text}" for text in value or ["nothing to change"])]
        elif isinstance(value, dict):
            lines += [f"{name}:", *(f"  {key:14} {item}" for key, item in value.items())]
        else:
            lines.append(f"{name}: {', '.join(value) if isinstance(value, list | tuple) else value}")
    return "\n".join(lines)
