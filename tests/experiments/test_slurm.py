"""Jobs of a cluster: submitted once, waited for, reported. Commands that imitate Slurm's stand for the cluster."""

import os
import signal
import stat
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sihg.errors import InputError
from sihg.experiments import _slurm
from sihg.experiments._slurm import SlurmLauncher
from sihg.experiments._slurm_options import parse_slurm_options
from sihg.experiments.grid_run import GridRun, build_grid
from sihg.experiments.launcher import Event, Job, JobEnded, JobQueued, JobStarted
from sihg.store.schema import SubmittedJobs, read_record
from tests.refused import refused

NAMES = ("pgd-s0", "pgd-s1")
# Submits a script by running it: the tasks of an array in the background, with Slurm's variables.
SBATCH = """#!/bin/bash
[ -e {home}/refuse ] && {{ echo "sbatch: error: invalid partition specified: nowhere" >&2; exit 1; }}
n=$(( $(cat {home}/count 2>/dev/null || echo 41) + 1 )); echo $n > {home}/count
cp "$1" {home}/script-$n
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$1")
if [ -z "$last" ]; then
  SLURM_JOB_ID=$n bash {home}/script-$n > /dev/null 2>&1 < /dev/null &
else
  for a in $(seq 0 $last); do
    SLURM_JOB_ID=$((n * 100 + a)) SLURM_ARRAY_JOB_ID=$n SLURM_ARRAY_TASK_ID=$a \\
      bash {home}/script-$n > /dev/null 2>&1 < /dev/null &
  done
fi
echo "Submitted batch job $n"
"""
SRUN = """#!/bin/bash
while [ "${1#--}" != "$1" ]; do case "$1" in --output|--error) shift 2;; *) shift;; esac; done
exec "$@"
"""
SACCT = """#!/bin/bash
echo "JobID|State|NodeList"
[ -e {home}/states ] && cat {home}/states
exit 0
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put commands that imitate Slurm's on the path; the test ends when the processes they started have ended."""
    home = tmp_path / "cluster"
    home.mkdir()
    for name, text in {"sbatch": SBATCH.format(home=home), "srun": SRUN, "sacct": SACCT.format(home=home)}.items():
        (home / name).write_text(text)
        (home / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{home}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(_slurm, "SECONDS_BETWEEN_LOOKS", 0.05)
    _forget_states()
    yield home
    _forget_states()


def _forget_states() -> None:
    """Empty submitit's table of jobs, which lives as long as the process."""
    import submitit

    watcher = submitit.SlurmJob.watcher
    watcher.clear()
    watcher._registered.clear()


def launch(out: Path, *options: str) -> SlurmLauncher:
    cells = build_grid("digits", methods="pgd", trials=len(NAMES), out=out).cells()
    return SlurmLauncher(out, cells, parse_slurm_options(options), at_once=1, threads=1)


def make_job(out: Path, name: str, code: str) -> Job:
    folder = out / name
    command = [sys.executable, "-c", code]
    return Job(name, command, folder / "output.log", lambda: folder.mkdir(parents=True, exist_ok=True))


def ends(events: list[Event]) -> dict[str, JobEnded]:
    return {event.name: event for event in events if isinstance(event, JobEnded)}


def test_an_array_with_its_options_and_what_became_of_its_jobs(cluster: Path, tmp_path: Path) -> None:
    out = tmp_path / "g"
    codes = {"pgd-s0": "import sys; sys.exit('one\\ntwo\\nthe reason')", "pgd-s1": "import os; os.kill(os.getpid(), 9)"}
    launcher = launch(out, "partition=gpu", "time=1-0", "setup=true", "mem_gb=2")
    events = list(launcher.run([make_job(out, name, code) for name, code in codes.items()]))
    assert events[:2] == [JobQueued("pgd-s0", "42_0"), JobQueued("pgd-s1", "42_1")]
    assert {event.name for event in events if isinstance(event, JobStarted)} == set(NAMES)
    ended = ends(events)
    assert [ended[name].code for name in NAMES] == [1, 1]
    assert ended["pgd-s0"].reason.startswith("one | two | the reason (job 42_0 is UNKNOWN, its output: ")
    assert str(out / "submitit" / "42_0_0_log.err") in ended["pgd-s0"].reason
    assert "CalledProcessError" not in ended["pgd-s0"].reason
    assert (out / "pgd-s0" / "output.log").read_text().startswith("job 42_0: process ")
    script = (cluster / "script-42").read_text()
    for line in ("array=0-1%1", "partition=gpu", "time=1440", "mem=2GB", "cpus-per-task=1", "job-name=sihg"):
        assert f"#SBATCH --{line}\n" in script
    assert "# setup\ntrue\n" in script
    assert (launcher.interrupted, launcher.queued) == (False, ())


def test_ctrl_c_ends_the_waiting_and_the_same_command_waits_again(cluster: Path, tmp_path: Path) -> None:
    out, gate = tmp_path / "g", tmp_path / "gate"
    os.mkfifo(gate)
    job = make_job(out, "pgd-s0", f"open({str(gate)!r}).read()")  # until somebody has written
    first = launch(out)
    with closing(first.run([job])) as events:
        for event in events:
            if isinstance(event, JobStarted):
                os.kill(os.getpid(), signal.SIGINT)
    assert (first.interrupted, first.queued) == (True, ("42",))
    again, found = launch(out), list[Event]()
    with closing(again.run([job])) as events:
        for event in events:
            found.append(event)
            if isinstance(event, JobStarted):
                gate.write_text("go on")
    assert found[0] == JobQueued("pgd-s0", "42")
    assert set(ends(found)) == {"pgd-s0"}
    assert (again.interrupted, (cluster / "count").read_text()) == (False, "42\n")  # one submission
    third = list(launch(out).run([make_job(out, "pgd-s0", "pass")]))  # that job has ended: a new one
    assert third[0] == JobQueued("pgd-s0", "43")
    assert read_record(out / "submitit" / "jobs.json", SubmittedJobs).jobs["pgd-s0"].job == "43"


def test_a_job_that_the_cluster_has_ended(cluster: Path, tmp_path: Path) -> None:
    """It wrote no result, as after an end for its memory."""
    out = tmp_path / "g"
    (cluster / "srun").write_text("#!/bin/bash\nexit 1\n")
    (cluster / "states").write_text("42|OUT_OF_MEMORY|node1\n42.batch|OUT_OF_MEMORY|node1\n")
    ended = ends(list(launch(out).run([make_job(out, "pgd-s0", "pass")])))
    assert ended["pgd-s0"].reason == "job 42 is OUT_OF_MEMORY and wrote nothing"


def test_a_job_that_failed_before_its_cell_began(cluster: Path, tmp_path: Path) -> None:
    out = tmp_path / "g"
    error, states = out / "submitit" / "42_0_log.err", cluster / "states"
    said = f"echo 'python: command not found' > {error}; echo '42|FAILED|node1' > {states}"
    (cluster / "srun").write_text(f"#!/bin/bash\n{said}\nexit 1\n")
    ended = ends(list(launch(out).run([make_job(out, "pgd-s0", "pass")])))
    assert ended["pgd-s0"].reason == f"python: command not found (job 42 is FAILED, its output: {error})"


@pytest.mark.usefixtures("cluster")
def test_a_command_that_cannot_start(tmp_path: Path) -> None:
    out = tmp_path / "g"
    job = Job("pgd-s0", [str(tmp_path / "missing")], out / "pgd-s0" / "output.log", (out / "pgd-s0").mkdir)
    (tmp_path / "g").mkdir()
    ended = ends(list(launch(out).run([job])))
    assert f"the cell cannot start: [Errno 2] No such file or directory: '{tmp_path / 'missing'}'" in (
        ended["pgd-s0"].reason
    )


@pytest.mark.usefixtures("cluster")
def test_a_cell_that_cannot_be_prepared_does_not_stop_the_others(tmp_path: Path) -> None:
    def refuse() -> None:
        raise InputError("no-problem")

    out = tmp_path / "g"
    broken = Job("pgd-s0", ["true"], out / "pgd-s0" / "output.log", refuse)
    ended = ends(list(launch(out).run([broken, make_job(out, "pgd-s1", "pass")])))
    assert (ended["pgd-s0"].code, ended["pgd-s0"].reason) == (2, str(InputError("no-problem")))
    assert set(ended) == set(NAMES)


def test_jobs_that_slurm_refuses(cluster: Path, tmp_path: Path) -> None:
    out = tmp_path / "g"
    (cluster / "refuse").touch()
    with refused("slurm-refused") as error:
        list(launch(out).run([make_job(out, "pgd-s0", "pass")]))
    assert "invalid partition specified: nowhere" in str(error.value)
    assert not (out / "submitit" / "jobs.json").exists()


@pytest.mark.usefixtures("cluster")
def test_a_link_as_the_folder_of_the_jobs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "submitit").symlink_to(tmp_path)
    with refused("linked-folder"):
        list(launch(tmp_path / "g").run([]))


@pytest.mark.parametrize(
    ("code", "launcher", "options"),
    [
        ("unknown-launcher", "slurmm", []),
        ("slurm-options-alone", "local", ["partition=gpu"]),
        ("slurm-option-form", "slurm", ["partition"]),
        ("slurm-missing", "slurm", []),
    ],
)
def test_mistakes_are_refused_before_anything_is_written(
    code: str, launcher: str, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without Slurm
    with refused(code):
        GridRun(build_grid("digits", out=tmp_path / "g"), launcher=launcher, slurm=options)
    assert list(tmp_path.iterdir()) == []


def test_without_submitit_the_command_that_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with refused("slurm-extra-missing") as error:
        launch(tmp_path)
    assert "pip install 'sihg[slurm]'" in str(error.value)
