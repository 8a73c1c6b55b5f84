"""The model card of a run, README.md of the hub: filled in from the records, by a template."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sihg.formats.source_run import SourceRun
from sihg.store.answers import open_checks
from sihg.store.schema import NOT_SET, CurveRecord, EvaluationRecord, count_results, method_notes

HUB_DATA = {  # names on the hub
    "mnist": "ylecun/mnist",
    "fashion-mnist": "zalando-datasets/fashion_mnist",
    "svhn": "ufldl-stanford/svhn",
    "cifar10": "uoft-cs/cifar10",
}
TAGS = ("adversarial-robustness", "adversarial-training", "sihg")
MAX_CLASSES = 20  # that are listed


class Fact(NamedTuple):
    """A row of a table of two columns."""

    name: str
    value: str


def model_card(source: SourceRun, out: Path) -> str:
    """Return the model card of a run.

    Args:
        source: The run.
        out: The folder that gets the card, named where it says how to load the model.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    pages = Environment(
        loader=PackageLoader("sihg.formats", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown
    )
    pages.filters |= {"cell": _cell, "count": _count, "shell": shlex.quote, "literal": json.dumps}
    settings, records = source.settings, list(source.records.values())
    attacks = [record for record in records if isinstance(record, EvaluationRecord)]
    curves = [record for record in records if isinstance(record, CurveRecord)]
    last = source.rows[-1] if source.rows else None
    return pages.get_template("card.md").render(
        front=front_matter(source, attacks),
        name=source.name,
        folder=out.name or "model",
        settings=settings,
        ball=describe_threat(settings),
        parameters=sum(p.numel() for p in source.build().parameters()),
        shape=tuple(source.data.shape),
        classes=_classes(source.data.classes),
        samples=source.data.samples,
        own_model=":" in str(settings["model"]) or str(settings["data"]).startswith("fit:"),
        attacks=attacks,
        curves=curves,
        notes=[note for record in records for note in (*record.notes, *method_notes(record))],
        counts=[count_results(record.checks) for record in records],
        warnings=_open_warnings(records),
        training_warnings=source.training_warnings,
        checkpoint=source.weights.label,
        facts=_facts(settings),
        last=last,
        environment=source.folder.read_environment(),
        sha256=source.sha256,
        not_set=NOT_SET,
    )


def front_matter(source: SourceRun, attacks: Sequence[EvaluationRecord]) -> str:
    """Return the metadata of the card as YAML."""
    data = str(source.settings["data"])
    content: dict[str, object] = {
        "library_name": "sihg",
        "pipeline_tag": "image-classification",
        "tags": [*TAGS, str(source.settings["method.name"]).rpartition("/")[2]],
    }
    if data in HUB_DATA:
        content["datasets"] = [HUB_DATA[data]]
    if results := [_result(data, record) for record in attacks]:
        content["model-index"] = [{"name": source.name, "results": results}]
    return "\n".join(_yaml(content))


def _yaml(value: object) -> list[str]:
    """Return the lines of dicts, lists and plain values as YAML; JSON's texts and numbers are YAML, too.

    >>> _yaml({"tags": ["a", "b"], "results": [{"value": 0.5}]})
    ['tags:', '- "a"', '- "b"', 'results:', '- value: 0.5']
    """
    if isinstance(value, dict):
        lines = []
        for key, item in value.items():
            inner = _yaml(item)
            if isinstance(item, dict | list):
                lines += [f"{key}:", *(inner if isinstance(item, list) else _indented(inner, "  "))]
            else:
                lines.append(f"{key}: {inner[0]}")
        return lines
    if isinstance(value, list):
        return [line for item in value for line in _indented(_yaml(item), "- ")]
    return [json.dumps(value, ensure_ascii=False)]


def _indented(lines: Sequence[str], first: str) -> list[str]:
    return [f"{first if number == 0 else '  '}{line}" for number, line in enumerate(lines)]


def _result(data: str, record: EvaluationRecord) -> dict[str, object]:
    metrics = [
        {"type": "accuracy", "name": _metric_name(record, row.attack), "value": round(row.accuracy, 6)}
        for row in record.attacks
        if not row.proof
    ]
    dataset = {"name": record.data or data, "type": HUB_DATA.get(record.data, record.data), "split": record.split}
    return {"task": {"type": "image-classification"}, "dataset": dataset, "metrics": metrics}


def _metric_name(record: EvaluationRecord, attack: str) -> str:
    """Name an accuracy; what "all" stands for differs between evaluations, so its attacks are named."""
    if attack == "natural":
        return "clean accuracy"
    if attack == "all":
        attack = "all of " + ", ".join(row.attack for row in record.attacks if row.attack != "all" and not row.proof)
    return f"accuracy under {attack}, {record.norm} eps {record.eps:.6g}"


def describe_threat(settings: Mapping[str, object]) -> str:
    """Return the ball of the training: "linf, eps 0.4, x + delta in [0, 1]"."""
    eps, bounds = float(str(settings["eps"])), settings["bounds"]
    steps = 255 * eps
    pixels = f" = {steps:g}/255" if settings["norm"] == "linf" and abs(steps - round(steps)) < 1e-6 else ""
    inside = f"x + delta in [{bounds[0]:g}, {bounds[1]:g}]" if isinstance(bounds, list) else "x + delta unbounded"
    return f"{settings['norm']}, eps {eps:.6g}{pixels}, {inside}"


def _facts(settings: Mapping[str, object]) -> list[Fact]:
    """Return the settings that have a value, those of the method first."""
    order = sorted(settings, key=lambda name: not name.startswith("method."))
    return [Fact(name, json.dumps(settings[name]).strip('"')) for name in order if settings[name] != NOT_SET]


def _open_warnings(records: Sequence[EvaluationRecord | CurveRecord]) -> list[str]:
    """Return each warning and error of the checks once, without those that another record answers."""
    found = {
        f"{'' if check.result == 'warning' else 'error: '}{check.name}: {check.message}": None
        for record in records
        for check in open_checks(record, records)
    }
    return list(found)


def _classes(classes: Sequence[str]) -> str:
    more = len(classes) - MAX_CLASSES
    return ", ".join(classes[:MAX_CLASSES]) + (f" and {more} more" if more > 0 else "")


def _count(record: EvaluationRecord | CurveRecord) -> str:
    return f"all {record.of:,}" if record.samples == record.of else f"{record.samples:,} of {record.of:,}"


def _cell(text: object) -> str:
    """Return text for a cell of a table."""
    return str(text).replace("|", "\\|").replace("\n", " ")
