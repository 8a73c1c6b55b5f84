"""Choose the number format in which the attacks of an evaluation search."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from sihg.core.draw import seeded
from sihg.errors import UnknownNameError
from sihg.robust.attacks.chunk_size import rows_per_chunk
from sihg.robust.attacks.input_checks import load_rows
from sihg.robust.attacks.registry import Plan
from sihg.robust.data.samples import Samples
from sihg.robust.gradients import cross_entropy_sum, inner_mode, input_gradient, margins
from sihg.robust.precision import FORMATS, FormatChoice, choose_format, number_formats

PRECISIONS = (*FORMATS, "auto")
PROBED_ROWS = 128  # that `auto` measures passes on
COMPARED_ROWS = 64  # whose margins and gradients are compared in both formats
MAX_ERROR = 0.05  # of margins, over their size: medians; 0.002 to 0.004 in usual models
MIN_COSINE, MIN_SHARE = 0.9, 0.9  # of the gradients of a row in both formats; of the rows that must have it


def choose_precision(model: nn.Module, samples: Samples, plans: Mapping[str, Plan], precision: str) -> FormatChoice:
    """Return the number format of the searches; `auto` measures passes on the first samples, if an attack has any.

    Where bfloat16 gives the model other margins or gradients than float32, a search in it would find too little. Then
    it is float32.
    """
    if precision not in PRECISIONS:
        raise UnknownNameError("precision", precision, list(PRECISIONS))
    if not any(attack.searches_fast for plan in plans.values() for attack in plan.values()):
        none = FormatChoice("float32", "no attack among these searches in bfloat16")
        return none if precision == "auto" else FormatChoice(precision, "")
    if precision == "float32":
        return FormatChoice(precision, "")
    rows = min(PROBED_ROWS, len(samples), rows_per_chunk(samples.shape))
    x, y = load_rows(model, samples, slice(rows))

    def search_once(name: str) -> None:
        with number_formats(model, ascent=name), inner_mode(model, "running"):
            input_gradient(model, x, y)

    choice = choose_format(search_once, x.device.type) if precision == "auto" else FormatChoice(precision, "")
    if choice.name == "bfloat16":
        try:
            why = _compare_formats(model, x[:COMPARED_ROWS], y[:COMPARED_ROWS])
        except Exception:  # the checks of the model and the attacks say what is wrong with it
            return choice
        return FormatChoice("float32", why) if why else choice
    return choice


def _compare_formats(model: nn.Module, x: Tensor, y: Tensor) -> str:
    """Return how the model computes otherwise in bfloat16; empty if it is about the same."""
    leads, slopes = list[Tensor](), list[Tensor]()
    for name in FORMATS:
        with number_formats(model, ascent=name), inner_mode(model, "running"):
            for found, run in ((leads, _lead), (slopes, _slope)):
                with seeded(0, "formats compared", device=x.device):  # random models draw the same
                    found.append(run(model, x, y))
    error = float((leads[0] - leads[1]).abs().median() / leads[0].abs().median())
    if not error <= MAX_ERROR:
        return f"bfloat16 changes the margins of the model by {error:.0%}, float32 is needed"
    has_slope = slopes[0].any(1)
    if not bool(has_slope.any()):
        return ""
    share = float((cosine_similarity(slopes[0], slopes[1])[has_slope] >= MIN_COSINE).float().mean())
    if share < MIN_SHARE:
        return f"bfloat16 changes the gradients at {1 - share:.0%} of the samples, float32 is needed"
    return ""


def _lead(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        return margins(model(x).float(), y)


def _slope(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return input_gradient(model, x, y, cross_entropy_sum).flatten(1).float()
