"""`sihg data`: list the data sets, download them, and check their files."""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sihg.cli.terminal import SECONDS_BETWEEN_LINES, error_console, one_line, say, show

if TYPE_CHECKING:
    from rich.progress import TaskID

    from sihg.robust.data.overview import DataSetStatus

EPILOG = """examples:
  sihg data list
  sihg data get mnist
  sihg data check cifar10 --data-dir /data

Files are looked for in --data-dir, else in $SIHG_DATA, else in sihg/data in your cache folder. For data of your own,
give one of these instead of a name; what does not fit in memory is read when it is needed:
  folder:PATH   images, one sub-folder per class
  npz:PATH      a file with the arrays x, y and optionally x_test, y_test
  npy:PATH      a folder with x_train.npy, y_train.npy and optionally x_test.npy, y_test.npy
  hf:PATH       a Hugging Face data set that save_to_disk wrote (pip install 'sihg[hf]')
  wds:PATH      WebDataset shards: a folder, or a pattern such as 'data/set-{0000..0009}.tar'
"""
OWN = "your own data: folder:PATH, npz:PATH, npy:PATH, hf:PATH or wds:PATH (see `sihg data --help`)"


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", summary: str) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "data",
        help=summary,
        description="List the data sets, download their published files, and check the files on this machine.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--data-dir", type=Path, metavar="DIR", help="the folder of the data files")
    listing = actions.add_parser("list", parents=[common], help="list the data sets and their state on this machine")
    listing.add_argument("--json", action="store_true", help="print JSON instead of a table")
    listing.set_defaults(run=run_list)
    getting = actions.add_parser("get", parents=[common], help="download a data set")
    getting.add_argument("name", metavar="NAME", help="a data set, see `sihg data list`")
    getting.set_defaults(run=run_get)
    checking = actions.add_parser("check", parents=[common], help="read and hash the files of a data set again")
    checking.add_argument("name", metavar="NAME", help="a data set, see `sihg data list`")
    checking.set_defaults(run=run_check)


def run_list(args: argparse.Namespace) -> int:
    """Print the data sets."""
    import msgspec

    from sihg.robust.data.overview import overview

    rows = overview(args.data_dir)
    show(json.dumps(msgspec.to_builtins(rows), indent=1) if args.json else _table(rows))
    return 0


def _table(rows: "Sequence[DataSetStatus]") -> str:
    lines = [f"{'name':14} {'shape':12} {'classes':>7} {'train':>7} {'test':>7}  {'state':9} path"]
    for row in rows:
        shape = "x".join(map(str, row.shape))
        missing = f" (without {', '.join(row.missing)})" if row.state == "partial" else ""
        numbers = f"{row.classes:7} {row.train:7} {row.test:7}"
        lines.append(f"{row.name:14} {shape:12} {numbers}  {row.state:9} {row.path}{missing}")
    lines.append(OWN)
    return "\n".join(lines)


def run_get(args: argparse.Namespace) -> int:
    """Download the missing files and print their paths."""
    from sihg.robust.data.download import fetch
    from sihg.robust.data.sources import SOURCES

    if args.name == "digits":
        show("digits comes with the package: nothing to download")
        return 0
    if args.name in SOURCES and SOURCES[args.name].licence:
        say(SOURCES[args.name].licence)
    with _progress() as progress:
        paths = fetch(args.name, args.data_dir, progress)
    for path in paths:
        show(path)
    if not paths:
        show(f"{args.name} is already there")
    return 0


def run_check(args: argparse.Namespace) -> int:
    """Check every file; return 2 if a file is damaged or a needed part is missing."""
    from sihg.robust.data.overview import check_data_set

    verdicts, missing, usable = check_data_set(args.name, args.data_dir)
    for verdict in verdicts:
        show(f"{verdict.state:8} {verdict}")
    for part in missing:
        show(f"{'missing':8} {part}")
    return 0 if usable else 2


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function that shows progress: a bar per file on a terminal, otherwise a plain line now and then."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = error_console()
    if console.is_terminal:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as rich:
            tasks: dict[str, TaskID] = {}

            def draw(name: str, done: int, total: int) -> None:
                if name not in tasks:
                    tasks[name] = rich.add_task(one_line(name), total=total)
                rich.update(tasks[name], completed=done)

            yield draw
        return
    next_line = time.monotonic() + SECONDS_BETWEEN_LINES

    def print_line(name: str, done: int, total: int) -> None:
        nonlocal next_line
        if done == total or time.monotonic() >= next_line:
            next_line = time.monotonic() + SECONDS_BETWEEN_LINES
            say(f"{name}: {done / 1e6:.1f} of {total / 1e6:.1f} MB")

    yield print_line
