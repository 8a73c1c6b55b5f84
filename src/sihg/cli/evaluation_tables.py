"""The tables, notes and JSON that `sihg evaluate` prints."""

from sihg.cli.flags import in_flags
from sihg.cli.terminal import format_table
from sihg.store.schema import (
    AttackRow,
    CurveRecord,
    CurveRow,
    EvaluationRecord,
    MinimumRecord,
    count_results,
    explain_not_run,
    method_notes,
    record_text,
    vote_note,
)

Record = EvaluationRecord | CurveRecord
Records = list[tuple[str, Record]]  # per model: what to call it, and its record
RADII_SHOWN = 5  # of the curve of smallest distances


def json_text(records: Records, *, several: bool) -> str:
    """Return the record, or the list of several records, as JSON."""
    texts = [record_text(record).rstrip() for _, record in records]
    return f"[{', '.join(texts)}]" if several else texts[0]


def results_table(records: Records, *, several: bool) -> str:
    """Return the table of one model, of several, of curves, or of smallest distances."""
    minima = [(name, record) for name, record in records if isinstance(record, MinimumRecord)]
    if minima:
        return minima_table(minima)
    curves = [(name, record) for name, record in records if isinstance(record, CurveRecord)]
    if curves:
        return curves_table(curves)
    tables = [(name, record) for name, record in records if isinstance(record, EvaluationRecord)]
    return models_table(tables) if several else attacks_table(tables[0][1])


def check_lines(records: Records, *, several: bool) -> list[str]:
    """Return the notes on attacks, warnings and errors, how many checks had which result, and which were not run."""
    lines = []
    for name, record in records:
        of = f" ({name})" if several else ""
        lines += [f"note{of}: {note}" for note in record.notes]
        rows = record.curves if isinstance(record, CurveRecord) else record.attacks
        lines += [f"note{of}: {vote_note(row)}" for row in rows if isinstance(row, CurveRow) and row.votes > 1]
        lines += [f"note{of}: {row.attack}: {row.remark}" for row in rows if row.remark]
        for check in record.checks:
            if check.result in ("error", "warning"):
                lines.append(f"{check.result}{of}: {in_flags(check.message)} ({check.link})")
        lines.append(f"checks{of}: {count_results(record.checks)}")
        lines += [f"not run{of}: {reason}" for reason in explain_not_run(record.checks)]
    return lines


def attacks_table(record: EvaluationRecord) -> str:
    """Return the table of one model: a row per attack, the stages of a sequence under it."""
    rows = []
    several = record.votes > 1
    for row in record.attacks:
        named = [(row, row.attack), *((stage, f"  {stage.attack}") for stage in row.stages)]
        rows += [_cells(one, name, votes=several) for one, name in named]
    share = "not target %" if record.target else "accuracy %"
    headings = ["attack", share, "95 % interval", *(["mean %", "worst %"] if several else [])]
    headings += ["attacked", "passes per sample", "forwards", "seconds"]
    return format_table(f"{record.checkpoint} on {_describe(record)}", headings, rows)


def _cells(row: AttackRow, name: str, *, votes: bool) -> list[str]:
    costs = [f"{value:.1f}" for value in (row.passes_per_sample, row.forwards_per_sample, row.seconds)]
    attacked = str(row.samples if row.attacked is None else row.attacked)
    voted = ["" if share is None else f"{100 * share:.2f}" for share in (row.mean, row.worst)] if votes else []
    return [name, f"{100 * row.accuracy:.2f}", _interval(row, 2), *voted, attacked, *costs]


def _interval(row: AttackRow, digits: int) -> str:
    return f"{100 * row.low:.{digits}f} - {100 * row.high:.{digits}f}"


def curves_table(records: list[tuple[str, CurveRecord]]) -> str:
    """Return accuracy against eps: a row per radius, a column per model and attack."""
    first = records[0][1]
    kinds = {_describe(record) for _, record in records}
    columns = []
    for name, record in records:
        model = name if len(kinds) == 1 else f"{name} ({_describe(record)})"
        columns += [(f"{model}: " if len(records) > 1 else "", row) for row in record.curves]
    pixels = all(_has_pixels(record) for _, record in records)
    headings = ["eps", *(["eps * 255"] if pixels else []), *(f"{name}{row.attack} %" for name, row in columns)]
    rows = [
        [
            f"{eps:.4g}",
            *([f"{255 * eps:.4g}"] if pixels else []),
            *(f"{100 * row.accuracy[i]:.2f}" for _, row in columns),
        ]
        for i, eps in enumerate(first.eps)
    ]
    about = _describe(first) if len(kinds) == 1 else "accuracies"
    return format_table(about, headings, rows)


def minima_table(records: list[tuple[str, MinimumRecord]]) -> str:
    """Return the smallest eps found: a row per model and attack, with quantiles and the accuracy at some radii."""
    first = records[0][1]
    kinds = {_describe(record) for _, record in records}
    shown = [round(i * (len(first.eps) - 1) / (RADII_SHOWN - 1)) for i in range(RADII_SHOWN)]
    headings = ["attack", "found", "lower quartile", "median", "upper quartile", "mean"]
    headings += [f"% at {first.eps[i]:.3g}" for i in shown]
    rows = []
    for name, record in records:
        model = name if len(kinds) == 1 else f"{name} ({_describe(record)})"
        for row, curve in zip(record.minimum, record.curves, strict=True):
            sizes = (row.lower_quartile, row.median, row.upper_quartile, row.mean)
            cells = [f"> {record.max_eps:.4g}" if size is None else f"{size:.4g}" for size in sizes]
            title = f"{model}: {row.attack}" if len(records) > 1 else row.attack
            rows.append([title, str(row.found), *cells, *(f"{100 * curve.accuracy[i]:.2f}" for i in shown)])
    about = _describe(first) if len(kinds) == 1 else "samples"
    return format_table(f"smallest eps: {about}", headings, rows)


def models_table(records: list[tuple[str, EvaluationRecord]]) -> str:
    """Return the table of several models: a row per model, a column per attack."""
    first = records[0][1]
    kinds = {_describe(record) for _, record in records}
    headings = ["model", *(f"{row.attack} %" for row in first.attacks), "seconds"]
    rows = [
        [
            name if len(kinds) == 1 else f"{name} ({_describe(record)})",
            *(f"{100 * row.accuracy:.2f} ({_interval(row, 1)})" for row in record.attacks),
            f"{sum(row.seconds for row in record.attacks if row.attack != 'all'):.1f}",
        ]
        for name, record in records
    ]
    about = _describe(first) if len(kinds) == 1 else "accuracies"
    return format_table(about, headings, rows)


def _describe(record: Record) -> str:
    within = "no bounds" if record.bounds is None else "x + delta in [{:g}, {:g}]".format(*record.bounds)
    ball = f"{record.norm}, {within}"
    if isinstance(record, EvaluationRecord):
        pixels = f" = {255 * record.eps:.4g}/255" if _has_pixels(record) else ""
        ball = f"{record.norm} eps {record.eps:g}{pixels}, {within}"
    searched = f"; searched in {record.precision}, judged in float32" if record.precision != "float32" else ""
    about = f"{record.samples} samples of {record.data} ({record.split}): {ball}; broken: {record.rule}{searched}"
    return "; ".join([about, *method_notes(record)])


def _has_pixels(record: Record) -> bool:
    """Return whether eps can be given in steps of 8-bit images: not if the bounds are of another range than 1."""
    return record.norm == "linf" and (record.bounds is None or record.bounds[1] - record.bounds[0] == 1)
