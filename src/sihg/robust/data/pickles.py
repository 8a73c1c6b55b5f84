"""Read pickled arrays from outside without running other code that a pickle may hold."""

import io
import pickle
from typing import Any

import numpy as np

_ALLOWED = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): lambda kind, *_: np.dtype(kind),  # old files give its flags as numbers, which numpy deprecates
    ("_codecs", "encode"): lambda text, encoding="latin1": text.encode(encoding),
    **{(f"numpy.{core}.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0] for core in ("core", "_core")},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not part of an array")
        return _ALLOWED[module, name]


def unpickle_arrays(data: bytes) -> Any:
    """Read a pickle of arrays, numbers, texts and their containers; raise UnpicklingError for anything else."""
    try:
        return _Unpickler(io.BytesIO(data), encoding="latin1").load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a broken pickle may raise anything
        raise pickle.UnpicklingError(f"broken pickle: {type(error).__name__}: {error}") from error
