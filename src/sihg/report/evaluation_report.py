"""Report on a folder of evaluations without a run, as `Evaluation.save` and `sihg evaluate --out` leave it."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sihg.report.figures.accuracy_bars import accuracy_bars, record_headline
from sihg.report.figures.examples import gallery_figure
from sihg.report.figures.radius import record_curves
from sihg.report.page.html import environment_texts, evaluation_notes, render
from sihg.report.page.page_figures import caption_of, figure_parts
from sihg.report.page.page_tables import page_table, toggles
from sihg.report.page.page_warnings import page_warnings
from sihg.report.page.reproduction import evaluation_commands
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
    names = [str(row[0]) for row in table.rows]
    colours = dict(zip(by_record, (look.colour for look in looks(list(by_record))), strict=True))
    values = {column.key: {row[i] for row in table.rows} for i, column in enumerate(table.columns)}
    same = ("record", "checkpoint", "data", "ball", "samples")  # a caption or the facts have them
    kept = [key for key in values if key not in same or len(values[key] - {None}) > 1]
    shown = table.part(*sorted(kept, key=lambda key: key not in ("record", "attack")))  # these first
    sizes = {evaluation.samples for evaluation in found.attacks}
    of = f" on {count(sizes.pop(), 'sample', 'samples')}" if len(sizes) == 1 else ""
    refuse_link(folder / "report")
    figures = write_figures(_drawings(folder, records, by_record), folder / "report")
    page = render(
        "evaluations.html",
        title=folder_name(folder),
        kicker="sihg, evaluations",
        about="Accuracy of models on unchanged samples and under attack within the ball.",
        facts=_facts(records),
        warnings=page_warnings([(remark.record, remark) for remark in found.remarks]),
        not_run=page_warnings([(remark.record, remark) for remark in found.not_run]),
        toggles=toggles(list(colours), list(colours.values())),
        evaluations=page_table(
            shown,
            f"Accuracy under every attack{of}. Passes: gradient passes per sample.",
            [colours[name] for name in names],
            entries=names,
        ),
        result_notes=evaluation_notes(found.attacks),
        figures=figure_parts(figures, "evaluations"),
        commands=evaluation_commands(records),
        environment=environment_texts([record.environment for record in records.values()]),
    )
    return [
        *(path for figure in figures for path in (figure.svg, figure.other)),
        *write_tables({"evaluations": table}, folder / "report"),
        write_text(folder / "index.html", page),
    ]


def _drawings(
    folder: Path, records: Mapping[Path, AnyRecord], by_record: Mapping[str, Sequence[Evaluation]]
) -> Iterator[Drawing]:
    if headline := record_headline(by_record):
        what = "Under each attack, with the 95 % interval."
        yield Drawing("bars", accuracy_bars(headline), *caption_of("bars", what=what))
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
