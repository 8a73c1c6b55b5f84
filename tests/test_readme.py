"""The README's Python runs as it stands, and so do the examples."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS, ids=range(len(BLOCKS)))
def test_readme_code_runs(code: str) -> None:
    exec(compile(code, "README.md", "exec"), {})


def test_readme_has_an_example_for_each_part() -> None:
    assert len(BLOCKS) >= 2


def test_links_of_the_readme_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / "README.md").read_text(encoding="utf-8")):
        assert (ROOT / target).exists(), target


def test_robust_logistic_example(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "robust_logistic.py"), run_name="__main__")
    assert "ssi-hg" in capsys.readouterr().out


def test_denoise_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["denoise.py", str(tmp_path / "out.png")])
    runpy.run_path(str(ROOT / "examples" / "denoise.py"), run_name="__main__")
    assert (tmp_path / "out.png").stat().st_size > 1000
