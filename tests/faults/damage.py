"""Flip a bit of a file, or cut it short; then each command that reads it says so, or gives the same result."""

import hashlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import sihg
from sihg.cli.main import main
from sihg.errors import SihgError
from sihg.robust.evaluation.partial import PartialResults
from sihg.robust.training.events import StepDone
from tests.faults import workloads
from tests.faults.child import Ended, run_in_child
from tests.faults.tally import Tally, spread
from tests.faults.workloads import RUN, SMALL, TRAIN, Result, digest, scrub, workshop

FEW, MORE = 60, 80  # points in `make test`, quick and slow
LONG = 1500  # points: 1,000 flips and 500 cuts
ATTACKS = "natural,pgd-3"  # of the evaluation that is interrupted
STOP_AT = 3  # the step after which a training is interrupted

Damage = Callable[[Path, random.Random], str]  # returns what it did


@dataclass(frozen=True)
class Reader:
    """A command that reads a folder."""

    name: str
    read: Callable[[], int]  # returns an exit code
    written: Callable[[], Result] = dict  # returns what the command has written to the disk
    computes: bool = False  # whether what it prints and writes has times of its own


@dataclass(frozen=True)
class Folder:
    """A folder of results: how to make it, and the commands that read it."""

    name: str
    make: Callable[[], object]
    readers: Sequence[Reader]


# ---- making folders


def train_half(*more: str) -> None:
    assert main([*TRAIN, *more, "--log", f"{__name__}:stop"]) == 130


def stop(event: object) -> None:
    """Ask for the end of a training, as Ctrl-C does."""
    if isinstance(event, StepDone) and event.step == STOP_AT:
        os.kill(os.getpid(), signal.SIGINT)


def train_and_evaluate() -> None:
    """Train, evaluate, measure a curve, and interrupt another evaluation."""
    assert workloads.train() == 0
    assert workloads.evaluate() == 0
    assert main(["evaluate", "run", "--attacks", "pgd-2", "--samples", "20", "--curve", "0:1/8:3"]) == 0
    keep = PartialResults.keep

    def keep_and_stop(self: PartialResults, part: Any) -> None:
        keep(self, part)
        if part.key == "pgd-3":
            raise KeyboardInterrupt

    PartialResults.keep = keep_and_stop  # type: ignore[method-assign]
    assert main(EVALUATE) == 130


# ---- reading folders


def load(checkpoint: str) -> int:
    """Load the model of a run, and print its weights."""
    try:
        model = sihg.load(RUN, checkpoint=checkpoint)
    except SihgError:
        return 2
    print({name: digest(tensor.numpy()) for name, tensor in model.state_dict().items()})
    return 0


def reported() -> Result:
    files = [*RUN.glob("report/*"), *RUN.glob("*.svg"), *RUN.glob("table.*"), RUN / "index.html"]
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


EVALUATE = ["evaluate", "run", "--attacks", ATTACKS, "--samples", "20", "--points", "--json"]
SETTINGS = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
GRID = ["--methods", "msi-hg", "--trials", "1", "--attacks", "natural,pgd-2", "--samples", "20", *SETTINGS]

RESUME = Reader("resume", partial(main, ["resume", "run", "--json"]), workloads.trained, computes=True)
COMPARE = Reader("compare", partial(main, ["compare", "run", "--json"]))
REPORT = Reader("report", partial(main, ["report", "run"]), reported)
OF_RUN = (
    Reader("load", partial(load, "last")),
    Reader("load best", partial(load, "best")),
    Reader("evaluate", partial(main, EVALUATE), workloads.evaluated, computes=True),
)
REPRODUCE = Reader("reproduce", partial(main, ["reproduce", "digits", "--out", "run", "--json", *GRID]), computes=True)
GO_ON = ["solve", "--resume", "run", "--iterations", "6", "--json"]
SOLVE = Reader("solve", partial(main, GO_ON), workloads.solved, computes=True)

FOLDERS = (
    Folder("run", train_half, [RESUME]),
    Folder("run with memory files", partial(train_half, "--memory-files"), [RESUME]),
    Folder("run with evaluations", train_and_evaluate, [RESUME, *OF_RUN, COMPARE, REPORT]),
    Folder("grid", workloads.reproduce, [REPRODUCE, COMPARE, REPORT]),
    Folder("solve", workloads.solve, [SOLVE, REPORT]),
)


def draw_quickly(figure: Figure, file: Any, **_: object) -> None:
    """Save what a figure shows as numbers and text, which takes much less time than a picture."""
    shown: list[str] = []
    for axes in figure.axes:
        arrays = [line.get_xydata() for line in axes.lines] + [image.get_array() for image in axes.images]
        arrays += [values for part in axes.collections for values in (part.get_offsets(), part.get_array())]
        shown += [digest(np.asarray(array, float)) for array in arrays if array is not None]
        shown += [text.get_text() for text in axes.texts] + [str(patch) for patch in axes.patches]
    file.write(f'<svg width="9pt" height="9pt" viewBox="0 0 9 9"><!-- {shown} --></svg>'.encode())


