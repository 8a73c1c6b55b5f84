"""Find the processes of the present attempt.

After a restart the launcher's store may be the one that dead processes have used, and it still holds their addresses.
The counter of restarts does not tell attempts apart: each node has its own, and it does not count a node that joins or
leaves. So the first process opens a meeting with a new name, and lets in who is there now.
"""

import json
import secrets
import time
from collections.abc import Iterator
from datetime import timedelta

from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

MEETING = "sihg/meeting"  # the key of the newest meeting's name
ERROR = "error"  # the key, in a meeting's own store, of the first error that ended one of its processes
NO_ERROR = ""
SECONDS_PER_TRY = 1.0
SECONDS_FOR_ERROR = 2.0  # for the answer of the store


def open_meeting(rank: int, size: int, timeout: timedelta) -> Store:
    """Meet the other processes of this attempt; return a store that no earlier attempt has written to.

    Raises:
        RuntimeError: A process or the store does not answer in time, as by all calls of torch.distributed.
    """
    store, rank, size = next(iter(rendezvous("env://", rank, size, timeout=timeout)))
    name = _invite(store, size, timeout) if rank == 0 else _enter(store, rank, timeout)
    return PrefixStore(name, store)


def _invite(store: Store, size: int, timeout: timedelta) -> str:
    """Open a meeting and wait until all have entered it; then tell each that it is expected."""
    name = _new_name()
    store.set(f"{name}/{ERROR}", NO_ERROR)
    store.set(MEETING, name)
    keys = [f"{name}/{rank}" for rank in range(1, size)]
    if keys:
        store.wait(keys, timeout)
    store.set(f"{name}/members", json.dumps({key: store.get(key).decode() for key in keys}))
    return name


def _enter(store: Store, rank: int, timeout: timedelta) -> str:
    """Enter the newest meeting; try the next one while this is one of dead processes."""
    own = _new_name()
    for left in _countdown(timeout):
        store.wait([MEETING], left)
        name: str = store.get(MEETING).decode()
        store.set(f"{name}/{rank}", own)
        try:
            store.wait([f"{name}/members"], min(left, timedelta(seconds=SECONDS_PER_TRY)))
        except RuntimeError:  # not yet; if the store has ended, the next call raises it again
            continue
        if json.loads(store.get(f"{name}/members")).get(f"{name}/{rank}") == own:
            return name
        time.sleep(0.05)
    raise RuntimeError(f"process 0 has not answered within {timeout.total_seconds():.0f} seconds")


def write_error(store: Store, rank: int, message: str, code: str) -> tuple[int, str, str]:
    """Keep the error that ends this process, unless there is one; return the one that is kept: (rank, message, code).

    A process that misses this one looks for the error at once, so it must be written before this one goes.
    """
    try:
        found = store.compare_set(ERROR, NO_ERROR, json.dumps((rank, message, code)))
    except RuntimeError:  # the store has ended
        return rank, message, code
    return _parse_error(found)


def read_error(store: Store) -> tuple[int, str, str] | None:
    """Return the error that ended another process, as `write_error` does; None if nobody wrote one."""
    try:
        store.wait([ERROR], timedelta(seconds=SECONDS_FOR_ERROR))  # `get` alone would wait for minutes
        found = store.get(ERROR)
    except RuntimeError:
        return None
    return _parse_error(found) if found.decode() != NO_ERROR else None


def _parse_error(data: bytes) -> tuple[int, str, str]:
    rank, message, code = json.loads(data)
    return rank, message, code


def _new_name() -> str:
    return f"sihg/{secrets.token_hex(8)}"


def _countdown(timeout: timedelta) -> Iterator[timedelta]:
    """Yield the time that is left until the timeout."""
    end = time.monotonic() + timeout.total_seconds()
    while (left := end - time.monotonic()) > 0:
        yield timedelta(seconds=left)
