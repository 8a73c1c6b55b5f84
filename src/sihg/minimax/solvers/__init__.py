"""The methods by name. Each is one file: frozen settings, `init`, and `step` from state to state."""

from typing import Any

from sihg.errors import UnknownNameError
from sihg.minimax.solvers.adaptive_eg_plus import AdaptiveEGPlus
from sihg.minimax.solvers.altgda import AltGDA
from sihg.minimax.solvers.base import Method
from sihg.minimax.solvers.curvature_eg_plus import CurvatureEGPlus
from sihg.minimax.solvers.ds_gda import DSGDA
from sihg.minimax.solvers.dsi_hg import DSIHG
from sihg.minimax.solvers.extragradient import EGPlus, Extragradient
from sihg.minimax.solvers.feg import FEG
from sihg.minimax.solvers.gda import GDA
from sihg.minimax.solvers.inexact_ppm import InexactPPM
from sihg.minimax.solvers.mgda import MGDA
from sihg.minimax.solvers.ogda_plus import OGDAPlus
from sihg.minimax.solvers.optimistic import Optimistic
from sihg.minimax.solvers.spdhg import SPDHG
from sihg.minimax.solvers.spdhg_balanced import SPDHGBalanced
from sihg.minimax.solvers.spdhg_importance import SPDHGImportance
from sihg.minimax.solvers.ssi_hg import SSIHG

AnyMethod = Method[Any]
METHODS: dict[str, type[AnyMethod]] = {
    "ssi-hg": SSIHG,
    "dsi-hg": DSIHG,
    "spdhg": SPDHG,
    "gda": GDA,
    "mgda": MGDA,
    "extragradient": Extragradient,
    "eg+": EGPlus,
    "optimistic": Optimistic,
    "adaptive-eg+": AdaptiveEGPlus,
    "curvature-eg+": CurvatureEGPlus,
    "inexact-ppm": InexactPPM,
    "ogda+": OGDAPlus,
    "feg": FEG,
    "ds-gda": DSGDA,
    "altgda": AltGDA,
    "spdhg-importance": SPDHGImportance,
    "spdhg-balanced": SPDHGBalanced,
}


def method_class(name: str) -> type[AnyMethod]:
    """Return the class of a method, or raise UnknownNameError."""
    if name not in METHODS:
        raise UnknownNameError("method", name, [*METHODS, "auto"])
    return METHODS[name]


def method_name(method: AnyMethod) -> str:
    """Return the name of a method."""
    return next(name for name, kind in METHODS.items() if kind is type(method))
