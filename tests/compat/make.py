"""Make the files that later versions must read: `python -m tests.compat.make`, once per release (CONTRIBUTING.md).

Writes tests/compat/VERSION/files.tar.xz and tests/compat/VERSION/expected.json.
"""

import json
import os
import signal
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import sihg
from sihg.cli.main import main as command
from sihg.robust import data
from sihg.robust.models import build
from sihg.robust.training.events import EpochDone, Event
from sihg.store.checkpoint import newest_checkpoint
from sihg.store.schema import EvaluationRecord, read_evaluation
from sihg.store.tables import read_table

HERE = Path(__file__).parent
TINY: dict[str, Any] = {
    "method": "msi-hg",
    "eps": 0.25,
    "tau": 0.125,
    "steps": 2,
    "batch_size": 20,
    "lr": 0.05,
    "evaluate_with": "pgd-2",
}
EPOCHS, STOPPED_AFTER = 3, 2
SHAPE, CLASSES, WIDTH = (1, 8, 8), 10, 0.1
SAMPLES = 40


def make_files() -> None:
    """Make one folder of each kind here, small ones."""
    train, _ = data.load("digits")
    samples = train.take(slice(SAMPLES))

    def stop(event: Event) -> None:
        if isinstance(event, EpochDone) and event.row.epoch == STOPPED_AFTER:
            signal.raise_signal(signal.SIGINT)  # as Ctrl-C: it stops at a safe point

    more: dict[str, Any]
    for out, more in (("fit", {"validation": 10}), ("fit-memory-files", {"memory_files": True})):
        model = build("small-cnn", SHAPE, CLASSES, width=WIDTH)
        sihg.fit(model, samples, **TINY, **more, epochs=EPOCHS, out=out, on_event=stop)
    short = ["--epochs", "1", "--width", str(WIDTH), "--set", f"samples={SAMPLES}", "--batch-size", "20"]
    short += ["--validation", "10", "--evaluate-with", "pgd-2"]
    for words in (
        ["train", "--data", "digits", *short, "--steps", "2", "--out", "train"],
        ["evaluate", "train", "--attacks", "natural,pgd-2", "--samples", "30", "--points"],
        ["evaluate", "train", "--attacks", "pgd-2", "--samples", "20", "--curve", "0:0.2:3"],
        ["evaluate", "train", "--attacks", "pgd-2", "--samples", "10", "--minimum", "0.2"],
        ["solve", "ridge", "--set", "samples=20", "--method", "ssi-hg,gda", "--iterations", "20", "--out", "solve"],
        [*("reproduce", "digits", "--methods", "natural,pgd", "--trials", "2", "--attacks", "natural,pgd-2"),
         *("--samples", "20", *short, "--out", "grid")],
        ["pack", "grid", "--out", "grid.zip"],
    ):  # fmt: skip
        code = command(words)
        assert code == 0, f"sihg {' '.join(words)} ended with {code}"


def describe() -> dict[str, object]:
    """Return what later versions must find in the files."""
    record = read_evaluation(next(Path("train/evaluation").glob("*natural*.json")))
    assert isinstance(record, EvaluationRecord)
    checkpoint, _ = newest_checkpoint(Path("fit/checkpoints"), "last")
    assert checkpoint is not None
    memory = checkpoint.tensors["memory"]
    return {
        "accuracy": {row.attack: row.accuracy for row in record.attacks},
        "weights": record.sha256,
        "losses": [row["loss"] for row in read_table(Path("fit/metrics.csv"), sealed=True)],
        "memory": {name: float(tensor.double().abs().sum()) for name, tensor in memory.items()},
    }


def pack(to: Path) -> None:
    """Write all files here into one archive."""
    drawn = {".html", ".png", ".svg"}  # nobody reads them
    files = [path for path in sorted(Path().rglob("*")) if path.is_file() and path.suffix not in drawn]
    names = [path for path in files if path.name not in (".lock", ".owner") and path.parts[0] != "grid"]
    with tarfile.open(to, "w:xz", preset=9) as archive:
        for path in names:
            archive.add(path, filter=without_person)


def without_person(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out who made a file, and when."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def main() -> int:
    """Make the set of this version."""
    home = HERE / sihg.__version__
    home.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        make_files()
        pack(home / "files.tar.xz")
        (home / "expected.json").write_text(json.dumps(describe(), indent=1) + "\n", encoding="utf-8")
    print(f"{home}: {(home / 'files.tar.xz').stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
