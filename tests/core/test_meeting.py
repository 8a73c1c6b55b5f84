"""Processes of one attempt find each other in a store that earlier attempts have used."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore

from sihg.core._meeting import MEETING, _enter, _invite, read_error, write_error
from sihg.core.processes import ProcessLostError, lost_processes

MINUTE = timedelta(minutes=1)


def meet(store: HashStore, size: int) -> set[str]:
    """Let `size` processes meet, the first one last; return the names of their meetings."""
    with ThreadPoolExecutor(size) as pool:
        others = [pool.submit(_enter, store, rank, MINUTE) for rank in range(1, size)]
        first = pool.submit(_invite, store, size, MINUTE)
        return {future.result() for future in [first, *others]}


def test_all_enter_the_same_new_meeting_at_every_attempt() -> None:
    store = HashStore()
    names = [meet(store, size) for size in (4, 4, 2, 3)]
    assert [len(name) for name in names] == [1, 1, 1, 1]
    assert len(set.union(*names)) == 4


def test_a_meeting_of_dead_processes_is_not_entered() -> None:
    store = HashStore()
    (old,) = meet(store, 2)
    with ThreadPoolExecutor(1) as pool:
        before = store.get(f"{old}/1")
        late = pool.submit(_enter, store, 1, MINUTE)
        while store.get(f"{old}/1") == before:  # until it has tried the old meeting
            time.sleep(0.01)
        new = _invite(store, 2, MINUTE)
        assert late.result() == new != old


def test_a_meeting_that_was_never_complete_is_left_for_the_next() -> None:
    store = HashStore()
    store.set(MEETING, "sihg/of-a-first-process-that-was-killed")
    assert len(meet(store, 2)) == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_stays_alone_says_so(rank: int) -> None:
    store, soon = HashStore(), timedelta(seconds=0.1)
    with pytest.raises(ProcessLostError), lost_processes():
        _ = _invite(store, 2, soon) if rank == 0 else _enter(store, 1, soon)


@pytest.mark.parametrize("error", [RuntimeError("gloo"), ConnectionResetError("reset"), dist.DistStoreError("store")])
def test_every_error_of_the_network_means_a_lost_process(error: Exception) -> None:
    with pytest.raises(ProcessLostError) as caught, lost_processes():
        raise error
    assert caught.value.code == "process-lost"


def test_the_first_error_is_kept() -> None:
    shared = HashStore()
    (name,) = meet(shared, 2)
    store = PrefixStore(name, shared)
    assert read_error(store) is None
    assert write_error(store, 1, "é is wrong", "first") == (1, "é is wrong", "first")
    assert write_error(store, 0, "so is this", "second") == (1, "é is wrong", "first")
    assert read_error(store) == (1, "é is wrong", "first")
