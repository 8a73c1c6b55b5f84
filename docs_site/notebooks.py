"""Execute a notebook in a fresh folder and write it as a page: its text, its code, and what the code printed."""

import base64
import json
import os
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any

from docs_site.pages import OUT, ROOT, place

SECONDS_PER_CELL = 600


def read(notebook: Path, *, execute: bool) -> dict[str, Any]:
    """Return the notebook, with outputs if it is executed. A cell that fails is an error, which shows the cell."""
    import nbclient
    import nbformat

    if not execute:
        return dict(json.loads(notebook.read_text(encoding="utf-8")))
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as the machine that tests them; results repeat
    content = nbformat.read(notebook, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = nbclient.NotebookClient(content, timeout=SECONDS_PER_CELL, resources={"metadata": {"path": folder}})
        client.extra_arguments = ["--IPKernelApp.log_level=ERROR"]  # no advice on transports
        client.execute()
    return dict(json.loads(nbformat.writes(content)))


def as_markdown(notebook: dict[str, Any], path: PurePosixPath) -> str:
    """Return the page; pictures are written beside it, and the executed notebook for those who want to download it."""
    parts, pictures = [], 0
    target = OUT / place(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        outputs = [output for output in cell["outputs"] if output.get("name") != "stderr"]  # that is progress
        if "remove-output" in cell["metadata"].get("tags", []):  # as Jupyter Book does
            outputs = []
        shown = [output for output in outputs if "image/png" not in output.get("data", {})]
        if printed := "".join(map(_text, shown)).rstrip():
            parts.append(f'```{{ .text .output title="Output" }}\n{printed}\n```')
        for output in (output for output in outputs if output not in shown):
            pictures += 1
            name = f"{target.stem}-{pictures}.png"
            (target.parent / name).write_bytes(base64.b64decode(output["data"]["image/png"]))
            parts.append(f"![{_caption(text)}]({name})")
    (target.parent / path.name).write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    title, _, rest = parts[0].partition("\n")
    note = f"This page is a notebook that was run when the site was built: [download it]({path.name}){{ download }}."
    return "\n\n".join([title, note, rest.strip(), *parts[1:]]) + "\n"


def _text(output: dict[str, Any]) -> str:
    return "".join(output.get("text", output.get("data", {}).get("text/plain", "")))


def _caption(code: str) -> str:
    """Return the comment in the first line of a cell with a figure, which says what is shown."""
    comment = code.partition("\n")[0].partition("#")[2].strip()
    return comment or "what the cell above draws"


def sources() -> list[PurePosixPath]:
    """Return the notebooks of `docs/`, as paths in the repository."""
    return [repository_path(file) for file in sorted((ROOT / "docs").rglob("*.ipynb"))]


def repository_path(file: Path) -> PurePosixPath:
    """Return the path of a file from the root of the repository."""
    return PurePosixPath(file.relative_to(ROOT).as_posix())
