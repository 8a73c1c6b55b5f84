"""What a solve recorded: columns of numbers, saved as JSON or CSV."""

import csv
import io
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from sihg.errors import InputError
from sihg.store.files import write_text
from sihg.store.schema import read_json, write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class History:
    """A table of what a solve recorded, one row per recorded iteration.

    Columns: iteration, w_gradients and delta_gradients (gradients of single blocks so far), seconds,
    saddle_norm_squared (||F||^2), and what the method adds. Measuring and callbacks count neither as gradients nor as
    seconds.

    Args:
        about: Notes on the solve, such as the method and its step sizes; any values that JSON can hold.
    Example:
        >>> history = History()
        >>> history.append({"iteration": 0, "saddle_norm_squared": 4.0})
        >>> history.append({"iteration": 1, "saddle_norm_squared": 1.0})
        >>> history["saddle_norm_squared"]
        [4.0, 1.0]
        >>> history
        History(2 rows, iterations 0 to 1, |F|^2 4 to 1)
    """

    def __init__(self, about: Mapping[str, object] | None = None) -> None:
        self.about = dict(about or {})
        self.columns: dict[str, list[float]] = {}

    def append(self, row: Mapping[str, float]) -> None:
        """Add a row; all rows have the same columns."""
        if not self.columns:
            self.columns = {name: [] for name in row}
        if row.keys() != self.columns.keys():
            raise InputError("history-row", got=sorted(row), columns=sorted(self.columns))
        for name, value in row.items():
            self.columns[name].append(value)

    def extend(self, later: "History") -> None:
        """Add the rows of a solve that continued this one."""
        for row in later.rows():
            self.append(row)

    def __getitem__(self, column: str) -> list[float]:
        if column not in self.columns:
            raise InputError("history-column", column=column, names=", ".join(self.columns) or "(no rows yet)")
        return self.columns[column]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def __repr__(self) -> str:
        if not len(self):
            return "History(0 rows)"
        first, last = (self.row(k) for k in (0, -1))
        norms = f"|F|^2 {first['saddle_norm_squared']:.3g} to {last['saddle_norm_squared']:.3g}"
        return f"History({len(self)} rows, iterations {first['iteration']} to {last['iteration']}, {norms})"

    def row(self, k: int) -> dict[str, float]:
        """Return row k; -1 is the last."""
        return {name: values[k] for name, values in self.columns.items()}

    def rows(self) -> Iterator[dict[str, float]]:
        """Yield the rows as dictionaries."""
        for values in zip(*self.columns.values(), strict=True):
            yield dict(zip(self.columns, values, strict=True))

    def running_mean(self) -> list[float]:
        """Return the mean of ||F||^2 over iterations 1 to K, for the K of each row after the first (Theorem 1).

        ||F||^2 is taken as linear between recorded rows, so the mean is exact if every iteration was recorded.
        """
        iterations, norms, total, means = self["iteration"], self["saddle_norm_squared"], 0.0, []
        for k in range(1, len(self)):
            steps = iterations[k] - iterations[k - 1]
            total += (norms[k - 1] * (steps - 1) if steps > 1 else 0.0) / 2 + norms[k] * (steps + 1) / 2
            means.append(total / (iterations[k] - iterations[0]))
        return means

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Draw ||F||^2 and its running mean against iterations, both axes logarithmic.

        Args:
            path: Where to save the figure, such as "norms.png". Default: do not save.
        Returns:
            The matplotlib figure.
        Raises:
            InputError: If fewer than two rows were recorded.
        """
        if len(self) < 2:
            raise InputError("history-too-short", rows=len(self))
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        axes.loglog(self["iteration"][1:], self["saddle_norm_squared"][1:], label="$||F||^2$")
        axes.loglog(self["iteration"][1:], self.running_mean(), "--", label="running mean")
        axes.set(xlabel="iteration", title=str(self.about.get("method", "")))
        axes.legend()
        if path is not None:
            figure.savefig(path)
        return figure

    def save(self, path: str | Path) -> Path:
        """Write as JSON or CSV, by the ending of the path; JSON also holds `about`, and null for infinite values."""
        path = Path(path)
        if path.suffix == ".csv":
            text = io.StringIO()
            table = csv.writer(text, lineterminator="\n")
            table.writerow(self.columns)
            table.writerows(zip(*self.columns.values(), strict=True))
            return write_text(path, text.getvalue())
        if path.suffix == ".json":
            columns = {
                name: [value if isfinite(value) else None for value in values] for name, values in self.columns.items()
            }
            return write_json(path, {"about": self.about, "columns": columns})
        raise InputError("history-ending", name=path.name)

    @staticmethod
    def load(path: str | Path) -> "History":
        """Read a history saved as JSON."""
        try:
            content = read_json(Path(path), "solve again")
            history = History(content["about"])
            history.columns = {
                name: [float("inf") if v is None else v for v in values] for name, values in content["columns"].items()
            }
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError("history-unreadable", path=path, error=error) from error
        return history
