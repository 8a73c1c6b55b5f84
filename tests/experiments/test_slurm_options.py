"""Options of Slurm jobs: what is taken, what is refused, and how submitit gets them."""

from collections.abc import Iterable, Mapping

import pytest

from sihg.experiments._slurm_options import parse_slurm_options, submitit_parameters
from tests.refused import refused


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("90", 90), ("1:30", 2), ("2:30:00", 150), ("1-12", 2160), ("1-12:30", 2190), ("0-1:00:01", 61), (" 5 ", 5)],
)
def test_times_as_sbatch_takes_them(text: str, minutes: int) -> None:
    assert parse_slurm_options([f"time={text}"]) == {"time": minutes}


@pytest.mark.parametrize(
    ("code", "given"),
    [
        ("slurm-option-form", ["partition"]),
        ("unknown-slurm-option", ["partitoin=gpu"]),
        ("unknown-slurm-option", {"job": 3}),
        ("slurm-option-twice", ["partition=a", "partition=b"]),
        ("slurm-option-value", ["partition="]),
        ("slurm-option-value", {"partition": "a\n#SBATCH --uid=0"}),
        ("slurm-option-value", ["setup=a\nb"]),
        ("slurm-option-value", ["cpus_per_task=0"]),
        ("slurm-option-value", ["cpus_per_task=two"]),
        ("slurm-option-value", ["gpus_per_node=-1"]),
        ("slurm-option-value", ["gpus_per_node=1.5"]),
        ("slurm-option-value", ["mem_gb=nan"]),
        ("slurm-option-value", ["mem_gb=0"]),
        ("slurm-option-value", ["time=0"]),
        ("slurm-option-value", ["time=-5"]),
        ("slurm-option-value", ["time=1:2:3:4"]),
        ("slurm-option-value", ["time=soon"]),
    ],
)
def test_mistakes_are_refused(code: str, given: Iterable[str] | Mapping[str, object]) -> None:
    with refused(code):
        parse_slurm_options(given)


def test_several_commands_before_the_job_and_dashes_in_names() -> None:
    found = parse_slurm_options(["setup=module load cuda", "cpus-per-task=4", "setup=source env", "gpus_per_node=0"])
    assert found == {"setup": ["module load cuda", "source env"], "cpus_per_task": 4, "gpus_per_node": 0}
    assert parse_slurm_options({"setup": ["a", "b"], "mem_gb": 16}) == {"setup": ["a", "b"], "mem_gb": 16.0}


def test_the_names_that_submitit_gives_them() -> None:
    options = parse_slurm_options(["partition=gpu", "time=60", "mem_gb=0.5"])
    assert submitit_parameters(options, at_once=3, threads=2) == {
        "name": "sihg",
        "timeout_min": 60,
        "cpus_per_task": 2,
        "mem_gb": 0.5,
        "slurm_array_parallelism": 3,
        "slurm_partition": "gpu",
    }
