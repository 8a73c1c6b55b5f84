"""MLflow: its tracking server if MLFLOW_TRACKING_URI names one, else the database mlflow.db of the current folder."""

import os
import re
import time
from collections.abc import Mapping
from hashlib import sha256

import mlflow
from mlflow.entities import Metric, Param

from sihg.loggers.base import PROJECT, LoggedRun, Logger

MAX_BATCH = 100  # parameters in one call
MAX_PARAMETER, MAX_TAG = 6000, 5000  # characters


class MLflowLogger(Logger):
    """Writes to a run of MLflow. MLFLOW_EXPERIMENT_NAME names the experiment; each write waits for the store."""

    _client: mlflow.MlflowClient
    _id: str

    def begin(self, run: LoggedRun, known: Mapping[str, str] | None) -> dict[str, str]:
        """Create the run, or open it again."""
        place = mlflow.get_tracking_uri() if known is None else known["tracking_uri"]
        self._client = mlflow.MlflowClient(tracking_uri=place)
        if known is not None:
            self._id = known["id"]
            self._client.update_run(self._id, status="RUNNING")
            return dict(known)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if found is None else found.experiment_id
        self._id = self._client.create_run(experiment, run_name=run.name).info.run_id
        params = [Param(_key(key), str(value)[:MAX_PARAMETER]) for key, value in run.config.items()]
        for first in range(0, len(params), MAX_BATCH):
            self._client.log_batch(self._id, params=params[first : first + MAX_BATCH])
        return {"id": self._id, "tracking_uri": place}

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Add metrics."""
        now = int(1000 * time.time())
        self._client.log_batch(self._id, metrics=[Metric(_key(key), value, now, step) for key, value in values.items()])

    def note(self, title: str, text: str, step: int) -> None:  # noqa: ARG002
        """Set a tag, whose key has a sum of the text: the same text is kept once."""
        self._client.set_tag(self._id, f"{_key(title)}/{sha256(text.encode()).hexdigest()[:8]}", text[:MAX_TAG])

    def end(self, *, finished: bool) -> None:
        """Close the run; killed if it was interrupted."""
        self._client.set_terminated(self._id, status="FINISHED" if finished else "KILLED")


def _key(name: str) -> str:
    """Return a name with the characters that MLflow allows.

    >>> _key("evaluation/last_test_natural+pgd-20/all")
    'evaluation/last_test_natural_pgd-20/all'
    """
    return re.sub(r"[^\w./ -]", "_", name)
