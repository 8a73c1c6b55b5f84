"""`sihg doctor`: what this machine has, for training and for reports of trouble."""

import argparse
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

PROBE_SECONDS = 120
PROBE = """
import torch
x = torch.rand(2, 3, 8, 8).to(torch.{kind}).requires_grad_()
torch.nn.Conv2d(3, 4, 3).to(torch.{kind})(x).float().sum().backward()
"""


def add_parser(commands: Any, summary: str) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "doctor",
        help=summary,
        description="Tell the versions, the processor and what it can do, the devices, the data sets and free space.",
    )
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="the folder of the data files")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Look and tell."""
    found = examine(args.data_dir)
    print(json.dumps(found, indent=1) if args.json else _text(found))
    return 0


def examine(data_dir: Path | None) -> dict[str, Any]:
    """All that is told."""
    import msgspec
    import torch

    from sihg.robust.data.locations import data_folder
    from sihg.robust.data.overview import overview
    from sihg.store.environment import describe_environment

    folder = data_folder(data_dir)
    return {
        "versions and hardware": msgspec.to_builtins(describe_environment()),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "convolutions": {kind: probe(PROBE.format(kind=kind)) for kind in ("bfloat16", "half")},
        "devices": _devices(),
        "data folder": str(folder),
        "data": {row["name"]: row["state"] for row in overview(data_dir)},
        "free gigabytes": {"here": _free(Path.cwd()), "data folder": _free(folder)},
    }


def probe(code: str) -> str:
    """Whether code works here, in a process of its own: an instruction that is missing would kill ours."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {PROBE_SECONDS} s"
    if done.returncode < 0:
        return f"killed by {signal.Signals(-done.returncode).name}"
    return "work" if done.returncode == 0 else f"fail ({(done.stderr.strip().splitlines() or ['no message'])[-1]})"


def _devices() -> list[str]:
    import torch

    cuda = [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
    return ["cpu", *cuda, *(["mps"] if torch.backends.mps.is_available() else [])]


def _free(folder: Path) -> float:
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    return round(shutil.disk_usage(there).free / 1e9, 1)


def _text(found: dict[str, Any]) -> str:
    lines = []
    for name, value in found.items():
        if isinstance(value, dict):
            lines += [f"{name}:", *(f"  {key:14} {item}" for key, item in value.items())]
        else:
            lines.append(f"{name}: {', '.join(value) if isinstance(value, list) else value}")
    return "\n".join(lines)
