"""Under torchrun only the first process logs, and a logger that cannot be used is one error."""

from pathlib import Path

import pytest

from sihg.store.schema import MetricsRow
from sihg.store.tables import read_table
from tests.loggers.readers import numbers, read_tensorboard
from tests.torchrun import launch, lines_of

TRAIN = ["-m", "sihg", "train", "--data", "digits", "--method", "fgsm", "--samples", "200", "--validation", "50"]
TRAIN += ["--epochs", "2", "--width", "0.25", "--lanes", "2"]


@pytest.mark.slow
def test_one_of_two_processes_logs(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="the extra sihg[tensorboard] is not installed (make test-extras)")
    run = tmp_path / "run"
    result = launch(2, [*TRAIN, "--logger", "tensorboard", "--out", run])
    assert result.returncode == 0, result.stderr
    assert len([*(run / "tensorboard").iterdir()]) == 1
    rows = [MetricsRow.from_cells(row) for row in read_table(run / "metrics.csv", sealed=True)]
    losses = {(row.step, row.loss) for row in rows}
    found = {(step, value) for name, step, value in numbers(read_tensorboard(run)) if name == "loss"}
    assert sorted(found) == [pytest.approx(pair, rel=1e-6) for pair in sorted(losses)]


@pytest.mark.slow
def test_an_unknown_logger_is_one_error(tmp_path: Path) -> None:
    result = launch(2, [*TRAIN, "--logger", "tensorbord", "--out", tmp_path / "run"])
    assert result.returncode != 0
    (line,) = lines_of(result, "sihg: error")
    assert line.endswith("[unknown-logger]")
    assert not (tmp_path / "run").exists()
