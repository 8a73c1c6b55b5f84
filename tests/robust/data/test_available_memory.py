"""How much memory data may take: limits of the machine, of control groups and of the address space."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from sihg.robust.data import available_memory
from sihg.robust.data.available_memory import _free_in_control_group, max_memory
from tests.robust.data.sets import put

MB = 2**20


def test_half_of_what_is_left_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available_memory, "_free_in_machine", lambda: 800 * MB)
    monkeypatch.setattr(available_memory, "_free_in_control_group", lambda: None)
    monkeypatch.setattr(available_memory, "_free_in_address_space", lambda: None)
    assert max_memory() == 400 * MB
    monkeypatch.setattr(available_memory, "_free_in_control_group", lambda: 300 * MB)
    assert max_memory() == 150 * MB
    monkeypatch.setattr(available_memory, "_free_in_address_space", lambda: -5)
    assert max_memory() == 0


def test_the_tightest_control_group_counts(tmp_path: Path) -> None:
    put(tmp_path / "proc/self/cgroup", b"0::/user/job\n")
    root = tmp_path / "sys/fs/cgroup"
    put(root / "user/memory.max", str(500 * MB).encode())
    put(root / "user/memory.current", str(200 * MB).encode())
    put(root / "user/memory.stat", f"anon {100 * MB}\ninactive_file {50 * MB}\n".encode())
    put(root / "user/job/memory.max", b"max\n")
    put(root / "user/job/memory.current", str(200 * MB).encode())
    put(root / "user/job/memory.stat", b"inactive_file 0\n")
    assert _free_in_control_group(tmp_path) == 350 * MB


def test_control_groups_of_version_1(tmp_path: Path) -> None:
    put(tmp_path / "proc/self/cgroup", b"5:cpu:/a\n4:memory:/job\n")
    root = tmp_path / "sys/fs/cgroup/memory/job"
    put(root / "memory.limit_in_bytes", str(100 * MB).encode())
    put(root / "memory.usage_in_bytes", str(60 * MB).encode())
    put(root / "memory.stat", f"total_inactive_file {10 * MB}\n".encode())
    assert _free_in_control_group(tmp_path) == 50 * MB
    assert _free_in_control_group(tmp_path / "nowhere") is None


def test_a_limit_of_the_address_space_counts() -> None:
    code = "from sihg.robust.data.available_memory import available_memory; print(available_memory())"
    limit = 512 * MB

    def restrict() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, preexec_fn=restrict)
    assert 0 < int(done.stdout) < limit
