"""Fill the templates of report pages; all text from outside is escaped, and only our own script may run."""

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

import msgspec
from jinja2 import Environment as Templates
from jinja2 import PackageLoader, StrictUndefined
from markupsafe import Markup

from sihg.report.page.page_figures import dark_colours, image
from sihg.report.read.evaluations import ALL, PROVEN, Evaluation
from sihg.store.schema import Environment


def render(template: str, **content: object) -> str:
    """Return the page that a template gives with this content."""
    page = _templates().get_template(template).render(content)
    return page.encode(errors="backslashreplace").decode()  # file names may contain bytes that are not text


@cache
def _templates() -> Templates:
    templates = Templates(
        loader=PackageLoader("sihg.report.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    script = _own_file("page.js")
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    templates.globals |= {
        "css": Markup(_own_file("page.css").replace("/* dark colours of figures */", dark_colours())),
        "script": Markup(script),
        "script_hash": f"sha256-{allowed}",
        "image": image,
        "refresh": None,
        "status": (),
        "toggles": (),
    }
    return templates


def _own_file(name: str) -> str:
    """Read a file of this package: not text from outside, so it is not escaped."""
    return files("sihg.report.page").joinpath(name).read_text(encoding="utf-8")


def evaluation_notes(evaluations: Sequence[Evaluation]) -> list[str]:
    """Explain the rows of evaluations that are not attacks, and those of targeted ones."""
    notes = []
    if any(evaluation.target for evaluation in evaluations):
        notes.append("targeted: the share of samples that are not turned into the target, which is no accuracy.")
    if any(evaluation.attack == ALL for evaluation in evaluations):
        notes.append("all: the samples that no attack breaks.")
    if any(evaluation.rule == PROVEN for evaluation in evaluations):
        notes.append("proven: a lower bound; no attack within the ball breaks more. Attacks give upper bounds.")
    return notes


def environment_texts(environments: Sequence[Environment]) -> dict[str, str]:
    """List what results were made with; several values where they differ."""
    values: dict[str, dict[str, None]] = {}
    for environment in environments:
        for name, value in msgspec.to_builtins(environment).items():
            values.setdefault(name, {})[str(value)] = None
    return {name: " / ".join(texts) for name, texts in values.items()}
