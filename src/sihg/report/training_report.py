"""Report on runs of `sihg train`: figures, tables and one HTML page."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from sihg.errors import InputError
from sihg.report.figures.bands import band_sentences
from sihg.report.figures.confusion import confusion_figure, confusions, strongest_attack
from sihg.report.figures.examples import gallery_figure
from sihg.report.figures.learning_curves import learning_curves
from sihg.report.figures.memory_histogram import memories, memory_figure
from sihg.report.figures.radius import entry_curves, radius_figure
from sihg.report.figures.style import figure_style, save_figure
from sihg.report.page.html import DrawnFigure, caption_of
from sihg.report.page.training_page import training_page
from sihg.report.read.runs import Entry, first_gallery, folder_name, group_trials, read_runs
from sihg.report.tables.table import Table, as_csv, as_latex, as_markdown, count, for_reading
from sihg.report.tables.training_tables import difference_table, entry_table, evaluation_table, training_table
from sihg.store.files import refuse_link, write_text


class Drawing(NamedTuple):
    """A figure, the name of its file, what is said about it, and the part of the page it belongs to."""

    name: str
    figure: Figure
    heading: str
    caption: str
    part: str


def report_training(
    paths: Path | Sequence[Path], out: Path | None = None, *, refresh: float | None = None
) -> list[Path]:
    """Write index.html and, in report/, its figures and tables; return their paths.

    Args:
        paths: A run folder, or a folder of run folders; the files go there. Or several of them.
        out: The folder for the files; needed for several paths.
        refresh: Seconds after which a browser loads the page again; None for never.
    """
    folders = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    if out is None and len(folders) != 1:
        raise InputError("report-without-out", folders=len(folders))
    out = folders[0] if out is None else Path(out)
    runs = read_runs(folders)
    entries = group_trials(runs)
    refuse_link(out / "report")
    figures = write_figures(drawings(entries), out / "report")
    headline, owners = entry_table(entries)
    differences = difference_table(headline, owners)
    evaluations = evaluation_table([(run.name, run.evaluations) for run in runs])
    tables = {"table": headline, "differences": differences}
    tables |= {"runs": training_table(runs), "evaluations": evaluations}
    page = training_page(folder_name(out), entries, (headline, owners), differences, evaluations, figures, refresh)
    return [
        *(path for figure in figures for path in (figure.svg, figure.other)),
        *write_tables(tables, out / "report"),
        write_text(out / "index.html", page),
    ]


def write_figures(found: Iterator[Drawing], folder: Path) -> list[DrawnFigure]:
    """Make figures and save them as SVG and PDF."""
    with figure_style():
        return [
            DrawnFigure(svg, pdf, heading, caption, part)
            for name, figure, heading, caption, part in found
            for svg, pdf in [save_figure(figure, folder, name, ("svg", "pdf"))]
        ]


def write_tables(tables: dict[str, Table], folder: Path) -> list[Path]:
    """Write tables that have rows as CSV, Markdown and LaTeX; return their paths."""
    written = []
    for name, table in tables.items():
        if table.rows:
            shown = for_reading(table)
            texts = {"csv": as_csv(table), "md": as_markdown(shown), "tex": as_latex(shown)}
            written += [write_text(folder / f"{name}.{kind}", text) for kind, text in texts.items()]
    return written


def drawings(entries: Sequence[Entry]) -> Iterator[Drawing]:
    """Draw all figures that the runs have records for; iterate inside `figure_style()`."""
    band = band_sentences(entries)
    dashed = [] if all(run.best for entry in entries for run in entry.counted) else ["dashed"]
    yield Drawing("curves", learning_curves(entries), *caption_of("curves", [*dashed, *band]))
    if any(run.best for entry in entries for run in entry.counted):
        yield Drawing("curves-best", learning_curves(entries, best=True), *caption_of("curves-best", band))
    curves = entry_curves(entries)
    for i, norm in enumerate(dict.fromkeys(curve.norm for curve in curves), 1):
        shown = [curve for curve in curves if curve.norm == norm]
        bound = ["lower-bound"] if any("at least" in curve.attack for curve in shown) else []
        caption = caption_of("radius", [*(band or ["interval"]), *bound])
        yield Drawing(f"radius-{i}", radius_figure(shown), *caption)
    found = [(entry, gallery) for entry in entries for gallery in first_gallery(entry)]
    for i, (entry, gallery) in enumerate(found, 1):
        samples, classes = len(gallery.label), len(gallery.classes)
        part = f"; {samples} of {classes} classes" if samples < classes else ""
        caption = caption_of("gallery", entry=entry, gallery=gallery, part=part)
        yield Drawing(f"gallery-{i}", gallery_figure(gallery), *caption)
    attack = strongest_attack(entries)
    if attack is not None and (matrices := confusions(entries, attack)):
        samples = sum(int(matrix.counts.sum()) for matrix in matrices)
        caption = caption_of("confusion", attack=attack, samples=count(samples, "prediction", "predictions"))
        yield Drawing("confusion", confusion_figure(matrices), *caption)
    if tables := memories(entries):
        yield Drawing("memory", memory_figure(tables), *caption_of("memory"))
