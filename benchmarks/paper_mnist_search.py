"""Search the network of the paper's MNIST experiment: on which one does plain PGD AT train at eps 0.4?

    python -m benchmarks.paper_mnist_search --out runs/paper-search --sieve    # a minute per trial
    python -m benchmarks.paper_mnist_search --out runs/paper-search            # and what passes: hours
    python -m benchmarks.paper_mnist_search --out runs/paper-search --show     # only the table

Every trial is the paper's setting (no pixel box, no ramp, SGD with momentum 0.9, constant learning rate 0.01, batch
150) with one network of `paper_mnist_networks.py`. The sieve takes 200 steps of PGD AT with three ascent steps. What is
stuck there is stuck with ten. A network passes if some features of its last layer are still active on clean images: a
network whose ReLUs are all off has no gradient and stays where it is. What passes is tried with the paper's ten steps,
and with MSI-HG, until it classifies 30 % of its own training examples over 50 steps, for 2,000 steps at most.

The same command continues after a stop: finished trials are in OUT/trials.jsonl, one line each.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported

import torch
from torch import Tensor, nn

from benchmarks.paper_mnist_networks import INITIALISERS, Network
from benchmarks.timing import Row, format_table
from sihg.robust.data import load
from sihg.robust.data.samples import Samples
from sihg.robust.gradients import evaluation_mode
from sihg.robust.training.events import StepDone
from sihg.robust.training.fit import fit

ALIVE = 0.01  # share of active features of a network that passes the sieve
LEARNT = 0.3  # share of the training examples of a window that are classified correctly; a constant guess has 0.11
WINDOW = 50  # steps
BATCH = 150
STEPS_PER_EPOCH = 60000 // BATCH
PAPER: dict[str, Any] = {"eps": 0.4, "bounds": None, "batch_size": BATCH, "lr": 0.01, "momentum": 0.9}
METHODS: dict[str, dict[str, Any]] = {
    "natural": {"method": "natural"},
    "pgd": {"method": "pgd", "steps": 10},
    "pgd-3": {"method": "pgd", "steps": 3},  # of the sieve
    "msi-hg": {"method": "msi-hg", "steps": 5, "tau": 0.2},
}


@dataclass(frozen=True)
class Trial:
    """A network, a method, and what else differs from the paper's setting."""

    method: str = "pgd"
    network: Network = Network()  # noqa: RUF009 (frozen)
    seed: int = 0
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Return a text that names the trial: what differs from the defaults of its parts."""
        names = [f"{k}={v}" for k, v in asdict(self.network).items() if v != getattr(Network(), k)]
        return " ".join([self.method, *names, *(f"{k}={v}" for k, v in self.changes.items()), f"seed={self.seed}"])


class EnoughError(Exception):
    """Ends a training: it has left the constant prediction, or had its steps."""


@dataclass
class Watch:
    """Follows a training in windows of steps; `fit` calls it with each event."""

    most_steps: int
    windows: list[tuple[float, float]] = field(default_factory=list)  # mean loss and accuracy of each
    _before: tuple[float, float, int] = (0.0, 0.0, 0)  # sums of loss and hits up to the last window, in this epoch

    def __call__(self, event: object) -> None:
        """Close a window; raise EnoughError if this was the last one."""
        if not isinstance(event, StepDone) or event.row.loss is None or event.row.accuracy is None:
            return
        step = event.step
        if step % WINDOW:
            return
        in_epoch = (step - 1) % STEPS_PER_EPOCH + 1
        loss, hits = event.row.loss * in_epoch, event.row.accuracy * in_epoch
        old = self._before if self._before[2] < in_epoch else (0.0, 0.0, 0)
        count = in_epoch - old[2]
        self.windows.append(((loss - old[0]) / count, (hits - old[1]) / count))
        self._before = (loss, hits, in_epoch)
        if step >= self.most_steps or self.windows[-1][1] >= LEARNT:
            raise EnoughError


def run(trial: Trial, train: Samples, most_steps: int) -> dict[str, Any]:
    """Train one trial and return its record."""
    net, watch = trial.network.build(trial.seed), Watch(most_steps)
    settings = PAPER | METHODS[trial.method] | trial.changes
    if trial.method == "natural":
        settings.pop("bounds")
    try:
        fit(net, train, seed=trial.seed, epochs=50, on_event=watch, **settings)
        sys.exit("stopped: the same command continues")
    except EnoughError:
        pass
    loss, accuracy = watch.windows[-1]
    return {
        "key": trial.key,
        "steps": WINDOW * len(watch.windows),
        "learnt": accuracy >= LEARNT,
        "loss": round(loss, 4),
        "accuracy": round(accuracy, 4),
        "active": round(active_share(net, train), 4),
        "losses": [round(loss, 4) for loss, _ in watch.windows],
    }


def active_share(net: nn.Module, train: Samples) -> float:
    """Return the share of positive features at the last layer's input, on 500 unperturbed images: 0 if all are dead."""
    features: list[Tensor] = []
    last = [module for module in net.modules() if isinstance(module, nn.Linear)][-1]
    hook = last.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
    with torch.no_grad(), evaluation_mode(net):
        net(train.floats(slice(0, 500)))
    hook.remove()
    return float((features[0] > 0).float().mean())


