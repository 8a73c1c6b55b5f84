"""The notebooks of the tutorials run, and are kept without outputs."""

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib import pyplot as plt

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "docs" / "tutorials").glob("*.ipynb"))


def cells(notebook: Path, kind: str) -> list[dict[str, Any]]:
    content = json.loads(notebook.read_text(encoding="utf-8"))
    return [cell for cell in content["cells"] if cell["cell_type"] == kind]


def test_there_is_one_for_each_tutorial() -> None:
    assert [path.stem for path in NOTEBOOKS] == [
        *("report", "robust-model", "saddle-problem", "your-method", "your-model"),
    ]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        for number, cell in enumerate(cells(notebook, "code"), start=1):
            exec(compile("".join(cell["source"]), f"{notebook.name}, code cell {number}", "exec"), names)
    finally:
        plt.close("all")


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_has_no_outputs(notebook: Path) -> None:
    for cell in cells(notebook, "code"):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
    assert "".join(cells(notebook, "markdown")[0]["source"]).startswith("# ")  # the title of the page
