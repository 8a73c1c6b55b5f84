"""One headline: the figures of a row are on the same samples, and no attack leaves less than all of them together."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sihg.report import compare
from sihg.report.read.evaluations import read_verdicts
from sihg.report.read.results import MIN_SHARED, Results, find_results
from sihg.report.read.runs import group_trials, read_runs
from sihg.report.tables.training_tables import entry_table
from sihg.report.training_report import report_training
from sihg.store.statistics import Spread, wilson
from tests.refused import refused
from tests.report.folders import attack_row, read_csv, read_page, write_broken, write_evaluation, write_found, write_run

N = 397
EVERY = range(N)
PART = range(0, N, 4)  # 100 samples


def broken(share: float, index: Sequence[int], seed: int = 0) -> list[bool]:
    """Break a share of the split; a sample breaks alike in every subset."""
    return [bool(flag) for flag in (np.random.default_rng(seed).random(N) < share)[[*index]]]


def found(folder: Path) -> Results:
    return find_results(read_runs([folder]))


def shares(results: Results, run: str = "a") -> dict[str, tuple[float, int]]:
    return {name: (one.accuracy, one.samples) for name, one in results.of_run(run).items()}


def held(*of: Sequence[bool]) -> float:
    return sum(not any(flags) for flags in zip(*of, strict=True)) / len(of[0])


def test_attacks_on_fewer_samples_are_compared_on_these(tmp_path: Path) -> None:
    """`all` of natural and pgd-20 on all samples must not stand above standard on a hundred."""
    run = write_run(tmp_path / "a")
    every = {"natural": broken(0.05, EVERY), "pgd-20": broken(0.3, EVERY, 1)}
    on_part = {name: [flags[i] for i in PART] for name, flags in every.items()} | {"standard": broken(0.9, PART, 2)}
    write_found(run, "1", every, EVERY)
    write_found(run, "2", {"standard": on_part["standard"]}, PART)
    results = found(tmp_path)
    expected = {name: (held(flags), 100) for name, flags in on_part.items()}
    assert shares(results) == expected | {"all": (held(*on_part.values()), 100)}
    one = results.of_run("a")["pgd-20"]
    assert (one.low, one.high) == wilson(round(100 * one.accuracy), 100)
    (note,) = results.notes
    assert note.startswith("The evaluations shown share 100 test samples, and all figures are on these.")
    assert "The fewest, 100, are in 2 of a." in note
    report_training(run)
    page = read_page(run)
    assert "on 100 test samples, never trained on." in page
    assert "The evaluations shown share 100 test samples" in page
    assert read_csv(run)[0]["samples"] == "100"
    assert [row["samples"] for row in read_csv(run, "evaluations")] == ["397"] * 3 + ["100"]  # each on all of its own
    assert "The evaluations shown share 100 test samples" in str(compare(run))


def test_records_on_the_same_samples_are_joined(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    first, second = broken(0.3, EVERY, 1), broken(0.3, EVERY, 2)
    write_found(run, "1", {"pgd-20": first}, EVERY)
    write_found(run, "2", {"square": second}, EVERY)
    results = found(tmp_path)
    assert shares(results)["all"] == (held(first, second), N)
    assert results.notes == ()


def test_without_what_was_found_per_sample_each_figure_says_its_samples(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    write_found(run, "1", {"natural": broken(0.1, EVERY), "pgd-20": broken(0.3, EVERY, 1)}, EVERY)
    write_found(run, "2", {"standard": broken(0.9, PART, 2)}, PART, kept=False)
    results = found(tmp_path)
    assert [(name, n) for name, (_, n) in shares(results).items()] == [("natural", N), ("pgd-20", N), ("standard", 100)]
    assert len(results.notes) == 1
    report_training(run)
    text = (run / "report" / "runs.md").read_text(encoding="utf-8")
    for name, (accuracy, n) in shares(results).items():
        assert f"| {100 * accuracy:.2f} (n = {n}) |" in text
        page = read_page(run).replace("\N{NO-BREAK SPACE}", " ")
        assert f'{100 * accuracy:.2f} <span class="quiet">(n = {n})</span>' in page
        assert read_csv(run)[0][f"samples {name}"] == str(n)
    assert "test all" not in read_csv(run)[0]
    assert "(n = 100)" in str(compare(run))


def test_means_over_other_samples_say_so(tmp_path: Path) -> None:
    for seed, index in enumerate((EVERY, PART)):
        run = write_run(tmp_path / f"m-s{seed}", seed=seed)
        write_found(run, "1", {"natural": broken(0.1, index), "pgd-20": broken(0.5, index)}, index, kept=False)
        if seed == 0:
            write_found(run, "2", {"fgsm": broken(0.3, PART)}, PART, kept=False)
    report_training(tmp_path)
    for text in ((tmp_path / "report" / "table.md").read_text(encoding="utf-8"), str(compare(tmp_path))):
        assert "(n = 397 / 100) |" in text
        assert "(1 of 2) (n = 100) |" in text


def test_disjoint_samples_have_no_figure_together(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    write_found(run, "1", {"pgd-20": broken(0.3, range(100))}, range(100))
    write_found(run, "2", {"square": broken(0.3, range(100, 200))}, range(100, 200), seed=1)
    results = found(tmp_path)
    assert [*shares(results)] == ["pgd-20", "square"]
    assert "share too few" in results.notes[0]


def test_a_run_is_compared_on_the_samples_of_the_others(tmp_path: Path) -> None:
    a, b, c = (write_run(tmp_path / name, method=name) for name in "abc")
    flags = [broken(0.3, EVERY, seed) for seed in range(2)]
    write_found(a, "1", {"pgd-20": flags[0]}, EVERY)
    write_found(b, "1", {"pgd-20": [flags[1][i] for i in PART]}, PART)
    assert shares(found(a))["pgd-20"][1] == N
    results = found(tmp_path)
    assert shares(results)["pgd-20"] == (held([flags[0][i] for i in PART]), 100)
    assert shares(results, "b")["pgd-20"] == (held([flags[1][i] for i in PART]), 100)
    write_found(c, "1", {"pgd-20": broken(0.3, range(60))}, range(60), of=999)  # another split: rows stay as they are
    assert shares(found(tmp_path), "c")["pgd-20"][1] == 60
    assert shares(found(tmp_path))["pgd-20"][1] == 100


def test_few_samples_do_not_cut_a_row_short(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    write_found(run, "1", {"natural": broken(0.1, EVERY), "pgd-20": broken(0.3, EVERY, 1)}, EVERY)
    write_found(run, "2", {"fgsm": broken(0.9, range(MIN_SHARED - 1))}, range(MIN_SHARED - 1))
    results = found(tmp_path)
    assert {n for _, n in shares(results).values()} == {N}
    assert [*shares(results)] == ["natural", "pgd-20", "all"]
    assert "fgsm of a (n = 49)" in results.notes[0]


def test_attacks_on_fewer_samples_than_standard_do_not_cut_it_short(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    standard, square = broken(0.5, EVERY, 1), broken(0.6, PART, 2)
    write_found(run, "1", {"natural": broken(0.1, EVERY), "standard": standard}, EVERY)
    write_found(run, "2", {"square": square}, PART)
    results = found(tmp_path)
    assert [*shares(results)] == ["natural", "standard", "all"]
    assert {n for _, n in shares(results).values()} == {N}
    assert "square of a (n = 100)" in results.notes[0]


def test_seeds_with_other_attacks_have_no_mean_under_all(tmp_path: Path) -> None:
    for seed in range(3):
        run = write_run(tmp_path / f"m-s{seed}", seed=seed)
        write_found(run, "1", {"natural": broken(0.1, EVERY, seed), "pgd-20": broken(0.5, EVERY, 9 + seed)}, EVERY)
    table, _ = entry_table(group_trials(read_runs([tmp_path])))
    keys = [column.key for column in table.columns]
    assert isinstance(table.rows[0][keys.index("test all")], Spread)
    write_found(tmp_path / "m-s0", "2", {"standard": broken(0.7, EVERY)}, EVERY)
    table, _ = entry_table(group_trials(read_runs([tmp_path])))
    row = dict(zip((column.key for column in table.columns), table.rows[0], strict=True))
    assert row["test all"] is None
    assert any("same attacks" in note or "under the same attacks" in note for note in found(tmp_path).notes)


def test_verdicts_that_do_not_fit_their_record_are_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    record = write_evaluation(run, samples=3, attacks=[attack_row("pgd-20", 0.5, 3)])
    write_broken(record, {"pgd-20": [True, False, True]}, [5, 1, 3])
    verdicts = read_verdicts(record)
    assert verdicts is not None
    assert verdicts.broken_on(np.array([1, 2, 5]), "pgd-20").tolist() == [False, False, True]
    for attacks, index in (
        ({"fgsm": [True] * 3}, [1, 2, 3]),
        ({"pgd-20": [True] * 2}, [1, 2]),
        ({"pgd-20": [True] * 3}, [1, 1, 2]),
    ):
        write_broken(record, attacks, index)
        with refused("predictions-mismatch", path=record.with_suffix(".npz"), name=record.name):
            read_verdicts(record)
    record.with_suffix(".npz").unlink()
    assert read_verdicts(record) is None


ATTACKS = ("natural", "pgd-20", "standard", "square")
Planted = tuple[list[str], float, int, bool, str]
RECORDS = st.tuples(
    st.lists(st.sampled_from(ATTACKS), min_size=1, max_size=4, unique=True),
    st.sampled_from([0.1, 0.3, 0.6, 1.0]),  # of the samples
    st.integers(0, 3),  # the seed of the subset
    st.booleans(),  # whether the results per sample are kept
    st.sampled_from(["any iterate", "last iterate"]),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(RECORDS, min_size=1, max_size=3), min_size=1, max_size=2), st.integers(0, 99))
def test_no_attack_of_a_row_leaves_less_than_all(runs: list[list[Planted]], seed: int) -> None:
    draw = np.random.default_rng(seed)
    n = 120
    with TemporaryDirectory() as home:
        for trial, records in enumerate(runs):
            run = write_run(Path(home) / f"m-s{trial}", seed=trial)
            for i, (attacks, share, subset, kept, rule) in enumerate(records):
                size = round(share * n)
                index = sorted(np.random.default_rng(subset).permutation(n)[:size].tolist())
                flags = {attack: (draw.random(size) < draw.random()).tolist() for attack in attacks}
                write_found(run, str(i), flags, index, kept=kept, of=n, seed=subset, rule=rule)
        read = read_runs([Path(home)])
        results = find_results(read)
        table, _ = entry_table(group_trials(read))
    for name in (of_run.name for of_run in read):
        row = results.of_run(name)
        for column in (column for column in row if column.startswith("all")):
            under = [one for other, one in row.items() if column == "all" or "last iterate" in other]
            assert all(row[column].accuracy <= one.accuracy for one in under)
            assert {one.samples for one in under} == {row[column].samples}
    cells = dict(zip((column.key for column in table.columns), table.rows[0], strict=True))
    means = {key: cell.mean for key, cell in cells.items() if key.startswith("test ") and isinstance(cell, Spread)}
    assert means.get("test all", 0) <= min(means.values()) + 1e-12
