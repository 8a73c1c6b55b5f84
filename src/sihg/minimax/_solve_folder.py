"""The folder of a comparison: config.json, summary.json, field.json, and for each method its rows, state and path."""

from dataclasses import dataclass
from pathlib import Path

from sihg.errors import InputError
from sihg.minimax.history import History
from sihg.minimax.solve_state import SolveState
from sihg.store.files import write_text
from sihg.store.schema import SolveConfig, SolveField, SolveRow, SolveSummary, read_record, write_record

Point = tuple[float, float, float]  # iteration, w, delta
REMEDY = "--resume takes a folder made with --out"


@dataclass(frozen=True)
class SolveFolder:
    """Reads and writes the files of a comparison."""

    path: Path

    def check_free(self) -> None:
        """Raise InputError if the folder holds files."""
        if (self.path / "config.json").exists():
            raise InputError("solve-folder-used", path=self.path)
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise InputError("solve-folder-not-empty", path=self.path)

    def begin(self, config: SolveConfig) -> None:
        """Remove the states of an earlier solve, and write the settings."""
        for name in config.methods:
            for file in ("state.safetensors", "history.json", "row.json"):
                (self.path / name / file).unlink(missing_ok=True)
        self.write_config(config)

    def write_config(self, config: SolveConfig) -> None:
        """Write config.json."""
        write_record(self.path / "config.json", config)

    def read_config(self) -> SolveConfig:
        """Read config.json."""
        return read_record(self.path / "config.json", SolveConfig, REMEDY)

    def write_row(self, row: SolveRow) -> None:
        """Write METHOD/row.json."""
        write_record(self.path / row.method / "row.json", row)

    def read_row(self, method: str) -> SolveRow | None:
        """Read METHOD/row.json; None if the method has not ended yet."""
        path = self.path / method / "row.json"
        return read_record(path, SolveRow, REMEDY) if path.exists() else None

    def write_summary(self, summary: SolveSummary, field: SolveField | None) -> None:
        """Write summary.json, and field.json for problems in the plane."""
        write_record(self.path / "summary.json", summary)
        if field is not None:
            write_record(self.path / "field.json", field)

    def save(self, method: str, state: SolveState, history: History, path: list[Point]) -> None:
        """Save what a method reached; the state last, since rows after it are dropped when the run continues."""
        folder = self.path / method
        if path:
            lines = ["iteration,w,delta", *(f"{int(k)},{w!r},{d!r}" for k, w, d in path), ""]
            write_text(folder / "trajectory.csv", "\n".join(lines))
        history.save(folder / "history.json")
        history.save(folder / "history.csv")
        state.save(folder / "state.safetensors")

    def load(self, method: str, record_every: int, *, in_plane: bool) -> tuple[SolveState | None, History, list[Point]]:
        """Load what an interrupted method saved, without rows after its state or off the interval."""
        folder, history = self.path / method, History()
        if not (folder / "state.safetensors").exists():
            return None, history, []
        state = SolveState.load(folder / "state.safetensors")
        for row in History.load(folder / "history.json").rows():
            if row["iteration"] <= state.iteration and row["iteration"] % record_every == 0:
                history.append(row)
        return state, history, _read_path(folder / "trajectory.csv", state.iteration) if in_plane else []


def _read_path(file: Path, iterations: int) -> list[Point]:
    try:
        rows = [line.split(",") for line in file.read_text(encoding="utf-8").splitlines()[1:]]
        path = [(float(k), float(w), float(d)) for k, w, d in rows if int(k) <= iterations]
        if len(path) != iterations + 1:
            raise ValueError(f"{len(path)} of {iterations + 1} points")
    except (OSError, ValueError) as error:
        raise InputError("trajectory-unreadable", path=file, error=error) from error
    return path
