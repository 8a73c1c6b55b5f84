"""Report on runs of `sihg train`: figures, tables and one HTML page."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from matplotlib.figure import Figure

from sihg.errors import InputError
from sihg.report.figures.accuracy_bars import accuracy_bars, has_costs, robust_against_passes, training_headline
from sihg.report.figures.bands import band_sentences
from sihg.report.figures.confusion import confusion_figure, confusions, strongest_attack
from sihg.report.figures.examples import gallery_figure
from sihg.report.figures.learning_curves import has_curves, learning_curves
from sihg.report.figures.memory_histogram import memories, memory_figure
from sihg.report.figures.radius import entry_curves, radius_figure
from sihg.report.figures.style import figure_style, save_figure
from sihg.report.figures.training_curves import drawn_quantities, training_curves
from sihg.report.page.page_figures import DrawnFigure, caption_of
from sihg.report.page.training_page import training_page
from sihg.report.read.runs import Entry, first_gallery, folder_name, grid_command, group_trials, read_runs
from sihg.report.tables.compact import results_latex
from sihg.report.tables.latex import as_latex
from sihg.report.tables.table import Table, as_csv, as_markdown, count, for_reading
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
    latex = results_latex(headline, [owner is not None for owner in owners])
    page = training_page(
        folder_name(out),
        entries,
        (headline, owners),
        differences,
        evaluations,
        figures,
        latex,
        grid=grid_command(folders),
        refresh=refresh,
    )
    return [
        *(path for figure in figures for path in (figure.svg, figure.other)),
        *write_tables(tables, out / "report", {"table": latex}),
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


def write_tables(tables: dict[str, Table], folder: Path, latex: Mapping[str, str] = MappingProxyType({})) -> list[Path]:
    """Write tables that have rows as CSV, Markdown and LaTeX; return their paths.

    Args:
        tables: The tables by the names of their files.
        folder: Where to write.
        latex: The LaTeX of some of them, where it is not that of the whole table.
    """
    written = []
    for name, table in tables.items():
        if table.rows:
            shown = for_reading(table)
            texts = {"csv": as_csv(table), "md": as_markdown(shown), "tex": latex.get(name) or as_latex(shown)}
            written += [write_text(folder / f"{name}.{kind}", text) for kind, text in texts.items()]
    return written


def drawings(entries: Sequence[Entry]) -> Iterator[Drawing]:
    """Draw all figures that the runs have records for; iterate inside `figure_style()`."""
    yield from _headline(entries)
    yield from _learning(entries)
    yield from _attacks(entries)
    if tables := memories(entries):
        yield Drawing("memory", memory_figure(tables), *caption_of("memory"))


def _headline(entries: Sequence[Entry]) -> Iterator[Drawing]:
    headline = training_headline(entries)
    if headline is None:
        return
    bars = [*band_sentences(entries), *(["interval"] if any(len(entry.counted) == 1 for entry in entries) else [])]
    what = f"Robust: under {headline.attack}. Clean: without an attack." if headline.attack else "Under each attack."
    yield Drawing("bars", accuracy_bars(headline), *caption_of("bars", bars, what=what))
    if has_costs(headline):
        figure = robust_against_passes(headline)
        yield Drawing("passes", figure, *caption_of("passes", bars, attack=headline.attack))


def _learning(entries: Sequence[Entry]) -> Iterator[Drawing]:
    """Draw what was measured while training, where there are at least two points of it."""
    band = band_sentences(entries)
    has_best = any(run.best for entry in entries for run in entry.counted)
    others = [] if all(run.best for entry in entries for run in entry.counted) else ["training-only"]
    if has_curves(entries):
        yield Drawing("curves", learning_curves(entries), *caption_of("curves", [*others, *band]))
    if drawn_quantities(entries):
        yield Drawing("training", training_curves(entries), *caption_of("training", band))
    if has_best and has_curves(entries, best=True):
        yield Drawing("curves-best", learning_curves(entries, best=True), *caption_of("curves-best", band))


def _attacks(entries: Sequence[Entry]) -> Iterator[Drawing]:
    band = band_sentences(entries)
    curves = entry_curves(entries)
    for i, norm in enumerate(dict.fromkeys(curve.norm for curve in curves), 1):
        shown = [curve for curve in curves if curve.norm == norm]
        bound = ["lower-bound"] if any("at least" in curve.attack for curve in shown) else []
        caption = caption_of("radius", [*(band or ["interval"]), *bound])
        yield Drawing(f"radius-{i}", radius_figure(shown), *caption)
    attack = strongest_attack(entries)
    for i, matrix in enumerate(confusions(entries, attack) if attack is not None else [], 1):
        number = count(int(matrix.counts.sum()), "prediction", "predictions")
        caption = caption_of("confusion", entry=matrix.entry, attack=attack, count=number)
        yield Drawing(f"confusion-{i}", confusion_figure(matrix), *caption)
    found = [(entry, gallery) for entry in entries for gallery in first_gallery(entry)]
    for i, (entry, gallery) in enumerate(found, 1):
        samples, classes = len(gallery.label), len(gallery.classes)
        part = f"; {samples} of {classes} classes" if samples < classes else ""
        caption = caption_of("gallery", entry=entry, gallery=gallery, part=part)
        yield Drawing(f"gallery-{i}", gallery_figure(gallery), *caption)
