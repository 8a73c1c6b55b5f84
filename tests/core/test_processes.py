"""Processes that compute together: sums in the order of one tree, and what all of them must know."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from sihg.core.processes import (
    ALONE,
    SHARDS,
    Processes,
    bit_reversed,
    check_lanes,
    join_processes,
    lost_processes,
    sum_pairs,
)
from sihg.errors import InputError, SihgError
from sihg.robust.data.batches import check_batch_size
from sihg.robust.training.lanes import LaneSum
from tests.refused import refused
from tests.torchrun import launch, lines_of

POWERS = [1, 2, 4, 8, 16, 32, 64]


def rows_of_any_size(count: int, width: int = 50) -> Tensor:
    """Numbers whose sum depends on the order of the additions."""
    draw = torch.Generator().manual_seed(count)
    scale = 10.0 ** torch.randint(-6, 7, (count, width), generator=draw)
    return torch.randn(count, width, generator=draw) * scale


def tree(rows: list[Tensor]) -> Tensor:
    """The sum of the definition: halves are added row by row, until one row is left."""
    if len(rows) == 1:
        return rows[0]
    half = len(rows) // 2
    return tree([rows[i] + rows[i + half] for i in range(half)])


def test_a_sum_of_four_by_hand() -> None:
    a, b, c, d = (torch.tensor([value]) for value in (1e8, 1.0, -1e8, 1.0))
    assert sum_pairs(torch.stack([a, b, c, d])).tolist() == [((1e8 - 1e8) + (1.0 + 1.0))] == [2.0]
    assert float(a + b + c + d) == 1.0  # another order rounds differently


@pytest.mark.parametrize("count", POWERS)
def test_sums_are_a_tree(count: int) -> None:
    rows = rows_of_any_size(count)
    before = rows.clone()
    assert torch.equal(sum_pairs(rows), tree(list(rows)))
    assert torch.equal(rows, before)
    if count > 2:
        assert not torch.equal(sum_pairs(rows), rows.cumsum(0)[-1])


@pytest.mark.parametrize("count", POWERS)
def test_bit_reversed(count: int) -> None:
    width = count.bit_length() - 1
    assert bit_reversed(count) == [int(f"{i:0{width}b}"[::-1], 2) if width else 0 for i in range(count)]


@pytest.mark.parametrize(("lanes", "size"), [(lanes, size) for lanes in POWERS for size in POWERS if size <= lanes])
def test_processes_that_sum_their_lanes_sum_all_lanes(lanes: int, size: int) -> None:
    """Each adds its own by LaneSum, in its own order; the sum of these sums is that over all lanes, to the bit."""
    rows = rows_of_any_size(lanes)
    parts, seen = [], []
    for rank in range(size):
        own = Processes(rank, size).own(lanes)
        assert {lane % size for lane in own} == {rank}
        seen += own
        sums = LaneSum(nn.Linear(2, 1), [nn.Parameter(torch.zeros(50))], Processes(rank, size), lanes)
        assert sums.order == own
        for lane in own:
            sums._push(rows[lane].clone())
        ((_, total),) = sums._sums
        parts.append(total)
    assert sorted(seen) == list(range(lanes))
    assert torch.equal(sum_pairs(torch.stack(parts)), sum_pairs(rows))


def test_lanes_and_processes_that_do_not_fit() -> None:
    for lanes in POWERS:
        for size in (s for s in POWERS if s <= lanes):
            check_lanes(lanes, size)
    for lanes in (0, -1, 3, 6, 48, 65, 128):
        with refused("lanes-range", lanes=lanes, shards=SHARDS):
            check_lanes(lanes)
    for lanes, size in ((4, 3), (4, 8), (1, 2), (64, 6)):
        with refused("lanes-processes", lanes=lanes, processes=size):
            check_lanes(lanes, size)


# ---- alone


def test_alone_everything_returns_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    with join_processes() as processes:
        assert processes is ALONE
    vector = torch.arange(3.0)
    assert processes.sum(vector) is vector
    assert processes.gather([1, None]) == [[1, None]]
    assert processes.gather_bytes(b"") == processes.collect_bytes(b"") == [b""]
    assert processes.any([True, False]) == [True, False]
    processes.copy_first([vector])
    processes.wait()
    assert processes.own(4) == [0, 2, 1, 3]
    assert processes.bytes_sent == 0
    for block in (processes.together, processes.same):
        with refused("no-samples") as caught, block():
            check_batch_size(1, 0)
        assert caught.value.printed_by == 0


# ---- two processes, each of which checks what it sees and tells it


def work(folder: Path) -> None:
    """What each of two processes does."""
    if "LEAVE" in os.environ:  # torchrun, which ends the others at once, would race with what they say
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with join_processes(minutes=2) as processes:
        rank = processes.rank
        told: dict[str, Any] = {"rank": rank, "size": processes.size, "is_first": processes.is_first}
        rows = rows_of_any_size(2, 7)
        before = processes.bytes_sent
        told["sum"] = torch.equal(processes.sum(rows[rank]), rows[0] + rows[1])
        told["bytes"] = processes.bytes_sent - before
        with patch("sihg.core.processes.BUCKET_VALUES", 4):  # two buckets, the last one smaller
            told["buckets"] = torch.equal(processes.sum(rows[rank]), rows[0] + rows[1])
        double = processes.sum(torch.tensor([1e-17, 1.0], dtype=torch.float64) * (rank + 1))
        told["double"] = (str(double.dtype), double.tolist())
        told["gather"] = processes.gather({"rank": rank, "text": "é" * (1 + 5 * rank), "none": None})
        told["gather_bytes"] = [list(data) for data in processes.gather_bytes(b"\0" * 3 if rank else b"")]
        before = processes.bytes_sent
        told["collect_bytes"] = [list(data) for data in processes.collect_bytes(bytes([rank] * (5 * rank)))]
        told["collect_bytes sent"] = processes.bytes_sent - before
        told["any"] = processes.any([rank == 0, rank == 1, False])
        own = [torch.full((2,), rank + 1.0, requires_grad=True), torch.tensor(rank)]
        processes.copy_first(own)
        told["copy_first"] = [own[0].tolist(), int(own[1])]
        told["together"] = tell_error(processes, failing=[1])
        told["both"] = tell_error(processes, failing=[0, 1])
        with processes.together():
            pass
        processes.wait()
        (folder / f"{rank}.json").write_text(json.dumps(told), encoding="utf-8")
        if os.environ.get("LEAVE") == str(rank):
            os._exit(7)
        processes.wait()


def tell_error(processes: Processes, failing: list[int]) -> list[Any]:
    """What an error on some processes looks like on this one: its code, its words, and who prints it."""
    try:
        with processes.together():
            if processes.rank in failing:
                raise InputError("lanes-range", lanes=3 + processes.rank, shards=64)
    except SihgError as error:
        return [error.code, str(error), error.printed_by]
    return []


def fail(folder: Path) -> None:
    """Let an error that nobody has agreed on end process 1, then both; write how each ended."""
    told = []
    for failing in ([1], [0, 1]):
        try:
            with join_processes(minutes=2) as processes:
                processes.wait()
                if processes.rank in failing:
                    raise InputError("lanes-range", lanes=3, shards=64)
                processes.wait()
        except SihgError as error:
            told.append([error.code, str(error), error.printed_by])
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(told), encoding="utf-8")


@pytest.fixture(scope="module", name="told")
def told_(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("told")
    result = launch(2, ["-m", "tests.core.test_processes", folder])
    assert result.returncode == 0, result.stderr
    return [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]


def test_two_processes_know_each_other(told: list[dict[str, Any]]) -> None:
    assert [(t["rank"], t["size"], t["is_first"]) for t in told] == [(0, 2, True), (1, 2, False)]


def test_two_processes_sum_to_the_bit(told: list[dict[str, Any]]) -> None:
    for t in told:
        assert t["sum"]
        assert t["bytes"] == 2 * 4 * 4  # half of 7 numbers, rounded up, to the other process and back
        assert t["buckets"]
        assert t["double"] == ["torch.float64", [3e-17, 3.0]]


def test_two_processes_gather(told: list[dict[str, Any]]) -> None:
    assert told[1]["collect_bytes sent"] - told[0]["collect_bytes sent"] == 5
    for t in told:
        assert t["gather"] == [{"rank": r, "text": "é" * (1 + 5 * r), "none": None} for r in range(2)]
        assert t["gather_bytes"] == [[], [0, 0, 0]]
        assert t["collect_bytes"] == [[], [1] * 5]  # on the second these are its own
        assert t["any"] == [True, True, False]
        assert t["copy_first"] == [[1.0, 1.0], 0]


def test_an_error_on_one_process_is_raised_on_both_and_printed_by_one(told: list[dict[str, Any]]) -> None:
    for t in told:
        code, words, printed_by = t["together"]
        assert (code, printed_by) == ("lanes-range", 1)
        assert "got 4" in words
    for rank, t in enumerate(told):  # each keeps its own, the first prints
        code, words, printed_by = t["both"]
        assert (code, printed_by) == ("lanes-range", 0)
        assert f"got {3 + rank}" in words


def test_a_process_that_has_ended_is_missed(tmp_path: Path) -> None:
    result = launch(2, ["-m", "tests.core.test_processes", tmp_path], environment={"LEAVE": "1"})
    assert result.returncode != 0
    (line, *more) = lines_of(result, "ProcessLostError: another process of this run has ended")
    assert not more
    assert "see its own message" in line


def test_the_error_that_ends_a_process_ends_the_others_and_one_prints_it(tmp_path: Path) -> None:
    result = launch(2, ["-m", "tests.core.test_processes", tmp_path, "fail"])
    assert result.returncode == 0, result.stderr
    found = [json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]
    message = str(InputError("lanes-range", lanes=3, shards=64))
    assert [one for one, _ in found] == [["lanes-range", message, 1]] * 2
    (code, words, printed_by), other = (both for _, both in found)
    assert (code, words) == ("lanes-range", message)
    assert printed_by in (0, 1)
    assert other == [code, words, printed_by]


def test_words_of_a_lost_process() -> None:
    with refused("process-lost", reason="Connection closed by peer"), lost_processes():
        raise RuntimeError("Connection closed by peer\nand a long explanation")


if __name__ == "__main__":
    (fail if "fail" in sys.argv else work)(Path(sys.argv[1]))
