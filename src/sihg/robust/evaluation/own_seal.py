"""The seal of a record by the user's key: who made it, and which evaluation it is.

Only a record with this seal can stand for the evaluation. One that was edited, or that somebody else made, has another
seal or none.
"""

import hashlib
import hmac
import json

import msgspec

from sihg.store.schema import CurveRecord, EvaluationRecord
from sihg.store.trust import user_key

Record = EvaluationRecord | CurveRecord
FIELD = "own_seal_with_seconds"


def seal_record(record: Record, fingerprint: str) -> Record:
    """Return the record with a seal over its content and the fingerprint; without a key or a fingerprint, with none."""
    key = user_key()
    sealed = _seal(record, fingerprint, key) if key and fingerprint else ""
    return msgspec.structs.replace(record, own_seal_with_seconds=sealed)


def has_own_seal(record: Record, fingerprint: str) -> bool:
    """Return whether this user made the record, of the evaluation with this fingerprint, and nobody changed it."""
    key = user_key()
    if not (key and fingerprint):
        return False
    return hmac.compare_digest(record.own_seal_with_seconds.encode(), _seal(record, fingerprint, key).encode())


def record_content(record: Record, *without: str) -> dict[str, object]:
    """Return the fields of a record as they are read from its file, some aside."""
    read = msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(record))), type(record), strict=False)
    return {name: value for name, value in msgspec.to_builtins(read).items() if name not in without}


def _seal(record: Record, fingerprint: str, key: bytes) -> str:
    text = json.dumps([fingerprint, record_content(record, FIELD)], sort_keys=True)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
