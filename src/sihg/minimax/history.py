"""What a solve recorded: columns of numbers, saved as JSON or CSV."""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from sihg.errors import InputError
from sihg.store.files import write_text


class History:
    """A table that grows by rows: `history["iteration"]` is a column, `rows()` the rows, `about` a note.

    Columns: iteration, w_gradients and delta_gradients (block gradients so far; measuring is not counted), seconds
    (measuring and callbacks not counted), saddle_norm_squared, and what the method adds.
    """

    def __init__(self, about: Mapping[str, Any] | None = None) -> None:
        self.about = dict(about or {})
        self.columns: dict[str, list[float]] = {}

    def append(self, row: Mapping[str, float]) -> None:
        """Add a row; all rows have the same columns."""
        if not self.columns:
            self.columns = {name: [] for name in row}
        if row.keys() != self.columns.keys():
            raise InputError(f"a row with {sorted(row)} does not fit the columns {sorted(self.columns)}")
        for name, value in row.items():
            self.columns[name].append(value)

    def extend(self, later: "History") -> None:
        """Add the rows of a solve that continued this one."""
        for row in later.rows():
            self.append(row)

    def __getitem__(self, column: str) -> list[float]:
        if column not in self.columns:
            raise InputError(f"history has no column {column!r}: it has {', '.join(self.columns) or 'no rows yet'}")
        return self.columns[column]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def rows(self) -> Iterator[dict[str, float]]:
        """The rows as dictionaries."""
        for values in zip(*self.columns.values(), strict=True):
            yield dict(zip(self.columns, values, strict=True))

    def save(self, path: str | Path) -> Path:
        """Write to path, as JSON or CSV by its ending; JSON also holds `about`, and null for what is not finite."""
        path = Path(path)
        if path.suffix == ".csv":
            text = io.StringIO()
            table = csv.writer(text, lineterminator="\n")
            table.writerow(self.columns)
            table.writerows(zip(*self.columns.values(), strict=True))
            return write_text(path, text.getvalue())
        if path.suffix == ".json":
            columns = {name: [_plain(v) for v in values] for name, values in self.columns.items()}
            return write_text(path, json.dumps({"about": self.about, "columns": columns}, indent=1, allow_nan=False))
        raise InputError(f"history is saved as .json or .csv, got {path.name!r}: choose one of these endings")

    @staticmethod
    def load(path: str | Path) -> "History":
        """Read a history saved as JSON."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            history = History(content["about"])
            history.columns = {
                name: [float("inf") if v is None else v for v in values] for name, values in content["columns"].items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path} is not a history saved as JSON ({error}): solve again") from error
        return history


def _plain(value: float) -> float | None:
    return value if isfinite(value) else None
