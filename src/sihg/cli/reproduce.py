"""`sihg reproduce`: train and attack several methods with several seeds; print a table, write a page."""

import argparse
import shlex
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from sihg.cli.common import add_common, add_threads, add_trust, count, print_warnings
from sihg.cli.setting_flags import add_settings_arguments, read_settings_arguments
from sihg.cli.terminal import format_duration, say, show

if TYPE_CHECKING:
    from sihg.core.processes import Processes
    from sihg.experiments.grid_run import GridResult, GridRun

METHODS = "pgd,dat,yopo,msi-hg"
ATTACKS = "natural,pgd-20,pgd-50-10"

EPILOG = """examples:
  sihg reproduce digits
  sihg reproduce paper-mnist --list
  sihg reproduce mnist --preset mnist-fast --methods pgd,msi-hg --trials 3 --epochs 8 --samples 2000
  sihg reproduce svhn --trials 1 --set samples=20000 --out runs/small-svhn
  torchrun --nproc-per-node 4 -m sihg reproduce mnist
  sihg reproduce cifar10 --device cuda --launcher slurm --slurm gpus_per_node=1 --slurm time=8:00:00

Any setting of `sihg train` may be given; it goes to the methods that have it. --samples is the number of test samples,
--set samples=N the number of training samples. Each cell is a run folder DIR/METHOD-sSEED; output.log there has the
output of its processes. After Ctrl-C, a kill or a crash, the same command continues and ends with the same table.
Results do not depend on --jobs or --launcher. Methods and trials may be added later; other settings need another DIR.

With --launcher slurm each cell is a job of the cluster; DIR/submitit has the output of the jobs. Ctrl-C then ends only
the waiting: the jobs go on, and the same command waits for them. --jobs limits how many run at a time (default: all).
Under torchrun the cells are divided over its processes; each runs --jobs at a time (default: 1).
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", summary: str) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "reproduce",
        help=summary,
        usage="sihg reproduce DATA|PRESET [--methods A,B] [--trials N] [--jobs N] [--samples N] [--out DIR] [--list] "
        "[--SETTING VALUE ...]",
        description="Train each method with each seed, starting from the preset of the data set, attack the trained "
        "models, and show the means over the seeds, with their deviation or, of two seeds, their range.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "data", metavar="DATA", help="digits, mnist, svhn or cifar10; any preset; with --preset, any data set"
    )
    parser.add_argument("--methods", default=METHODS, metavar="A,B", help="methods (default: %(default)s)")
    parser.add_argument("--trials", type=count, default=5, metavar="N", help="seeds 0 to N - 1 (default: %(default)s)")
    parser.add_argument("--attacks", default=ATTACKS, metavar="A,B", help="as in evaluate (default: %(default)s)")
    parser.add_argument("--samples", type=count, metavar="N", help="test samples, drawn by class (default: all)")
    parser.add_argument("--preset", metavar="NAME", help="settings to begin with (default: the preset of the data)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the runs (default: runs/reproduce-PRESET)")
    parser.add_argument("--jobs", type=count, metavar="N", help="cells at a time (default: as many as cores allow)")
    parser.add_argument(
        "--launcher", choices=("local", "slurm"), default="local", help="processes here, or jobs of a Slurm cluster"
    )
    parser.add_argument(
        "--slurm",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of the jobs, such as partition=gpu, time=4:00:00 or mem_gb=16; repeat for several",
    )
    parser.add_argument("--list", action="store_true", help="show the cells and their estimated cost, and stop")
    add_trust(parser)
    add_common(parser)
    add_threads(parser, "threads per cell; the last digits of results depend on it (default: 1)")
    add_settings_arguments(parser, skip=("samples", "threads"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the grid, and print each warning as one line. Of torchrun's processes only the first one prints."""
    from sihg.experiments.torchrun import hear_first, joined_processes

    with print_warnings(), joined_processes() as processes:
        if processes.is_first:
            return _run(args, processes)
        if hear_first(processes):
            for _ in _grid_run(args, processes).events():
                pass
        return 0


