"""Tables of accuracies under attack, as the terminal shows them."""

from typing import Any

from sihg.cli.terminal_table import drawn

Records = list[tuple[str, dict[str, Any]]]  # of each model: what to call it, its record


def table(record: dict[str, Any]) -> str:
    """One model: a row an attack, the parts of a cascade under it."""
    rows = []
    for row in record["attacks"]:
        rows += [_row(row, row["attack"]), *(_row(part, f"  {part['attack']}") for part in row.get("stages", []))]
    headings = ["attack", "accuracy %", "95 % interval", "attacked", "passes a sample", "forwards", "seconds"]
    return drawn(f"{record['checkpoint']} on {record['samples']} samples of {_about(record)}", headings, rows)


def _row(row: dict[str, Any], name: str) -> list[str]:
    costs = [f"{row[key]:.1f}" for key in ("passes_per_sample", "forwards_per_sample", "seconds")]
    attacked = str(row.get("attacked", row["samples"]))
    return [name, f"{100 * row['accuracy']:.2f}", _interval(row, 2), attacked, *costs]


def _interval(row: dict[str, Any], digits: int) -> str:
    return f"{100 * row['low']:.{digits}f} - {100 * row['high']:.{digits}f}"


def curves(records: Records) -> str:
    """Accuracy against eps: a row a radius, a column an attack of a model."""
    some = records[0][1]
    common = {_about(record) for _, record in records}
    columns = []
    for name, record in records:
        model = name if len(common) == 1 else f"{name} ({_about(record)})"
        columns += [(f"{model}: " if len(records) > 1 else "", one) for one in record["curves"]]
    pixels = all(_has_pixels(record) for _, record in records)
    headings = ["eps", *(["eps * 255"] if pixels else []), *(f"{name}{one['attack']} %" for name, one in columns)]
    rows = [
        [
            f"{eps:.4g}",
            *([f"{255 * eps:.4g}"] if pixels else []),
            *(f"{100 * one['accuracy'][i]:.2f}" for _, one in columns),
        ]
        for i, eps in enumerate(some["eps"])
    ]
    about = f"{some['samples']} samples of {_about(some)}" if len(common) == 1 else "accuracies"
    return drawn(about, headings, rows)


def side_by_side(records: Records) -> str:
    """Several models: a row each, a column an attack."""
    some = records[0][1]
    common = {_about(record) for _, record in records}
    headings = ["model", *(f"{row['attack']} %" for row in some["attacks"]), "seconds"]
    rows = [
        [
            name if len(common) == 1 else f"{name} ({_about(record)})",
            *(f"{100 * row['accuracy']:.2f} ({_interval(row, 1)})" for row in record["attacks"]),
            f"{sum(row['seconds'] for row in record['attacks'] if row['attack'] != 'all'):.1f}",
        ]
        for name, record in records
    ]
    about = f"{some['samples']} samples of {_about(some)}" if len(common) == 1 else "accuracies"
    return drawn(about, headings, rows)


def _about(record: dict[str, Any]) -> str:
    ball = f"{record['norm']}, {_within(record)}" if "curves" in record else _ball(record)
    return f"{record['data']} ({record['split']}): {ball}; broken: {record['rule']}"


def _ball(record: dict[str, Any]) -> str:
    eps = record["eps"]
    shown = f"{eps:g} = {255 * eps:.4g}/255" if _has_pixels(record) else f"{eps:g}"
    return f"{record['norm']} eps {shown}, {_within(record)}"


def _has_pixels(record: dict[str, Any]) -> bool:
    """Whether eps may be told in steps of 8-bit images: values bound to another range than 1 have none."""
    bounds = record["bounds"]
    return record["norm"] == "linf" and (bounds is None or bounds[1] - bounds[0] == 1)


def _within(record: dict[str, Any]) -> str:
    bounds = record["bounds"]
    return "no bounds" if bounds is None else f"x + delta in [{bounds[0]:g}, {bounds[1]:g}]"
