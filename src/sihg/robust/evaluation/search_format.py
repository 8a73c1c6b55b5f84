"""Choose the number format in which the attacks of an evaluation search."""

from collections.abc import Mapping

from torch import nn

from sihg.errors import UnknownNameError
from sihg.robust.attacks.chunk_size import rows_per_chunk
from sihg.robust.attacks.input_checks import load_rows
from sihg.robust.attacks.registry import Plan
from sihg.robust.data.samples import Samples
from sihg.robust.gradients import inner_mode, input_gradient
from sihg.robust.precision import FORMATS, FormatChoice, choose_format, number_formats

PRECISIONS = (*FORMATS, "auto")
PROBED_ROWS = 128  # that `auto` measures passes on


def choose_precision(model: nn.Module, samples: Samples, plans: Mapping[str, Plan], precision: str) -> FormatChoice:
    """Return the number format of the searches; `auto` measures passes on the first samples, if an attack has any."""
    if precision not in PRECISIONS:
        raise UnknownNameError("precision", precision, list(PRECISIONS))
    if precision != "auto":
        return FormatChoice(precision, "")
    if not any(attack.searches_fast for plan in plans.values() for attack in plan.values()):
        return FormatChoice("float32", "no attack among these searches in bfloat16")
    x, y = load_rows(model, samples, slice(min(PROBED_ROWS, len(samples), rows_per_chunk(samples.shape))))

    def search_once(name: str) -> None:
        with number_formats(model, ascent=name), inner_mode(model, "running"):
            input_gradient(model, x, y)

    return choose_format(search_once, x.device.type)
