"""Check that two versions of the package compute the same: compare two folders of runs, evaluations, grids or solves.

    python -m benchmarks.same_results BEFORE AFTER

Run the same commands with both versions (one thread, the same machine), each in a folder of its own. Weights, optimiser
states and perturbation memories must have the same bytes, tables and records the same values. Seconds, versions, checks
with a time budget and the words of files may differ.
"""

import csv
import json
import sys
import tomllib
from collections import Counter
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

COMPARED = (".csv", ".npz", ".safetensors", ".toml", ".json")
SKIPPED = ("environment.json", "manifest.json")  # versions; sums of files that are compared themselves
IGNORED = {"environment", "format", "checks", "command", "about", "report", "weights", "page", "folder"}
Content = dict[str, object] | list[object] | object


def without_seconds(value: Content) -> Content:
    """Return a record without seconds, versions and texts."""
    if isinstance(value, dict):
        return {k: without_seconds(v) for k, v in value.items() if "seconds" not in k and k not in IGNORED}
    return [without_seconds(item) for item in value] if isinstance(value, list) else value


def content(path: Path) -> Content:
    """Return what has to be the same in a file."""
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            return without_seconds(list(csv.DictReader(file)))
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name].tobytes() for name in arrays.files if name != "about"}
    if path.name == "state.safetensors":  # of a solve, whose header has its seconds
        return {name: tensor.tobytes() for name, tensor in load_file(path).items()}
    if path.suffix == ".safetensors":
        return path.read_bytes()
    text = path.read_text(encoding="utf-8")
    return without_seconds(tomllib.loads(text) if path.suffix == ".toml" else json.loads(text))


def compare(before: Path, after: Path) -> tuple[Counter[str], list[str]]:
    """Count the files that are the same, by ending, and list those that are not."""
    same: Counter[str] = Counter()
    different = []
    for path in sorted(before.rglob("*")):
        if path.suffix not in COMPARED or path.name in SKIPPED:
            continue
        other = after / path.relative_to(before)
        if other.is_file() and content(path) == content(other):
            same[path.suffix] += 1
        else:
            different.append(str(path.relative_to(before)))
    return same, different


if __name__ == "__main__":
    same, different = compare(Path(sys.argv[1]), Path(sys.argv[2]))
    for name in different:
        print(f"different: {name}")
    print(f"the same: {', '.join(f'{count} {suffix}' for suffix, count in same.items())}; different: {len(different)}")
    sys.exit(bool(different))
