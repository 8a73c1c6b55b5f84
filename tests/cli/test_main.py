"""The command line as a whole: help, completion, mistakes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sihg.cli.main import COMMANDS, SHELLS, main

HELP = """
import sys
from sihg.cli.main import main
try:
    main({words})
except SystemExit as stop:
    assert not stop.code
loaded = [name for name in ("torch", "numpy", "matplotlib", "shtab") if name in sys.modules]
others = [name for name in {others} if f"sihg.cli.{{name}}" in sys.modules]
sys.exit(f"loaded: {{loaded + others}}" if loaded or others else 0)
"""


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_loads_neither_torch_nor_other_commands(command: str) -> None:
    words = [command, "--help"] if command else ["--help"]
    others = [name for name in COMMANDS if name != command]
    done = subprocess.run(
        [sys.executable, "-c", HELP.format(words=words, others=others)], check=False, capture_output=True, text=True
    )
    assert done.stderr == ""
    assert done.returncode == 0
    assert f"usage: sihg {command}".strip() in done.stdout
    for name in COMMANDS if not command else ():
        assert f"  {name} " in done.stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_knows_every_command_and_setting(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--print-completion", shell])
    script = capsys.readouterr().out
    for word in (*COMMANDS, *(("--fosc-max", "--attacks") if shell != "tcsh" else ())):  # which has no such depth
        assert word in script or f"-l {word.removeprefix('--')} " in script  # as fish writes it


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash on this machine")
def test_completion_completes_in_bash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--print-completion", "bash"])
    (tmp_path / "sihg.bash").write_text(capsys.readouterr().out)
    ask = 'source sihg.bash; COMP_WORDS=(sihg {words}); COMP_CWORD={last}; _shtab_sihg; echo "${{COMPREPLY[@]}}"'
    for words, expected in {"tr": "train", "train --fosc-": "--fosc-max", "solve --resu": "--resume"}.items():
        script = ask.format(words=words, last=len(words.split()))
        done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [expected]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "unknown command 'trian' (did you mean 'train'?): choose from train, resume,"),
        (["--quiet"], "sihg: error: "),
        (["doctor", "--lr", "1"], "unknown argument '--lr': `sihg doctor --help` lists all [unknown-argument]"),
        (["data", "get"], "the following arguments are required: NAME (see `sihg data get --help`) [usage]"),
        (["--print-completion", "ksh"], "--print-completion: invalid choice: 'ksh'"),
    ],
)
def test_a_mistake_is_one_line_with_a_code(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("sihg: error: ")
    assert error.endswith("]\n")
    assert error.count("\n") == 1


@pytest.mark.parametrize(("given", "expected"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")])
def test_threads_that_wait_sleep_unless_the_user_says_otherwise(given: dict[str, str], expected: str) -> None:
    code = "import os; from sihg.cli.main import main; main(['data', 'list']); print(os.environ['OMP_WAIT_POLICY'])"
    rest = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=rest | given, check=True, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.splitlines()[-1] == expected
