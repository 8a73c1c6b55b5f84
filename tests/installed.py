"""Use the built wheel as a user does: in a new environment, outside the repository, with runtime dependencies only.

`make wheel-test`, or `python -m tests.installed [--python PYTHON] [--keep DIR]`: build the wheel, install it and run
the README's Python code, the demo, reports and every example; then measure how long `import sihg` and each `--help`
take beside `import torch`. This takes about ten minutes. The exit code is 1 if something failed.
"""

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from sihg.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
REPETITIONS = 7
MAX_IMPORT = 0.060  # seconds
MAX_HELP = 1 / 3  # of `import torch`
DEMO = ["reproduce", "digits", "--methods", "natural,pgd,msi-hg", "--trials", "2", "--out", "runs/demo"]
SHORT_RUN = ["train", "--preset", "digits", "--model", "threshold-cnn", "--epochs", "2", "--out", "runs/threshold"]
EXAMPLES = {  # their arguments; these run on two processes: None
    "adaptive_attack.py": ["runs/threshold", "--attacks", "natural", "--samples", "50"],
    "robust_network.py": ["--iterations", "20"],
    "accelerate_loop.py": None,
    "ddp.py": None,
    "fsdp2.py": None,
}
NEED = {  # the library is not a dependency: it is installed after all the others have run
    "accelerate_loop.py": "accelerate",
    "lightning_msi_hg.py": "lightning",
}


class Installed:
    """A new environment with the wheel, and an empty folder to work in."""

    def __init__(self, home: Path, python: str) -> None:
        self.home, self.bin, self.work = home, home / "venv" / "bin", home / "work"
        self.failures: list[str] = []
        self.work.mkdir(parents=True)
        dist = home / "dist"
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(dist)], cwd=ROOT, check=True
        )
        (wheel,) = dist.glob("*.whl")
        subprocess.run([python, "-m", "venv", str(home / "venv")], check=True)
        self.install("-c", str(ROOT / "constraints.txt"), str(wheel))

    def install(self, *words: str) -> None:
        pip = [str(self.bin / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *words], cwd=self.work, check=True)

    def run(self, what: str, *words: str) -> str:
        """Run a program of the environment; note if it fails. Returns its output."""
        begin = time.monotonic()
        done = subprocess.run([str(self.bin / words[0]), *words[1:]], **self._how())  # type: ignore[call-overload]
        result = "ok" if done.returncode == 0 else f"FAILED ({done.returncode})"
        print(f"{what}: {result}, {time.monotonic() - begin:.0f} s", flush=True)
        if done.returncode:
            self.failures.append(what)
            print(done.stdout[-2000:], done.stderr[-4000:], sep="\n", flush=True)
        return str(done.stdout)

    def seconds(self, *words: str) -> float:
        """Return the processor time of a program: other work on the machine does not count."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([str(self.bin / words[0]), *words[1:]], check=True, **self._how())  # type: ignore[call-overload]
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def _how(self) -> dict[str, object]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        state = {"OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(self.home / "state"), "HOME": str(self.home)}
        return {"cwd": self.work, "env": {**inherited, **state}, "capture_output": True, "text": True}


def run_readme(installed: Installed) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for number, block in enumerate(blocks):
        file = installed.work / f"readme_{number}.py"
        file.write_text(block, encoding="utf-8")
        installed.run(f"README, block {number}", "python", file.name)


def run_commands(installed: Installed) -> None:
    table = installed.run("demo", "sihg", *DEMO)
    print(table)
    if not (installed.work / "runs" / "demo" / "index.html").is_file():
        installed.failures.append("the demo's page")
    for what, words in {
        "report of a run": ["report", "runs/demo/pgd-s0"],
        "compare": ["compare", "runs/demo/pgd-s0", "runs/demo/msi-hg-s0"],
        "solve": ["solve", "ridge", "--iterations", "50", "--out", "runs/solve"],
        "report of a solve": ["report", "runs/solve"],
        "doctor": ["doctor"],
    }.items():
        installed.run(what, "sihg", *words)


def run_examples(installed: Installed) -> None:
    installed.run("a run for the examples", "sihg", *SHORT_RUN)
    examples = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
    for name in sorted(examples, key=lambda name: name in NEED):
        shutil.copy(ROOT / "examples" / name, installed.work)
        if name in NEED:
            installed.install("-c", str(ROOT / "constraints.txt"), NEED[name])
        words = EXAMPLES.get(name, [])
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if words is None else []
        installed.run(f"examples/{name}", "python", *launch, name, *(words or []))


def measure_starts(installed: Installed) -> None:
    """Measure the programs in turn."""
    programs: dict[str, Sequence[str]] = {
        "nothing": ["python", "-c", "pass"],
        "import torch": ["python", "-c", "import torch"],
        "import sihg": ["python", "-c", "import sihg"],
        "sihg --help": ["sihg", "--help"],
        **{f"sihg {name} --help": ["sihg", name, "--help"] for name in COMMANDS},
    }
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(REPETITIONS):
        for name, words in programs.items():
            seconds[name].append(installed.seconds(*words))
    start = median(seconds.pop("nothing"))
    own = {name: max(0.0, median(found) - start) for name, found in seconds.items()}
    print(f"processor time of a start, medians of {REPETITIONS}, less the {1e3 * start:.0f} ms of Python itself:")
    for name, found in own.items():
        share = found / own["import torch"]
        is_slow = (name == "import sihg" and found > MAX_IMPORT) or (name.endswith("--help") and share > MAX_HELP)
        print(f"  {name:24} {1e3 * found:7.0f} ms  {share:.2f} of import torch{'  TOO SLOW' if is_slow else ''}")
        if is_slow:
            installed.failures.append(name)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.installed", description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="of the new environment (default: this one)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="a new folder to keep everything in")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sihg-wheel-") as temporary:
        home = Path(temporary) / "here" if args.keep is None else args.keep.resolve()
        installed = Installed(home, args.python)
        for part in (run_readme, run_commands, run_examples, measure_starts):
            part(installed)
    print(f"{len(installed.failures)} failures{''.join(f'; {name}' for name in installed.failures)}")
    return bool(installed.failures)


if __name__ == "__main__":
    sys.exit(main())
