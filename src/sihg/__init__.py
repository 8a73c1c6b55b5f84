"""Semi-implicit hybrid gradient methods for minimax optimisation and adversarially robust training.

Public names are loaded when first used, so that `import sihg` and the command line start at once.

Example:
    >>> import sihg
    >>> sihg.__version__.count(".")
    2
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sihg import attacks as attacks
    from sihg.core.hybrid import HybridGradient as HybridGradient
    from sihg.core.processes import join_processes as join_processes
    from sihg.formats import export as export
    from sihg.minimax import Problem as Problem
    from sihg.minimax import solve as solve
    from sihg.minimax import zoo as zoo
    from sihg.robust.attacks import APGD as APGD
    from sihg.robust.attacks import CW as CW
    from sihg.robust.attacks import FAB as FAB
    from sihg.robust.attacks import FGSM as FGSM
    from sihg.robust.attacks import MIFGSM as MIFGSM
    from sihg.robust.attacks import PGD as PGD
    from sihg.robust.attacks import Certified as Certified
    from sihg.robust.attacks import DeepFool as DeepFool
    from sihg.robust.attacks import Noise as Noise
    from sihg.robust.attacks import Square as Square
    from sihg.robust.attacks import Transfer as Transfer
    from sihg.robust.data.batches import Batch as Batch
    from sihg.robust.data.batches import batches as batches
    from sihg.robust.data.sharded_sampler import ShardedBatchSampler as ShardedBatchSampler
    from sihg.robust.evaluation.autoattack import AutoAttack as AutoAttack
    from sihg.robust.evaluation.evaluate import evaluate as evaluate
    from sihg.robust.evaluation.evaluate import robust_curve as robust_curve
    from sihg.robust.evaluation.evaluate_run import EvaluationRequest as EvaluationRequest
    from sihg.robust.evaluation.evaluate_run import evaluate_run as evaluate_run
    from sihg.robust.evaluation.findings import Evaluation as Evaluation
    from sihg.robust.evaluation.findings import RadiusCurve as RadiusCurve
    from sihg.robust.evaluation.minimum import MinimumNorms as MinimumNorms
    from sihg.robust.evaluation.minimum import minimum_eps as minimum_eps
    from sihg.robust.evaluation.progress import EvaluationProgress as EvaluationProgress
    from sihg.robust.memory import PerturbationMemory as PerturbationMemory
    from sihg.robust.methods import ATTA as ATTA
    from sihg.robust.methods import DAT as DAT
    from sihg.robust.methods import FGSMAT as FGSMAT
    from sihg.robust.methods import FGSMPGI as FGSMPGI
    from sihg.robust.methods import IBP as IBP
    from sihg.robust.methods import MART as MART
    from sihg.robust.methods import MSIHG as MSIHG
    from sihg.robust.methods import NFGSM as NFGSM
    from sihg.robust.methods import PGDAT as PGDAT
    from sihg.robust.methods import TRADES as TRADES
    from sihg.robust.methods import YOPO as YOPO
    from sihg.robust.methods import FastAT as FastAT
    from sihg.robust.methods import FreeAT as FreeAT
    from sihg.robust.methods import Natural as Natural
    from sihg.robust.models.opening import load_model as load_model
    from sihg.robust.precision import number_formats as number_formats
    from sihg.robust.training.fit import fit as fit
    from sihg.robust.training.weights import load as load

__version__ = "0.1.0"

_ATTACKS = ("APGD", "CW", "FAB", "FGSM", "MIFGSM", "PGD", "Certified", "DeepFool", "Noise", "Square", "Transfer")
_EVALUATION = ("Evaluation", "EvaluationProgress", "EvaluationRequest", "MinimumNorms", "RadiusCurve")
_EVALUATION_CALLS = ("evaluate", "evaluate_run", "minimum_eps", "robust_curve")
_METHODS = (
    *("ATTA", "DAT", "FGSMAT", "FGSMPGI", "IBP", "MART", "MSIHG", "NFGSM", "PGDAT", "TRADES", "YOPO"),
    *("FastAT", "FreeAT", "Natural"),
)
_HOMES = {
    "AutoAttack": "sihg.robust.evaluation",
    "HybridGradient": "sihg.core.hybrid",
    "export": "sihg.formats",
    "Problem": "sihg.minimax",
    "solve": "sihg.minimax",
    "zoo": "sihg.minimax",
    "PerturbationMemory": "sihg.robust.memory",
    "Batch": "sihg.robust.data.batches",
    "batches": "sihg.robust.data.batches",
    "ShardedBatchSampler": "sihg.robust.data.sharded_sampler",
    "fit": "sihg.robust.training.fit",
    "join_processes": "sihg.core.processes",
    "number_formats": "sihg.robust.precision",
    "load": "sihg.robust.training.weights",
    "load_model": "sihg.robust.models.opening",
    **dict.fromkeys((*_EVALUATION, *_EVALUATION_CALLS), "sihg.robust.evaluation"),
    **dict.fromkeys(_ATTACKS, "sihg.robust.attacks"),
    **dict.fromkeys(_METHODS, "sihg.robust.methods"),
}
_ROOMS = (
    "attacks",
    "errors",
    "experiments",
    "formats",
    "loggers",
    "minimax",
    "report",
    "robust",
    "store",
)  # also found without an import of their own
__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"sihg.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'sihg' has no attribute {name!r}: it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
