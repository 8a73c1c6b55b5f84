"""Flip bits, one at a time, in all files that a solve and a performance profile leave: `sihg check` must name them.

All files count: records, histories, states, tables, pages and pictures, and the owner's mark. Only `.lock` is left out,
which is empty once the command has ended.
"""

import contextlib
import io
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.timing import Report, Row
from sihg.cli.main import main
from sihg.store.verify import check_folder

FLIPS, SEED = 200, 0
COMMANDS = {
    "solve": ["solve", "weak-mvi", "--method", "ssi-hg,eg+,ssi-hg@adaptive", "--iterations", "60"],
    "profile": ["solve", "weak-mvi,matrix-game", "--method", "ssi-hg,gda", "--passes", "30"],
}


def run(repetitions: int, out: Path | None) -> Report:  # noqa: ARG001
    """Flip bits in fresh folders, and restore each."""
    rows: list[Row] = []
    unnamed: list[str] = []
    tried = named = 0
    with tempfile.TemporaryDirectory() as home:
        for name, words in COMMANDS.items():
            folder = make_folder(Path(home) / name, words)
            kinds, missed = flip_bits(folder, FLIPS, random.Random(SEED))
            unnamed += missed
            rows += [{"folder": name, "file": kind, "tried": n, "named": good} for kind, (n, good) in kinds.items()]
            tried += sum(n for n, _ in kinds.values())
            named += sum(good for _, good in kinds.values())
    return Report(
        f"`sihg check` names {tried} of {tried} files with a flipped bit",
        not unnamed,
        {"tried": tried, "named": named, "not named": ", ".join(unnamed[:5]) or "none", "seed": SEED},
        {"flips by file": rows},
    )


def make_folder(folder: Path, words: Sequence[str]) -> Path:
    """Run a command into a folder, quietly."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert main([*words, "--out", str(folder)]) == 0
    return folder


def flip_bits(folder: Path, flips: int, draw: random.Random) -> tuple[dict[str, tuple[int, int]], list[str]]:
    """Flip one bit at a time; return tried and named by kind of file, and the flips that were not named.

    Every file is tried about equally often, however long it is.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    assert not [check for check in check_folder(folder) if check.result != "good"]
    counts: dict[str, tuple[int, int]] = {}
    missed = []
    for number in range(flips):
        file = files[number % len(files)]
        good = file.read_bytes()
        place, bit = draw.randrange(len(good)), draw.randrange(8)
        file.write_bytes(good[:place] + bytes([good[place] ^ 1 << bit]) + good[place + 1 :])
        is_named = any(check.result == "wrong" and str(file) in check.message for check in check_folder(folder))
        file.write_bytes(good)
        tried, named = counts.get(file.name, (0, 0))
        counts[file.name] = tried + 1, named + is_named
        if not is_named:
            missed.append(f"{file.relative_to(folder)}, byte {place}, bit {bit}")
    return counts, missed