def _grid_run(args: argparse.Namespace, processes: "Processes") -> "GridRun":
    """Build and check the grid."""
    from dataclasses import replace

    from sihg.experiments.grid_run import GridRun, build_grid

    grid = build_grid(
        args.data,
        methods=args.methods,
        trials=args.trials,
        attacks=args.attacks,
        samples=args.samples,
        preset=args.preset,
        out=args.out,
        threads=1 if args.threads is None else args.threads,
        trust=args.trust,
        settings=read_settings_arguments(args),
    )
    return GridRun(
        replace(grid, command=_own_command()),
        jobs=args.jobs,
        data_dir=args.data_dir,
        launcher=args.launcher,
        slurm=args.slurm,
        processes=processes,
    )


def _run(args: argparse.Namespace, processes: "Processes") -> int:
    """Measure the grid, run the cells that are not done, print the results."""
    from sihg.cli.grid_progress import GridProgress
    from sihg.cli.grid_table import listing
    from sihg.experiments.torchrun import hear_first

    grid_run = _grid_run(args, processes)
    grid = grid_run.grid
    say(f"settings: preset {args.preset or args.data}")
    for remark in grid.remarks:
        say(f"settings: {remark}")
    cells, left = len(grid_run.cells), len(grid_run.left)
    if left:
        say("measuring a few steps of each method")
        grid_run.measure()
    if args.list:
        show(listing(grid, grid_run.costs, grid_run.at_once, as_json=args.json))
        hear_first(processes, is_ready=False)
        return 0
    if left:
        amount = f"{left} of {cells} cells to run in {grid.folder}, {grid_run.at_once} at a time"
        say(f"{amount}: about {format_duration(grid_run.seconds())}")
    with (
        GridProgress(grid_run.time_left(), cells, cells - left, grid_run.is_done) as display,
        closing(grid_run.events()) as events,
    ):
        for event in events:
            display.show(event)
    return _show(grid_run.result(), as_json=args.json)


def _show(result: "GridResult", *, as_json: bool) -> int:
    """Print the table and what to do next; return the exit code."""
    from sihg.cli.grid_table import results_json, results_table

    grid, cells = result.grid, result.grid.cells()
    if as_json:
        show(results_json(result))
    else:
        show(results_table(grid, result.methods))
    if result.page_error:
        say(f"warning: there is no report: {result.page_error}")
    for warning in result.warnings:
        say(warning)
    for name, reason in result.failed.items():
        log = next(cell.log for cell in cells if cell.name == name)
        say(f"failed: {name}: {reason}; its whole output: {log}")
    if result.page:
        say(f"report: {result.page}")
    command = _own_command() or "the same command"
    if result.interrupted:
        if result.queued:
            say(f"{len(result.queued)} jobs go on; to cancel them: scancel {' '.join(result.queued)}")
        say(f"to continue: {command}")
        return 130
    if result.failed:
        failures = f"{len(result.failed)} of {len(cells)} cells failed"
        say(f"{failures}: remove the cause, then {command} continues")
        return 1
    _suggest(result)
    return 1 if any(warning.level == "error" for warning in result.warnings) else 0


def _own_command() -> str:
    """Return the command line of this process; empty if it was called in another way."""
    return shlex.join(["sihg", *sys.argv[1:]]) if sys.argv[1:2] == ["reproduce"] else ""


def _suggest(result: "GridResult") -> None:
    """Print commands that complete the picture, unless their records are there."""
    grid = result.grid
    runs = f"{shlex.quote(str(grid.folder))}/*-s0"
    if "standard" not in grid.attacks and not list(grid.folder.glob("*/evaluation/*standard*.json")):
        say(f"next: sihg evaluate {runs} --attacks standard")
    radius = 2 * max(settings.eps for settings in grid.settings.values())
    if radius and not list(grid.folder.glob("*/evaluation/*_curve-*.json")):
        say(f"accuracy against eps: sihg evaluate {runs} --attacks pgd-20 --curve 0:{radius:g}:9")
