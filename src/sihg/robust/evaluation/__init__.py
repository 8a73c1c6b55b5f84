"""Robust accuracy: attack a model's samples at one radius or several, and check whether the result can be trusted.

`evaluate`, `robust_curve` and `minimum_eps` take a model of yours, `evaluate_run` a run. All can be saved, resumed and
reported.
"""

from sihg.robust.evaluation.autoattack import AutoAttack
from sihg.robust.evaluation.evaluate import evaluate, robust_curve
from sihg.robust.evaluation.evaluate_run import EvaluationRequest, evaluate_run
from sihg.robust.evaluation.findings import Evaluation, RadiusCurve
from sihg.robust.evaluation.minimum import MinimumNorms, minimum_eps
from sihg.robust.evaluation.partial import EvaluationWarning
from sihg.robust.evaluation.progress import EvaluationProgress

__all__ = [
    "AutoAttack",
    "Evaluation",
    "EvaluationProgress",
    "EvaluationRequest",
    "EvaluationWarning",
    "MinimumNorms",
    "RadiusCurve",
    "evaluate",
    "evaluate_run",
    "minimum_eps",
    "robust_curve",
]
