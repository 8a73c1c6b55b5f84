"""Tables of accuracy under attack, as the terminal shows them."""

from sihg.cli.terminal import format_table
from sihg.store.schema import AttackRow, CurveRecord, EvaluationRecord, count_results, record_text

Record = EvaluationRecord | CurveRecord
Records = list[tuple[str, Record]]  # per model: what to call it, and its record


def json_text(records: Records, *, several: bool) -> str:
    """Return the record, or the list of several records, as JSON."""
    texts = [record_text(record).rstrip() for _, record in records]
    return f"[{', '.join(texts)}]" if several else texts[0]


def results_table(records: Records, *, several: bool) -> str:
    """Return the table of one model, of several, or of curves."""
    curves = [(name, record) for name, record in records if isinstance(record, CurveRecord)]
    if curves:
        return curves_table(curves)
    tables = [(name, record) for name, record in records if isinstance(record, EvaluationRecord)]
    return models_table(tables) if several else attacks_table(tables[0][1])


def check_lines(records: Records, *, several: bool) -> list[str]:
    """Return the notes on attacks, the warnings and errors of checks, and how many checks had which result."""
    lines = []
    for name, record in records:
        of = f" ({name})" if several else ""
        rows = record.curves if isinstance(record, CurveRecord) else record.attacks
        lines += [f"note{of}: {row.attack}: {row.remark}" for row in rows if row.remark]
        for check in record.checks:
            if check.result in ("error", "warning"):
                lines.append(f"{check.result}{of}: {check.message} ({check.link})")
        lines.append(f"checks{of}: {count_results(record.checks)}")
    return lines


def attacks_table(record: EvaluationRecord) -> str:
    """Return the table of one model: a row per attack, the stages of a sequence under it."""
    rows = []
    for row in record.attacks:
        rows += [_cells(row, row.attack), *(_cells(stage, f"  {stage.attack}") for stage in row.stages)]
    headings = ["attack", "accuracy %", "95 % interval", "attacked", "passes per sample", "forwards", "seconds"]
    return format_table(f"{record.checkpoint} on {record.samples} samples of {_describe(record)}", headings, rows)


def _cells(row: AttackRow, name: str) -> list[str]:
    costs = [f"{value:.1f}" for value in (row.passes_per_sample, row.forwards_per_sample, row.seconds)]
    attacked = str(row.samples if row.attacked is None else row.attacked)
    return [name, f"{100 * row.accuracy:.2f}", _interval(row, 2), attacked, *costs]


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
    about = f"{first.samples} samples of {_describe(first)}" if len(kinds) == 1 else "accuracies"
    return format_table(about, headings, rows)


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
    about = f"{first.samples} samples of {_describe(first)}" if len(kinds) == 1 else "accuracies"
    return format_table(about, headings, rows)


def _describe(record: Record) -> str:
    within = "no bounds" if record.bounds is None else "x + delta in [{:g}, {:g}]".format(*record.bounds)
    ball = f"{record.norm}, {within}"
    if isinstance(record, EvaluationRecord):
        pixels = f" = {255 * record.eps:.4g}/255" if _has_pixels(record) else ""
        ball = f"{record.norm} eps {record.eps:g}{pixels}, {within}"
    return f"{record.data} ({record.split}): {ball}; broken: {record.rule}"


def _has_pixels(record: Record) -> bool:
    """Return whether eps can be given in steps of 8-bit images: not if the bounds are of another range than 1."""
    return record.norm == "linf" and (record.bounds is None or record.bounds[1] - record.bounds[0] == 1)
