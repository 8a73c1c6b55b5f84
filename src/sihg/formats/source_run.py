"""What an export knows of a run: its weights, its model and its records."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
from torch import nn

from sihg.errors import InputError
from sihg.parse import Value
from sihg.robust import models
from sihg.robust.training.weights import Weights, load_weights, read_run_weights
from sihg.store.checkpoint import read_checkpoint, sha256_of_tensors
from sihg.store.files import list_names, status
from sihg.store.run_folder import RunFolder
from sihg.store.schema import (
    CurveRecord,
    DataIdentity,
    EvaluationRecord,
    MetricsRow,
    Settings,
    convert_record,
    read_evaluation,
    read_run_config,
)
from sihg.store.tables import read_json_lines, read_table


class _State(msgspec.Struct, frozen=True, kw_only=True):
    """What an export needs of a checkpoint's state."""

    data: DataIdentity


@dataclass(frozen=True, eq=False)
class SourceRun:
    """A run that is exported.

    Args:
        weights: Those of the checkpoint.
        folder: The run folder.
        model: The user's architecture; None to build the one that the run names.
    """

    weights: Weights
    folder: RunFolder
    model: str | nn.Module | None = None

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.folder.path.resolve().name

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the weights, as in records of evaluations."""
        return sha256_of_tensors(self.weights.tensors)

    @cached_property
    def data(self) -> DataIdentity:
        """The shape and the classes of the data."""
        state = read_checkpoint(self.weights.source, ()).state
        return convert_record(state, _State, self.weights.source, "use another checkpoint").data

    @cached_property
    def settings(self) -> Settings:
        """All settings by dotted name; of paths only the last name, since others have no use for them."""
        return {name: _last_name(value) for name, value in read_run_config(self.folder.config).settings.items()}

    @cached_property
    def rows(self) -> list[MetricsRow]:
        """The rows of metrics.csv."""
        if status(self.folder.metrics) is None:
            return []
        return [MetricsRow.from_cells(row) for row in read_table(self.folder.metrics, sealed=True)]

    @cached_property
    def training_warnings(self) -> list[str]:
        """What the run warned of while it trained."""
        entries = read_json_lines(self.folder.log, sealed=True) if status(self.folder.log) is not None else []
        return [str(entry.get("text")) for entry in entries if entry.get("event") == "warning"]

    @cached_property
    def records(self) -> dict[str, EvaluationRecord | CurveRecord]:
        """The records of evaluations of these weights, by name; of paths only the last name, as in the settings."""
        names = [name for name in list_names(self.folder.evaluation) if name.endswith(".json") and name[0] != "."]
        found = {name.removesuffix(".json"): read_evaluation(self.folder.evaluation / name) for name in sorted(names)}
        return {name: _without_folders(record) for name, record in found.items() if record.sha256 == self.sha256}

    def build(self) -> nn.Module:
        """Return the model with its weights, on the CPU."""
        model = self._architecture()
        load_weights(model, self.weights.tensors, self.weights.source)
        return model.cpu().eval()

    def _architecture(self) -> nn.Module:
        if self.model is None:
            return self.weights.build()
        if isinstance(self.model, nn.Module):
            return self.model
        return models.build(self.model, tuple(self.data.shape), len(self.data.classes))


def open_source_run(run: Path, checkpoint: str, *, model: str | nn.Module | None, trust: bool) -> SourceRun:
    """Read the weights of a run, or raise InputError."""
    weights = read_run_weights(run, checkpoint, trust=trust, given=() if model is None else ("model",))
    if weights.folder is None:
        raise InputError("not-a-run", path=run, what="has no config.toml")
    return SourceRun(weights, weights.folder, model)


def _without_folders(record: EvaluationRecord | CurveRecord) -> EvaluationRecord | CurveRecord:
    """Return a record whose data and attacks have no folders in their names."""
    replace = msgspec.structs.replace
    record = replace(record, data=str(_last_name(record.data)))
    if isinstance(record, EvaluationRecord):
        attacks = [replace(row, attack=str(_last_name(row.attack))) for row in record.attacks]
        return replace(record, attacks=tuple(attacks))
    curves = [replace(row, attack=str(_last_name(row.attack))) for row in record.curves]
    return replace(record, curves=tuple(curves))


def _last_name(value: Value) -> Value:
    """Return npz:/a/b.npz as npz:b.npz and /a/nets.py:make as nets.py:make; other values as they are."""
    found = re.fullmatch(r"((?:\w+:)?)/(?:.*/)?([^/]*)", value) if isinstance(value, str) else None
    return f"{found[1]}{found[2]}" if found else value