def read_folder(reader: Reader) -> tuple[int, Result, set[str]]:
    """Read the folder; return the exit code, what was written, and the files that were opened for reading."""
    Figure.savefig = draw_quickly  # type: ignore[assignment, method-assign]
    opened: set[str] = set()

    def note(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[0], str | Path) and not args[2] & os.O_WRONLY:
            opened.add(os.path.relpath(args[0]))

    sys.addaudithook(note)
    code, read = reader.read(), set(opened)
    return code, {} if code else reader.written(), read


# ---- damage


@dataclass(frozen=True)
class Target:
    """A kind of file: its instances, and what each reader of it does when nothing is damaged."""

    home: Path
    name: str
    files: list[str]
    readers: list[tuple[Reader, Ended]]


def run(points: int | None) -> Tally:
    """Damage files of all kinds `points` times, two flips for each cut; None for the long form."""
    tally, points = Tally("flipped bits, files cut short"), points or LONG
    with workshop() as home:
        targets = [target for i, folder in enumerate(FOLDERS) for target in _prepare(folder, home / f"{i}")]
        for damage, count in ((flip, points - points // 3), (cut, points // 3)):
            for i, target in enumerate(islice(cycle(spread(targets, count)), count)):
                tally.add(_find_fault(target, damage, random.Random(i)))
    return tally


def _find_fault(target: Target, damage: Damage, draw: random.Random) -> str | None:
    """Damage a file of a copy, and let all its readers read it; return what the first one that failed did."""
    file = draw.choice(target.files)
    with tempfile.TemporaryDirectory(dir=target.home.parent) as name:
        damaged = Path(name, "damaged")
        shutil.copytree(target.home, damaged)
        what = damage(damaged / file, draw)
        for reader, good in target.readers:
            copy = Path(name, reader.name)
            shutil.copytree(damaged, copy)
            ended = run_in_child(partial(read_folder, reader), copy)
            if failure := _find_silence(ended, good, Path(file), computes=reader.computes):
                return f"{target.name}, {file}, {what}: {reader.name} {failure}"
    return None


def flip(file: Path, draw: random.Random) -> str:
    data = bytearray(file.read_bytes())
    place, bit = draw.randrange(len(data)), draw.randrange(8)
    data[place] ^= 1 << bit
    file.write_bytes(data)
    return f"bit {bit} of byte {place} flipped"


def cut(file: Path, draw: random.Random) -> str:
    data = file.read_bytes()
    anywhere = draw.randrange(len(data))
    left = draw.choice([0, len(data) - 1, anywhere, data.rfind(b"\n", 0, anywhere) + 1])  # the last: after a whole line
    file.write_bytes(data[:left])
    return f"cut to {left} of {len(data)} bytes"


def _find_silence(ended: Ended, good: Ended, file: Path, *, computes: bool) -> str | None:
    """Return None if a reader said that the file is damaged, or did what it does without damage."""
    if ended.value is None:
        return str(ended)
    code, result, _ = ended.value
    if code or (result == good.value[1] and (ended.output == good.output or (computes and _same(ended, good)))):
        return None
    names = {file.name, *file.parts[-2:] * ("checkpoints" in file.parts)}
    is_named = any(name in line for name in names for line in ended.new_warnings(good))
    return None if is_named else "gives another result without a word"


def _same(ended: Ended, good: Ended) -> bool:
    """Return whether two outputs, as JSON, differ only in times."""
    return bool(scrub(json.loads(ended.output)) == scrub(json.loads(good.output)))


def _prepare(folder: Folder, home: Path) -> list[Target]:
    """Make a folder, and find out which reader reads which file."""
    home.mkdir()
    made = run_in_child(folder.make, home)
    assert not made.traceback, made.traceback
    readers: dict[str, list[tuple[Reader, Ended]]] = {}
    for reader in folder.readers:
        with tempfile.TemporaryDirectory(dir=home.parent) as copy:
            shutil.copytree(home, copy, dirs_exist_ok=True)
            good = run_in_child(partial(read_folder, reader), Path(copy))
        assert good.value is not None, good.traceback
        assert good.value[0] == 0, f"{folder.name}: {reader.name} {good}"
        for file in good.value[2]:
            if file.startswith("run/") and (home / file).is_file() and Path(file).name != ".lock":
                readers.setdefault(file, []).append((reader, good))
    kinds: dict[str, list[str]] = {}
    for file, found in sorted(readers.items()):
        kinds.setdefault(f"{re.sub('[0-9]+', '#', file)} {[reader.name for reader, _ in found]}", []).append(file)
    return [Target(home, folder.name, files, readers[files[0]]) for files in kinds.values()]
