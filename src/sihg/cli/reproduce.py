"""`sihg reproduce`: methods times seeds on a data set, side by side; a table, a page."""

import argparse
import json
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sihg.cli.parse_numbers import count
from sihg.cli.running import add_common, print_warnings, use_threads
from sihg.cli.setting_flags import add_settings_arguments, read_settings_arguments
from sihg.errors import InputError, SihgError, UnknownNameError

if TYPE_CHECKING:
    from sihg.experiments.grid import Cell, Grid
    from sihg.experiments.launcher import JobEnded

METHODS = "pgd,dat,yopo,msi-hg"
ATTACKS = "natural,pgd-20,pgd-50-10"
OURS = {"method": "--methods", "seed": "--trials", "data": "the name of the data"}

EPILOG = """examples:
  sihg reproduce digits
  sihg reproduce mnist --list
  sihg reproduce mnist --preset mnist-fast --methods pgd,msi-hg --trials 3 --epochs 8 --samples 2000
  sihg reproduce svhn --trials 1 --set samples=20000 --out runs/small-svhn

Any setting of `sihg train` may be given, and goes to those of the methods that have it; --samples is of the test,
--set samples=N of the training. Each cell is a run folder DIR/METHOD-sSEED, with what its processes said in output.log.
Ctrl-C, a kill, a crash: the same command goes on, and ends with the same table; results do not depend on --jobs. More
methods and more trials may be asked for later; other settings belong in another folder.
"""


