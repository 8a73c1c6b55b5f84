"""Fixtures that several tests of commands share."""

from pathlib import Path

import pytest

from tests.experiments.grids import TINY, CellsHere, run


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished grid, which no test may change."""
    out = tmp_path_factory.mktemp("whole") / "g"
    with pytest.MonkeyPatch.context() as patch:
        CellsHere(patch)
        assert run("reproduce", "digits", *TINY, "--out", out) == 0
    return out
