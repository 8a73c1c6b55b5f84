"""Robust accuracy: attack a model's samples at one radius or several, and check whether the result can be trusted.

`evaluate` and `robust_curve` take a model of yours, `evaluate_run` a run; both can be saved, resumed and reported.
"""

from sihg.robust.evaluation.autoattack import AutoAttack
from sihg.robust.evaluation.evaluate import evaluate, robust_curve
from sihg.robust.evaluation.evaluate_run import EvaluationRequest, evaluate_run
from sihg.robust.evaluation.findings import Evaluation, RadiusCurve
from sihg.robust.evaluation.partial import EvaluationWarning
from sihg.robust.evaluation.progress import EvaluationProgress

__all__ = [
    "AutoAttack",
    "Evaluation",
    "EvaluationProgress",
    "EvaluationRequest",
    "EvaluationWarning",
    "RadiusCurve",
    "evaluate",
    "evaluate_run",
    "robust_curve",
]
