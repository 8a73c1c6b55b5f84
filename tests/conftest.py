"""Shared set-up: one thread a test process, since two processes run side by side."""

import pytest
import torch

torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long tests first, so that the other process does the rest meanwhile."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
