"""What a process of a grid does when it is told to stop."""

import subprocess
import sys
from pathlib import Path

CODE = """
import sys, time
from pathlib import Path
from sihg.cli import grid_cell as cell

def command(words):
    print("ran", *words, flush=True, file=sys.stderr)
    try:
        for _ in range(600 if words[0] == sys.argv[2] else 0):
            time.sleep(0.1)
    except KeyboardInterrupt:
        if words[0] == "evaluate":
            raise
    return 0  # of training in its last epoch, which ends all the same

cell.command = command
sys.exit(cell.main(Path(sys.argv[1]), ["train"], ["resume"], ["evaluate"]))
"""


def stopped_in(phase: str, run: Path) -> tuple[int, str]:
    """The exit code and what was said when the input ends while a command runs."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", CODE, str(run), phase]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        said = ""
        while f"ran {phase}" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        _, rest = process.communicate(timeout=30)  # which ends its input
    return process.returncode, said + rest


def test_told_to_stop_in_the_last_epoch_it_does_not_evaluate(tmp_path: Path) -> None:
    code, said = stopped_in("train", tmp_path)
    assert code == 130
    assert "ran evaluate" not in said
    assert "Traceback" not in said


def test_an_evaluation_is_stopped_and_a_run_that_is_there_goes_on(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    code, said = stopped_in("evaluate", tmp_path)
    assert code == 130
    assert said.index("ran resume") < said.index("ran evaluate")
    assert "ran train" not in said
    assert "Traceback" not in said
