"""Load ODL's SPDHG from its file: importing odl.contrib would need packages that SPDHG does not use."""

from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any


def load() -> Callable[..., None]:
    """Return `spdhg(x, f, g, A, tau, sigma, niter, ...)` of the installed odl."""
    import odl

    path = Path(odl.__file__).parent / "contrib/solvers/spdhg/stochastic_primal_dual_hybrid_gradient.py"
    spec = spec_from_file_location("odl_contrib_spdhg", path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.spdhg  # type: ignore[no-any-return]
