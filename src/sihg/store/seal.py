"""Seals: the SHA-256 that a file carries of itself, so that everyone who reads it notices a changed byte.

The seal is text, `sha256-of-this-file:` and 64 hexadecimal digits, in a place where the format allows it: the last key
of a JSON object, the last comment of a TOML file, the comment of an .npz archive, the metadata of a safetensors file.
It is the sum of the file with zeros in the place of the digits. With a key, it is an HMAC: only its owner can make it.
"""

import hashlib
import hmac
import re
from pathlib import Path
from typing import Literal

from sihg.errors import InputError

MARK = b"sha256-of-this-file:"
SEAL_KEY = "seal_with_seconds"  # in JSON; who compares two records without their seconds leaves it out, too
NO_SUM = "sha256-of-this-file:" + "0" * 64  # what a writer puts in the place of the seal
_SEAL = re.compile(MARK + rb"([0-9a-f]{64})")

State = Literal["good", "missing", "wrong"]


def seal(data: bytes, key: bytes | None = None) -> bytes:
    """Return the data with its sum in the last place that holds NO_SUM.

    >>> seal(f"epochs = 3 # {NO_SUM}".encode())[-8:]
    b'ae6ba367'
    """
    head, place, tail = data.rpartition(NO_SUM.encode())
    assert place, "the writer leaves a place for the seal"
    return head + MARK + _sum(data, key) + tail


def check_seal(data: bytes, key: bytes | None = None) -> State:
    """Say whether the data carries the seal that it should, none, or another one.

    >>> check_seal(seal(f"a {NO_SUM}".encode())), check_seal(b"a"), check_seal(b"b" + seal(f"a {NO_SUM}".encode()))
    ('good', 'missing', 'wrong')
    """
    place = data.rfind(MARK)
    found = _SEAL.match(data, place) if place >= 0 else None
    if found is None:
        return "missing"
    unsealed = data[: found.start(1)] + b"0" * 64 + data[found.end(1) :]
    return "good" if hmac.compare_digest(found[1], _sum(unsealed, key)) else "wrong"


def require_seal(path: Path, data: bytes, *, sealed: bool = True, key: bytes | None = None) -> None:
    """Raise InputError unless a file's data carries the right seal; without `sealed` it may carry none.

    Args:
        path: The file, for the message.
        data: Its content.
        sealed: Whether a missing seal is an error too.
        key: The key that the seal was made with.
    """
    state = check_seal(data, key)
    if state == "wrong":
        raise InputError("seal-wrong", path=path)
    if state == "missing" and sealed:
        raise InputError("seal-missing", path=path)


def _sum(data: bytes, key: bytes | None) -> bytes:
    digest = hashlib.sha256(data) if key is None else hmac.new(key, data, hashlib.sha256)
    return digest.hexdigest().encode()
