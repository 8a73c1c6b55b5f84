"""Each logger without a network: what its own files hold is what metrics.csv says, also after an interruption."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sihg.cli.main import main
from sihg.loggers import LOGGERS
from sihg.robust.training.events import StepDone
from sihg.store.schema import MetricsRow, read_evaluation, read_run_config
from sihg.store.tables import read_table
from tests.loggers.readers import READERS, Kept, numbers

TRAIN = ["train", "--data", "digits", "--method", "msi-hg", "--samples", "200", "--validation", "50"]
TRAIN += ["--epochs", "3", "--ramp", "3", "--steps", "2", "--width", "0.25", "--batch-size", "32"]
STOP_AT = 8  # of 5 steps per epoch
# What the packages themselves do; a user's Python shows none of it.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def stop(event: object) -> None:
    """Ask for the end of a training, as Ctrl-C does."""
    if isinstance(event, StepDone) and event.step == STOP_AT:
        os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, as somebody who is logged in nowhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "MLFLOW_TRACKING_URI", "HF_TOKEN", "TRACKIO_SPACE_ID"):
        monkeypatch.delenv(name, raising=False)
    for proxy in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(proxy, "http://127.0.0.1:9")  # where nobody listens
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    return tmp_path


def rows(run: Path) -> list[MetricsRow]:
    return [MetricsRow.from_cells(row) for row in read_table(run / "metrics.csv", sealed=True)]


def assert_equals_metrics(kept: Kept, run: Path, rel: float) -> None:
    cells = {
        (name, row.step): value
        for row in rows(run)
        for name, value in row.cells().items()
        if name != "step" and value is not None
    }
    found = [(name, step, value) for name, step, value in numbers(kept)]
    assert len(found) == len({(name, step) for name, step, _ in found}) == len(cells)  # nothing twice
    assert {(name, step): value for name, step, value in found} == {
        place: pytest.approx(value, rel=rel, abs=0) for place, value in cells.items()
    }


@pytest.mark.parametrize("name", list(LOGGERS))
def test_metrics_equal_metrics_csv_after_an_interruption(name: str) -> None:
    pytest.importorskip(LOGGERS[name].package, reason=f"the extra sihg[{name}] is not installed (make test-extras)")
    run = Path("runs/logged")
    assert main([*TRAIN, "--log", f"{name},{__name__}:stop", "--out", str(run)]) == 130
    assert main(["resume", str(run)]) == 0  # the logger need not be named again
    assert main(["evaluate", str(run), "--attacks", "natural,fgsm", "--samples", "50"]) == 0
    assert len(rows(run)) == 3
    kept = READERS[name](run)
    assert kept.runs == 1
    rel = 1e-6 if name == "tensorboard" else 0.0  # TensorBoard keeps float32
    assert_equals_metrics(kept, run, rel)
    assert [step for step, _ in kept.points["step/loss"]] == list(range(1, 16))
    settings = read_run_config(run / "config.toml").settings
    assert {key: kept.config.get(key) for key in settings} == {key: str(value) for key, value in settings.items()}
    assert kept.config["environment.torch"]
    assert any("the radius grows over ramp" in text for text in kept.texts)
    (path,) = (run / "evaluation").glob("*.json")
    record = read_evaluation(path)
    found = {re.sub(r"\W", "_", key): value for key, value in kept.results.items()}
    for row in record.attacks:  # type: ignore[union-attr]
        place = re.sub(r"\W", "_", f"evaluation/{path.stem}/{row.attack}")
        sent = found[place], found[f"{place}_low"], found[f"{place}_high"]
        assert sent == pytest.approx((row.accuracy, row.low, row.high), rel=rel, abs=0)
    assert any("weak attacks: " in text for text in kept.texts)


def kill(event: object) -> None:
    """End the process at once, with all that other threads and processes have not written."""
    if isinstance(event, StepDone) and event.step == STOP_AT:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(LOGGERS))
def test_a_killed_run_loses_no_epoch_and_repeats_none(name: str) -> None:
    pytest.importorskip(LOGGERS[name].package, reason=f"the extra sihg[{name}] is not installed (make test-extras)")
    run, path = Path("runs/killed"), os.pathsep.join([str(Path(__file__).resolve().parents[2]), *sys.path])
    command = [sys.executable, "-m", "sihg", *TRAIN, "--log", f"{name},{__name__}:kill", "--out", str(run)]
    environment = {**os.environ, "PYTHONPATH": path, "TRACKIO_DIR": _trackio_folder()}
    assert subprocess.run(command, env=environment, capture_output=True, check=False).returncode == -signal.SIGKILL
    assert main(["resume", str(run)]) == 0
    kept = READERS[name](run)
    assert kept.runs == 1
    assert_equals_metrics(kept, run, 1e-6 if name == "tensorboard" else 0.0)
    live = [step for step, _ in kept.points["step/loss"]]
    assert len(live) == len({*live})
    assert live[-7:] == list(range(9, 16))


def _trackio_folder() -> str:
    """Return the folder that Trackio uses in this process: it is fixed when the package is imported."""
    module = sys.modules.get("trackio.utils")
    return os.environ["TRACKIO_DIR"] if module is None else str(module.TRACKIO_DIR)


@pytest.mark.parametrize("name", list(LOGGERS))
def test_records_are_sent_afterwards(name: str) -> None:
    pytest.importorskip(LOGGERS[name].package, reason=f"the extra sihg[{name}] is not installed (make test-extras)")
    run = Path("runs/later")
    assert main([*TRAIN, "--out", str(run)]) == 0
    assert main(["evaluate", str(run), "--attacks", "natural", "--samples", "50"]) == 0
    for _ in range(2):  # the second time adds nothing
        assert main(["report", str(run), "--log", name]) == 0
        kept = READERS[name](run)
        assert_equals_metrics(kept, run, 1e-6 if name == "tensorboard" else 0.0)
        assert len(kept.results) == 3
        assert kept.runs == 1


def test_several_loggers_at_once() -> None:
    names = [name for name, entry in LOGGERS.items() if _is_installed(entry.package)]
    if len(names) < 2:
        pytest.skip("fewer than two loggers are installed (make test-extras)")
    run = Path("runs/all")
    assert main([*TRAIN, "--log", ",".join(names), "--out", str(run)]) == 0
    for name in names:
        assert_equals_metrics(READERS[name](run), run, 1e-6 if name == "tensorboard" else 0.0)


def _is_installed(package: str) -> bool:
    try:
        __import__(package)
    except ImportError:
        return False
    return True