Records = dict[str, dict[str, Any]]
SIEVE, FULL = 200, 2000  # steps at most, in the sieve and of what passes it


def sieve() -> Iterator[Trial]:
    """Yield the trials of the sieve, the most telling ones first, each once."""
    yield from {trial.key: trial for trial in _sieve()}.values()


def _sieve() -> Iterator[Trial]:
    starts = ("kaiming", "default")
    yield from (Trial("natural", Network(init=init)) for init in starts)
    yield from (Trial("pgd-3", Network(init=init)) for init in starts)
    yield from (Trial("pgd-3", Network(init=init, **change)) for change, init in product(CHANGES, starts))
    yield from (Trial("pgd-3", Network(init=init), changes=change) for change, init in product(SETTINGS, starts))
    yield from (Trial("pgd-3", Network(init=init)) for init in INITIALISERS)
    yield from (Trial("pgd-3", Network(kernel=k, init=i)) for k, i in product((5, 4), ("default", *INITIALISERS)))
    yield from (Trial("pgd-3", Network(init=init), seed=seed) for init, seed in product(starts, (1, 2)))
    yield from (Trial("pgd-3", Network(down=d, kernel=k, init=i)) for d, k, i in product(POOLS, (3, 5), starts))


START_AT_ZERO: dict[str, Any] = {"method": "msi-hg", "reset": 1, "noise": 0.0, "tau": 0.8, "theta": 0.0}
POOLS = ("pool", "mean")
CHANGES: tuple[dict[str, Any], ...] = (  # of the network
    {"norm": True},
    {"norm": True, "kernel": 4},
    {"norm": True, "kernel": 5},
    {"scale": "half"},
    {"scale": "mnist"},
    {"bias": "torch"},
    {"edge": "cut"},
    {"activation": "elu"},
    {"activation": "tanh"},
    {"activation": "leaky"},
    {"activation": "softplus"},
    {"bias": "none"},
)
SETTINGS: tuple[dict[str, Any], ...] = (  # of the training; a learning rate stands for another scale of the loss
    *({"lr": lr} for lr in (0.1, 0.03, 0.003)),
    START_AT_ZERO,  # PGD from zero is MSI-HG without memory and noise, in the whole ball
    {"optimizer.dampening": 0.9},  # momentum as an average of gradients, so a tenth of the learning rate
    {"bounds": (0.0, 1.0)},
    {"nesterov": True},
)


def passed(records: Records) -> Iterator[Trial]:
    """Yield, for what passed the sieve, the paper's own methods: PGD AT with ten steps, and MSI-HG."""
    for trial in sieve():
        if trial.method == "pgd-3" and records.get(trial.key, {}).get("active", 0.0) > ALIVE:
            yield replace(trial, method="pgd")
            if "method" not in trial.changes:
                yield replace(trial, method="msi-hg")


def read_records(path: Path) -> Records:
    """Return the finished trials by key."""
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    return {record["key"]: record for record in map(json.loads, lines)}


def table(records: Records) -> str:
    """Return the finished trials as a table."""
    rows: list[Row] = [
        {
            "trial": r["key"],
            "learnt": "yes" if r["learnt"] else "no",
            "steps": str(r["steps"]),
            "loss": r["loss"],
            "accuracy %": 100 * r["accuracy"],
            "active features %": 100 * r["active"],
        }
        for r in records.values()
    ]
    return format_table(rows) if rows else "no trial is finished yet"


def main() -> int:
    """Run what is not finished, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper_mnist_search", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder of the records")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="every N-th trial, for N of these at a time")
    parser.add_argument("--sieve", action="store_true", help="only the sieve")
    parser.add_argument("--show", action="store_true", help="only print what is finished")
    args = parser.parse_args()
    path = args.out / "trials.jsonl"
    if not args.show:
        args.out.mkdir(parents=True, exist_ok=True)
        part, parts = map(int, args.part.split("/"))
        train, _ = load("mnist")
        for number, trial in enumerate(sieve()):
            if number % parts == part - 1:
                run_once(trial, train, SIEVE, path)
        for number, trial in enumerate([] if args.sieve else list(passed(read_records(path)))):
            if number % parts == part - 1:
                run_once(trial, train, FULL, path)
    print(table(read_records(path)))
    return 0


def run_once(trial: Trial, train: Samples, most_steps: int, path: Path) -> None:
    """Run a trial and append its record, unless it has one."""
    if trial.key not in read_records(path):
        line = json.dumps(run(trial, train, most_steps))
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
