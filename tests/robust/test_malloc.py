"""Freed memory is taken again without asking the system for its pages."""

import os
import platform
import subprocess
import sys

import pytest

from sihg.robust._malloc import USER_VARIABLES

PASSES = """
import resource, torch
from sihg.robust.models import build
from sihg.robust.gradients import input_gradient
torch.set_num_threads(1)
{first}
model, x, y = build("preact-resnet8", (3, 32, 32), 10), torch.rand(100, 3, 32, 32), torch.arange(100) % 10
for i in range(9):
    if i == 3:  # it has what it needs by now
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    input_gradient(model, x, y)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
KEEP = "from sihg.robust._malloc import keep_freed_memory; keep_freed_memory()"
ASCENT = "from sihg.robust.gradients import inner_mode\nwith inner_mode(torch.nn.ReLU(), 'batch'): pass"


def faults(first: str, **environment: str) -> int:
    plain = {name: value for name, value in os.environ.items() if name not in USER_VARIABLES}
    command = [sys.executable, "-c", PASSES.format(first=first)]
    done = subprocess.run(command, env=plain | environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc that is told")
def test_an_ascent_makes_pages_stay_unless_the_user_has_chosen() -> None:
    without, asked, within = faults(""), faults(KEEP), faults(ASCENT)
    assert max(asked, within) < without / 4
    assert faults(ASCENT, MALLOC_TRIM_THRESHOLD_="131072") > without / 2