def add_parser(commands: Any, summary: str) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "reproduce",
        help=summary,
        usage="sihg reproduce DATA [--methods A,B] [--trials N] [--jobs N] [--samples N] [--out DIR] [--list] "
        "[--SETTING VALUE ...]",
        description="Train each method with each seed by the settings of the data set's preset, attack what came out, "
        "and show mean and deviation over the seeds.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("data", metavar="DATA", help="digits, mnist, svhn or cifar10; with --preset, any data set")
    parser.add_argument("--methods", default=METHODS, metavar="A,B", help="by comma (default: %(default)s)")
    parser.add_argument("--trials", type=count, default=5, metavar="N", help="seeds 0 to N - 1 (default: %(default)s)")
    parser.add_argument("--attacks", default=ATTACKS, metavar="A,B", help="as in evaluate (default: %(default)s)")
    parser.add_argument("--samples", type=count, metavar="N", help="test on so many, drawn by class (default: all)")
    parser.add_argument("--preset", metavar="NAME", help="settings to begin with (default: the preset of the data)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the runs' folder (default: runs/reproduce-PRESET)")
    parser.add_argument("--jobs", type=count, metavar="N", help="cells at a time (default: as many as cores allow)")
    parser.add_argument("--list", action="store_true", help="tell what would run and what it would cost, and stop")
    add_common(parser, threads="threads of each cell, on which its last digits depend (default: 1)")
    add_settings_arguments(parser, skip=("samples",))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check and measure everything, run what is not done, show what came out."""
    from sihg.experiments.grid import count_cores

    given = read_settings_arguments(args)
    grid = _grid(args, given)
    jobs = count_cores() // grid.threads or 1 if args.jobs is None else args.jobs
    if jobs == 0:
        raise InputError("--jobs must be at least 1, got 0: leave it out for as many as there are cores")
    grid.check()
    left = [cell for cell in grid.cells() if cell.record() is None]
    costs = _costs(grid, left, args.data_dir)
    if args.list:
        from sihg.cli.grid_table import listing

        print(listing(grid, costs, jobs, as_json=args.json))
        return 0
    ended: dict[str, JobEnded] = {}
    stopped = False
    with grid.opened():
        if left:
            commands = {cell.name: _command(cell, args, given, grid.threads) for cell in left}
            stopped, ended = _run_all(grid, left, commands, costs, jobs)
        return _show(args, grid, ended, stopped=stopped)


# ---- what is asked


def _grid(args: argparse.Namespace, given: dict[str, str]) -> "Grid":
    from sihg.experiments.grid import Grid
    from sihg.robust.training.config import read_preset, read_presets

    for name in given:
        if name in OURS:
            raise InputError(f"--{name} is said by {OURS[name]} here: leave it out")
    own = [name for name, table in read_presets().items() if table["data"] == name]
    if args.preset is None and args.data not in own:
        raise UnknownNameError("data set", args.data, own)
    for name, least in (("trials", args.trials), ("samples", args.samples), ("threads", args.threads)):
        if least == 0:
            raise InputError(f"--{name} must be at least 1, got 0: give 1 or more, or leave it out")
    base = args.preset or args.data
    settings = {}
    for method in _names(args.methods, "methods"):
        settings[method] = read_preset(base, method).with_values({"data": args.data})
    settings = {name: one.with_values(_of(name, list(settings), given)) for name, one in settings.items()}
    print(f"settings: preset {base}", file=sys.stderr)
    return Grid(
        folder=args.out or Path("runs") / f"reproduce-{base}",
        settings=settings,
        trials=args.trials,
        attacks=tuple(_names(args.attacks, "attacks")),
        samples=args.samples,
        threads=args.threads or 1,
    )


def _names(text: str, what: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise InputError(f"--{what} names none: such as --{what} {METHODS if what == 'methods' else ATTACKS}")
    return names


def _of(method: str, methods: list[str], given: dict[str, str]) -> dict[str, str]:
    """Those of the given settings that a method has; one that none has is refused."""
    from sihg.robust.training.config import resolve_name

    def has(one: str, name: str) -> bool:
        try:
            resolve_name(name, one)
        except InputError:
            return False
        return True

    for name in given:
        if not any(has(one, name) for one in methods):
            resolve_name(name, method)  # says why
    return {name: value for name, value in given.items() if has(method, name)}


def _command(cell: "Cell", args: argparse.Namespace, given: dict[str, str], count: int) -> list[str]:
    """The command of a cell's process."""
    common = ["--threads", str(count), *(["--data-dir", str(args.data_dir)] if args.data_dir else [])]
    own = _of(cell.method, [cell.method, *_names(args.methods, "methods")], given)
    train = ["train", "--preset", args.preset or args.data, "--data", args.data, "--method", cell.method]
    train += ["--seed", str(cell.settings.seed), *(word for k, v in own.items() for word in ("--set", f"{k}={v}"))]
    train += [*common, "--out", str(cell.folder)]
    evaluate = ["evaluate", str(cell.folder), "--attacks", ",".join(cell.attacks), *common]
    evaluate += ["--samples", str(cell.samples)] if cell.samples is not None else []
    commands = [train, ["resume", str(cell.folder), *common], evaluate]
    return [sys.executable, "-m", "sihg.cli.grid_cell", str(cell.folder), *map(json.dumps, commands)]


# ---- what it costs


def _costs(grid: "Grid", left: "list[Cell]", data_dir: Path | None) -> dict[str, dict[str, float]]:
    """The seconds of each phase of a cell, by method, from a few measured steps; all mistakes show here."""
    if not left:
        return {}
    from sihg.experiments.cost import costs

    starting = time.process_time()  # what it took to come here, a cell's process takes too
    print("measuring a few steps of each method", file=sys.stderr)
    with print_warnings(), use_threads(grid.threads):
        found = {}
        for method in dict.fromkeys(cell.method for cell in left):
            measured = costs(grid.settings[method], grid.attacks, grid.samples, data_dir)
            found[method] = {"starting": starting, **measured}
    return found


# ---- running


