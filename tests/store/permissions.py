"""Take away permissions from a test, which may run as root."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest


def forbid_listing(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Refuse to list a folder as the kernel does without permission."""
    for name in ("listdir", "scandir"):
        original = getattr(os, name)

        def listing(path: Any = ".", original: Any = original) -> Any:
            if not isinstance(path, int) and Path(path) == folder:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return original(path)

        patch.setattr(os, name, listing)
