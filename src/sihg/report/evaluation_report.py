"""Report on a folder of evaluations without a run, as `Evaluation.save` and `sihg evaluate --out` leave it."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from sihg.report.figures.examples import gallery_figure
from sihg.report.figures.radius import record_curves
from sihg.report.page.html import (
    caption_of,
    environment_texts,
    evaluation_notes,
    figure_parts,
    page_table,
    page_warnings,
    render,
)
from sihg.report.read.evaluations import Evaluation, collect_evaluations, read_all_records, read_gallery
from sihg.report.read.palette import looks
from sihg.report.read.runs import folder_name
from sihg.report.tables.table import count
from sihg.report.tables.training_tables import evaluation_table
from sihg.report.training_report import Drawing, write_figures, write_tables
from sihg.store.answers import AnyRecord
from sihg.store.files import refuse_link, write_text
from sihg.store.schema import CurveRecord


def report_evaluations(folder: Path) -> list[Path]:
    """Write index.html and, in report/, figures and tables of all records; return their paths."""
    records = read_all_records(folder)
    found = collect_evaluations(records, {})
    by_record: dict[str, list[Evaluation]] = {}
    for evaluation in found.attacks:
        by_record.setdefault(evaluation.source.stem, []).append(evaluation)
    table = evaluation_table(list(by_record.items()), heading="record")
    colours = dict(zip(by_record, (look.colour for look in looks(list(by_record))), strict=True))
    values = {column.key: {row[i] for row in table.rows} for i, column in enumerate(table.columns)}
    shown = table.part(*(key for key in values if key not in ("checkpoint", "data") or len(values[key]) > 1))
    refuse_link(folder / "report")
    figures = write_figures(_drawings(folder, records), folder / "report")
    page = render(
        "evaluations.html",
        title=folder_name(folder),
        kicker="sihg, evaluations",
        about="Accuracy of models on unchanged samples and under attack within the ball.",
        facts=_facts(records),
        warnings=page_warnings([(remark.record, remark) for remark in found.remarks]),
        not_run=page_warnings([(remark.record, remark) for remark in found.not_run]),
        evaluations=page_table(shown, "Accuracy under every attack", [colours[str(row[0])] for row in table.rows]),
        result_notes=evaluation_notes(found.attacks),
        figure_parts=figure_parts(figures, "evaluations"),
        environment=environment_texts([record.environment for record in records.values()]),
    )
    return [
        *(path for figure in figures for path in (figure.svg, figure.other)),
        *write_tables({"evaluations": table}, folder / "report"),
        write_text(folder / "index.html", page),
    ]


def _drawings(folder: Path, records: Mapping[Path, AnyRecord]) -> Iterator[Drawing]:
    curves = {path.stem: record for path, record in records.items() if isinstance(record, CurveRecord)}
    for i, (name, record) in enumerate(curves.items(), 1):
        yield Drawing(f"radius-{i}", record_curves(record), *caption_of("record-curves", name=name, record=record))
    if (folder / "gallery.npz").is_file():
        gallery = read_gallery(folder / "gallery.npz", folder_name(folder))
        yield Drawing("gallery-1", gallery_figure(gallery), *caption_of("record-gallery", gallery=gallery))


def _facts(records: Mapping[Path, AnyRecord]) -> list[str]:
    shared = {
        "model {}": {record.checkpoint for record in records.values()},
        "data {}": {f"{record.data} {record.split}".strip() for record in records.values()},
        "{} ball": {record.norm for record in records.values()},
    }
    facts = [form.format(*values) for form, values in shared.items() if len(values) == 1]
    return [count(len(records), "record", "records"), *facts]
