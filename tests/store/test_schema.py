"""Records: what is written is read back, older layouts are read, everything else is refused in one sentence."""

import json
from pathlib import Path

import msgspec
import pytest

from sihg.store import schema
from sihg.store.archive import unpacked
from tests.refused import refused

ARCHIVES = Path(__file__).resolve().parents[2] / "results"
ROW = schema.AttackRow(
    attack="pgd-20",
    accuracy=0.5,
    low=0.4,
    high=0.6,
    samples=10,
    broken=5,
    passes=200,
    forwards=0,
    seconds=1.0,
    passes_per_sample=20.0,
    forwards_per_sample=0.0,
)
EVALUATION = schema.EvaluationRecord(
    weights="run/checkpoints/last-00000008",
    sha256="0" * 64,
    checkpoint="last",
    data="digits",
    split="test",
    samples=10,
    of=397,
    seed=0,
    eps=0.25,
    norm="linf",
    bounds=(0.0, 1.0),
    device="cpu",
    rule="any iterate",
    attacks=(ROW,),
    checks=(schema.Check("unit", "fine"),),
)


def test_a_written_record_is_read_back(tmp_path: Path) -> None:
    path = schema.write_record(tmp_path / "a.json", EVALUATION)
    assert schema.read_evaluation(path) == EVALUATION


def test_a_row_leaves_out_what_it_does_not_have() -> None:
    row = json.loads(schema.record_text(EVALUATION))["attacks"][0]
    assert not {"proof", "remark", "attacked", "stages"} & row.keys()


def test_a_record_without_a_format_is_read(tmp_path: Path) -> None:
    content = json.loads(schema.record_text(EVALUATION))
    del content["format"]
    (tmp_path / "old.json").write_text(json.dumps(content))
    assert schema.read_evaluation(tmp_path / "old.json") == msgspec.structs.replace(EVALUATION, format=1)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"format": 99}, "record-format"),
        ({"eps": "wide"}, "record-invalid"),
        ({"attacks": [{"attack": "pgd"}]}, "record-invalid"),
    ],
)
def test_a_bad_record_is_refused(tmp_path: Path, change: dict[str, object], code: str) -> None:
    content = json.loads(schema.record_text(EVALUATION)) | change
    schema.write_json(tmp_path / "bad.json", content)
    with refused(code):
        schema.read_evaluation(tmp_path / "bad.json")


def test_only_a_record_of_the_first_format_needs_no_seal(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    content = json.loads(schema.record_text(EVALUATION))
    path.write_text(json.dumps(content | {"format": 1}))
    assert schema.read_evaluation(path).samples == 10
    path.write_text(json.dumps(content))
    with refused("seal-missing", path=path):
        schema.read_evaluation(path)
    text = schema.write_json(path, content | {"format": 1}).read_text()
    path.write_text(text.replace('"samples": 10', '"samples": 11'))
    with refused("seal-wrong", path=path):  # whoever has a seal must have the right one
        schema.read_evaluation(path)


def test_only_settings_of_the_first_format_need_no_seal(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("eps = 0.1\n")
    assert schema.read_run_config(path).settings == {"eps": 0.1}
    path.write_text("format = 2\neps = 0.1\n")
    with refused("seal-missing", path=path):
        schema.read_run_config(path)
    text = schema.write_toml(path, {"eps": 0.1}, {"eps": "radius"}).read_text()
    assert schema.read_run_config(path) == schema.RunConfig(settings={"eps": 0.1})
    path.write_text(text.replace("radius", "Radius"))
    with refused("seal-wrong", path=path):
        schema.read_run_config(path)


@pytest.mark.parametrize("text", ["", "[1, 2", "[1]", "nonsense"])
def test_a_file_that_is_not_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    with refused("record-unreadable", path=tmp_path / "bad.json"):
        schema.read_record(tmp_path / "bad.json", schema.Environment)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with refused("record-unreadable"):
        schema.read_record(tmp_path / "none.json", schema.SolveConfig)


def test_published_records_are_read() -> None:
    archives = sorted(ARCHIVES.glob("*.zip"))
    assert archives
    with unpacked(archives) as found:
        for home in found.places.values():
            configs = sorted(home.rglob("config.toml"))
            evaluations = sorted(home.rglob("evaluation/*.json"))
            assert configs
            assert evaluations
            for path in evaluations:
                assert schema.read_evaluation(path).samples > 0
            for path in configs:
                assert schema.read_run_config(path).method
            for path in home.rglob("grid.toml"):
                assert schema.read_grid_config(path).methods
            for path in home.rglob("environment.json"):
                assert schema.read_record(path, schema.Environment).torch


def test_metrics_rows_convert_from_and_to_cells() -> None:
    cells = {"epoch": "3", "step": "12", "loss": "0.5", "accuracy": "0.25", "natural": "", "robust": "", "lr": "0.1"}
    row = schema.MetricsRow.from_cells({**cells, "drift": "2.5"})
    assert (row.epoch, row.loss, row.natural, row.extra) == (3, 0.5, None, {"drift": 2.5})
    assert list(row.cells()) == [*schema.METRICS_COLUMNS, "drift"]


def test_grid_config_is_read_back(tmp_path: Path) -> None:
    settings: schema.Settings = {"eps": 0.1, "bounds": [0.0, 1.0], "optimizer.name": "sgd", "optimizer.lr": 0.05}
    config = schema.GridConfig(attacks=("natural",), test_samples="all", threads=1, methods={"pgd": settings})
    (tmp_path / "grid.toml").write_bytes(schema.grid_config_bytes(config))
    assert schema.read_grid_config(tmp_path / "grid.toml") == config


def test_settings_are_flattened_and_nested_again() -> None:
    nested: dict[str, object] = {"eps": 0.1, "bounds": None, "method": {"name": "pgd", "steps": 3}}
    flat = schema.flatten_settings(nested)
    assert flat == {"eps": 0.1, "bounds": "none", "method.name": "pgd", "method.steps": 3}
    assert schema.nest_settings(flat) == {**nested, "bounds": "none"}


def test_differences_name_both_values() -> None:
    theirs: schema.Settings = {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}
    found = schema.differing_settings(theirs, {"a": 1, "z": 0})
    assert [(d.name, d.theirs, d.ours) for d in found][:2] == [("b", 2, "none"), ("c", 3, "none")]
    assert schema.describe_differences(found) == "b = 2 (here none), c = 3 (here none), d = 4 (here none) and 2 more"
    assert schema.differing_settings(theirs, theirs) == []
