"""`sihg report` on runs of `sihg train`: figures, tables and one HTML page."""

from collections.abc import Callable, Sequence
from pathlib import Path

from sihg.errors import InputError
from sihg.report.figures.catalogue import drawings
from sihg.report.figures.style import save
from sihg.report.page.html import Drawn
from sihg.report.page.training_page import page
from sihg.report.read.entries import entries
from sihg.report.read.runs import called, read_runs
from sihg.report.tables.differences import contrast_table
from sihg.report.tables.table import Table, as_csv, as_latex, as_markdown
from sihg.report.tables.training_tables import entry_table, evaluation_table, for_reading, training_table
from sihg.store.files import write_text

FORMATS: dict[str, Callable[[Table], str]] = {
    "csv": as_csv,
    "md": lambda made: as_markdown(for_reading(made)),
    "tex": lambda made: as_latex(for_reading(made)),
}


def report_training(
    paths: Path | Sequence[Path], out: Path | None = None, *, refresh: float | None = None
) -> list[Path]:
    """Write index.html and, in report/, its figures and tables; give their paths.

    `paths` is a run folder or one that holds run folders, which is then where the files go; or several run folders,
    with `out` for the files. With `refresh`, the page loads itself again after so many seconds.
    """
    folders = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    if out is None and len(folders) != 1:
        raise InputError(f"a report on {len(folders)} folders has no place: give `out`, a folder to write to")
    out = folders[0] if out is None else Path(out)
    runs = read_runs(folders)
    compared = entries(runs)
    figures = [
        Drawn(svg, pdf, one.heading, one.caption, one.part)
        for one in drawings(compared)
        for svg, pdf in [save(one.draw, out / "report", one.name, ("svg", "pdf"))]
    ]
    headline, owners = entry_table(compared)
    differences = contrast_table(headline, owners)
    tables = {"table": headline, "differences": differences}
    tables |= {"runs": training_table(runs), "evaluations": evaluation_table(runs)}
    text = page(called(out), compared, (headline, owners), differences, figures, refresh)
    return [
        *(path for figure in figures for path in (figure.svg, figure.other)),
        *(path for name, made in tables.items() if made.rows for path in _write(out / "report", name, made)),
        write_text(out / "index.html", text),
    ]


def _write(folder: Path, name: str, made: Table) -> list[Path]:
    return [write_text(folder / f"{name}.{kind}", form(made)) for kind, form in FORMATS.items()]
