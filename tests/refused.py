"""Expect an error by its code and the values it names, not by its words."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sihg.errors import SihgError


@contextmanager
def refused(code: str, **values: object) -> Iterator[pytest.ExceptionInfo[SihgError]]:
    """Assert that the block raises a SihgError with this code, whose `values` include these."""
    with pytest.raises(SihgError) as caught:
        yield caught
    assert caught.value.code == code, f"code {caught.value.code!r}: {caught.value}"
    found = caught.value.values
    assert {name: found.get(name) for name in values} == values, str(caught.value)
