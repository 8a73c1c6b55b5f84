"""The folder of a comparison: config.json, summary.json, field.json, and for each method its rows, state and path."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sihg.errors import InputError
from sihg.minimax._label import split_label
from sihg.minimax._start import AUTO, RULES
from sihg.minimax.history import History
from sihg.minimax.solve_state import SolveState
from sihg.minimax.solvers import method_name
from sihg.store.files import list_names, refuse_link, status, temporary_of, write_bytes, write_text
from sihg.store.run_folder import LOCK_NAME
from sihg.store.schema import (
    SolveConfig,
    SolveField,
    SolveRow,
    SolveSummary,
    json_bytes,
    read_record,
    write_record,
)
from sihg.store.sums import forget_sums, write_sums
from sihg.store.tables import read_table, table_text
from sihg.store.trust import OWNER, check_code, mark_own

Point = tuple[float, float, float]  # iteration, w, delta
REMEDY = "--resume takes a folder made with --out"


@dataclass(frozen=True)
class SolveFolder:
    """Reads and writes the files of a comparison."""

    path: Path

    def check_free(self) -> None:
        """Raise InputError if the folder holds files."""
        names = [name for name in list_names(self.path) if name not in (LOCK_NAME, OWNER) and not temporary_of(name)]
        if "config.json" in names:
            raise InputError("solve-folder-used", path=self.path)
        if names:
            raise InputError("solve-folder-not-empty", path=self.path)

    def begin(self, config: SolveConfig) -> None:
        """Remove the states of an earlier solve, and write the settings."""
        for name in config.methods:
            refuse_link(self.path / name)
            for file in ("state.safetensors", "history.json", "row.json"):
                try:
                    (self.path / name / file).unlink(missing_ok=True)
                except OSError as error:
                    reason = error.strerror or error
                    raise InputError("cannot-write-file", path=self.path / name / file, reason=reason) from error
        self.write_config(config)

    def write_config(self, config: SolveConfig) -> None:
        """Mark the folder as the user's own, and write config.json."""
        forget_sums(self.path)
        content = json_bytes(msgspec.to_builtins(config))
        mark_own(self.path, content)
        write_bytes(self.path / "config.json", content)

    def read_config(self, *, trust: bool) -> SolveConfig:
        """Read config.json; a foreign folder may name a problem in a file only with `trust`."""
        path = self.path / "config.json"
        config = read_record(path, SolveConfig, REMEDY)
        check_code(self.path, path, {"problem": config.problem} if ":" in config.problem else {}, trust=trust)
        return config

    def write_row(self, row: SolveRow) -> None:
        """Write METHOD/row.json."""
        forget_sums(self.path)
        refuse_link(self.path / row.method)
        write_record(self.path / row.method / "row.json", row)

    def read_row(self, method: str, config: SolveConfig) -> SolveRow | None:
        """Read METHOD/row.json; None if the method has not ended yet."""
        path = self.path / method / "row.json"
        if status(path) is None:
            return None
        row = read_record(path, SolveRow, REMEDY)
        if row.config != identity(config):
            raise InputError("solve-other-settings", path=path)
        return row

    def write_summary(self, summary: SolveSummary, field: SolveField | None) -> None:
        """Write summary.json, and field.json for problems in the plane."""
        forget_sums(self.path)
        write_record(self.path / "summary.json", summary)
        if field is not None:
            write_record(self.path / "field.json", field)
        write_sums(self.path)

    def save(self, method: str, state: SolveState, history: History, path: list[Point]) -> None:
        """Save what a method reached; the state last, since rows after it are dropped when the run continues."""
        forget_sums(self.path)
        folder = self.path / method
        refuse_link(folder)
        if path:
            rows = [(f"{int(k)}", repr(w), repr(d)) for k, w, d in path]
            write_text(folder / "trajectory.csv", table_text(("iteration", "w", "delta"), rows))
        history.save(folder / "history.json")
        history.save(folder / "history.csv")
        state.save(folder / "state.safetensors")

    def load(
        self, method: str, config: SolveConfig, *, in_plane: bool
    ) -> tuple[SolveState | None, History, list[Point]]:
        """Load what an interrupted method saved, without rows after its state or off the interval."""
        folder, history = self.path / method, History()
        if status(folder / "state.safetensors") is None:
            return None, history, []
        state = SolveState.load(folder / "state.safetensors")
        if state.config != identity(config) or split_label(method)[0] not in (method_name(state.method), AUTO):
            raise InputError("solve-other-settings", path=folder / "state.safetensors")
        spent = -1.0
        for row in History.load(folder / "history.json").rows():
            if row["iteration"] <= state.iteration and _is_on_schedule(row, spent, config):
                history.append(row)
            spent = row["w_gradients"] + row["delta_gradients"]
        return state, history, _read_path(folder / "trajectory.csv", state.iteration) if in_plane else []


def identity(config: SolveConfig) -> str:
    """Return what tells the results of one solve from those of another; iterations and gradients may grow."""
    bare = msgspec.structs.replace(config, iterations=0, gradients=None, methods=())
    content = msgspec.to_builtins(bare)
    for name in ("step_rule", "gradients", "record_gradients"):  # unless set, as before these settings existed
        if content[name] in (None, RULES[0]):
            del content[name]
    return hashlib.sha256((json.dumps(content, indent=1) + "\n").encode()).hexdigest()


def _is_on_schedule(row: dict[str, float], before: float, config: SolveConfig) -> bool:
    """Whether a row is recorded however long the solve is; `before` is the count of gradients of the row before."""
    if config.record_gradients is None:
        return row["iteration"] % config.record_every == 0
    spent = row["w_gradients"] + row["delta_gradients"]
    return row["iteration"] == 0 or spent // config.record_gradients > before // config.record_gradients


def _read_path(file: Path, iterations: int) -> list[Point]:
    try:
        rows = [(row["iteration"], row["w"], row["delta"]) for row in read_table(file, sealed=True)]
        path = [(float(k), float(w), float(d)) for k, w, d in rows if int(k) <= iterations]
        if len(path) != iterations + 1:
            raise ValueError(f"{len(path)} of {iterations + 1} points")
    except (ValueError, KeyError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError("trajectory-unreadable", path=file, error=error) from error
    return path
