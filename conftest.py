"""Shared set-up of tests and of the doctests in src."""

import gc
import os
import tempfile
from importlib.util import find_spec

import pytest
import torch

os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="sihg-state-")  # tests do not touch the user's key

EXTRAS = {  # without one, the doctests of the module that needs it cannot be imported
    "lightning": "integrations/lightning.py",
    **{name: f"loggers/_{name}.py" for name in ("mlflow", "trackio", "wandb")},
}
collect_ignore = [f"src/sihg/{path}" for name, path in EXTRAS.items() if find_spec(name) is None]

torch.set_num_threads(1)  # two test processes run at the same time


@pytest.fixture(autouse=True)
def _doctests_write_elsewhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each doctest in an empty folder, and print tensors with torch's own default options."""
    if isinstance(request.node, pytest.DoctestItem):
        monkeypatch.chdir(request.getfixturevalue("tmp_path"))
        torch.set_printoptions(profile="default")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the long tests first, so that the other process does the rest meanwhile; some only if they are asked for."""
    if "processes" not in config.option.markexpr:
        left_out = [item for item in items if item.get_closest_marker("processes") is not None]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.get_closest_marker("processes") is None]
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    """Leave the thousands of collected tests, which stay, out of every search for garbage."""
    gc.collect()
    gc.freeze()