def _run_all(
    grid: "Grid", left: "list[Cell]", commands: dict[str, list[str]], costs: dict[str, dict[str, float]], jobs: int
) -> "tuple[bool, dict[str, JobEnded]]":
    """Run the cells that are left; whether Ctrl-C came, and how those ended that were begun."""
    from contextlib import closing

    from sihg.cli.grid_progress import GridProgress, format_duration
    from sihg.experiments.launcher import Job, JobEnded, Launcher
    from sihg.experiments.time_left import TimeLeft, schedule_length

    all_of_it = len(grid.cells())
    about = format_duration(schedule_length([cell.remaining(costs[cell.method]) for cell in left], jobs))
    print(f"{len(left)} of {all_of_it} cells to run in {grid.folder}, {jobs} at a time: about {about}", file=sys.stderr)
    time_left = TimeLeft({cell.name: costs[cell.method] for cell in left}, jobs)
    todo = [Job(cell.name, commands[cell.name], cell.log) for cell in left]
    by_name = {cell.name: cell for cell in left}
    is_done = lambda name: by_name[name].record() is not None  # noqa: E731
    launcher, ended = Launcher(jobs), dict[str, JobEnded]()
    with (
        GridProgress(time_left, all_of_it, all_of_it - len(left), is_done) as progress,
        closing(launcher.run(todo)) as events,
    ):
        for event in events:
            progress.show(event)
            if isinstance(event, JobEnded):
                ended[event.name] = event
    return launcher.interrupted, ended


# ---- what came out


def _show(args: argparse.Namespace, grid: "Grid", ended: "dict[str, JobEnded]", *, stopped: bool) -> int:
    """Print the table and what to do next; the exit code."""
    from sihg.cli.grid_table import results_json, results_table
    from sihg.experiments.grid_summary import collect_warnings, summarise

    found, cells = summarise(grid), {cell.name: cell for cell in grid.cells()}
    lost = {name: end for name, end in ended.items() if cells[name].record() is None}
    failed = {name: end.reason for name, end in lost.items() if not (stopped and end.code == 130)}
    if not args.json:
        print(results_table(grid, found), flush=True)
    page = _page(grid.folder)
    if args.json:
        about = {"data": args.data, "folder": str(grid.folder), "attacks": list(grid.attacks), "trials": grid.trials}
        about |= {"methods": results_json(grid, found), "failed": failed, "finished": not (failed or stopped)}
        print(json.dumps({**about, "report": page}, indent=1, allow_nan=False), flush=True)
    wrong = False
    for warning in collect_warnings(grid):
        print(warning, file=sys.stderr)
        wrong |= warning.level == "error"
    for name, words in failed.items():
        print(f"failed: {name}: {words}; all that it said: {cells[name].log}", file=sys.stderr)
    if page:
        print(f"report: {page}", file=sys.stderr)
    again = shlex.join(["sihg", *sys.argv[1:]]) if sys.argv[1:2] == ["reproduce"] else "the same command"
    if stopped:
        print(f"to go on: {again}", file=sys.stderr)
        return 130
    if failed:
        print(f"{len(failed)} of {len(cells)} cells failed: when the reason is gone, {again} goes on", file=sys.stderr)
        return 1
    runs = f"{shlex.quote(str(grid.folder))}/*-s0"
    if "standard" not in grid.attacks and not list(grid.folder.glob("*/evaluation/*standard*.json")):
        print(f"next: sihg evaluate {runs} --attacks standard", file=sys.stderr)
    most = 2 * max(one.eps for one in grid.settings.values())
    if most and not list(grid.folder.glob("*/evaluation/*_curve-*.json")):
        print(f"accuracy against eps: sihg evaluate {runs} --attacks pgd-20 --curve 0:{most:g}:9", file=sys.stderr)
    return 1 if wrong else 0


def _page(folder: Path) -> str | None:
    """The report, where there are runs; what is in its way is told, since the table needs no page."""
    from sihg.report.read.runs import run_folders
    from sihg.report.training_report import report_training

    if not run_folders(folder):
        return None
    try:
        report_training(folder)
    except SihgError as error:
        print(f"warning: there is no report: {error}", file=sys.stderr)
        return None
    return str(folder / "index.html")
