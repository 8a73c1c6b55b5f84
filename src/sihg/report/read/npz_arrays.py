"""Read arrays out of .npz files, of which nothing is ever unpickled."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sihg.errors import InputError


def read_arrays(source: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Some of the arrays in a file; those that it does not have are left out."""
    try:
        with source.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return {name: file[name] for name in names if name in file}
    except Exception as error:  # whatever a damaged archive may look like
        why = (str(error) or repr(error)).splitlines()[0]
        raise InputError(f"cannot read {source} ({why}): evaluate the run again, or take the file away") from error
