"""Write the page of the command line: what `sihg COMMAND --help` prints."""

import contextlib
import io
import os
from pathlib import PurePosixPath

from docs_site.pages import write


def write_page() -> None:
    """Write the help of every command."""
    from sihg.cli.main import COMMANDS

    os.environ["COLUMNS"] = "100"
    parts = ["# Command line", "What `sihg COMMAND --help` prints.", f"```text\n{_help()}\n```"]
    for name in COMMANDS:
        parts += [f"## sihg {name}", f"```text\n{_help(name)}\n```"]
    write(PurePosixPath("commands.md"), "\n\n".join(parts) + "\n")


def _help(*command: str) -> str:
    from sihg.cli.main import build_parser

    printed = io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(printed):
        build_parser(*command).parse_args([*command, "--help"])
    return printed.getvalue().rstrip()
